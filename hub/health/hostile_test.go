package health_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
)

const (
	site  = "https://" + siteName + "/"
	plain = "http://" + siteName + "/"

	granted = "HTTP/1.1 200 Connection established\r\n\r\n"
	page    = "HTTP/1.1 204 No Content\r\n\r\n"
	// endless is the beginning of an answer that nobody waits for the end of.
	endless = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n"
	filler  = "X-Filler: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n"
	early   = "HTTP/1.1 102 Processing\r\n\r\n"
)

// hostile is a proxy that misbehaves, or one whose site does, and what is said of it.
type hostile struct {
	name             string
	protocol, target string
	reason           string
	words            []string
	behave           step
	// endpoint is where it is instead of a peer that behaves.
	endpoint func(*testing.T) string
}

func (h hostile) proxy(t *testing.T, name string, at *peer, signers *fleet.Authorities) fleet.Proxy {
	t.Helper()
	p := proxyAt(t, name, h.protocol, at.addr, h.target)
	if h.protocol == "https" {
		p.ServerName, p.NeedsAuthorities, p.Authorities = proxyName, true, signers
	}
	return p
}

func said(words ...string) []string { return words }

// unanswering do not come as far as an answer to CONNECT, or to a request.
func unanswering() []hostile {
	const http, broke = "http", "ConnectRefused"
	return []hostile{
		{"refuses the connection", http, site, "DialFailed", said("refused"), nil, refusing},
		{"swallows the connection", http, site, "Timeout", said("accept"), nil, swallowing},
		{"hangs when it has accepted", http, site, "Timeout", said("no answer"), hangs, nil},
		{"hangs when it has read CONNECT", http, site, "Timeout", said("no answer"), does(readsHead, hangs), nil},
		{"hangs when it has read a request", http, plain, "Timeout", said("no answer"), does(readsHead, hangs), nil},
		{"hangs within its status line", http, site, "Timeout", said("no answer"), does(readsHead, sends("HTTP/1.1 2"), hangs), nil},
		{"hangs within its status line to a request", http, plain, "Timeout", said("no answer"), does(readsHead, sends("HTTP/1.1 2"), hangs), nil},
		{"hangs within its answer", http, site, "Timeout", said("no answer"), does(readsHead, sends("HTTP/1.1 200 OK\r\nX: "), hangs), nil},
		{"answers slower than anybody waits", http, site, "Timeout", said("no answer"), does(readsHead, sends("HTTP/1.1 200 OK\r\n"), drips(filler)), nil},
		{"closes at once", http, site, broke, said("answer"), does(), nil},
		{"closes when it has read CONNECT", http, site, broke, said("answer", "EOF"), does(readsHead), nil},
		{"closes when it has read a request", http, plain, broke, said("answer", "EOF"), does(readsHead), nil},
		{"closes within its answer", http, site, broke, said("answer", "EOF"), does(readsHead, sends("HTTP/1.1 200 OK\r\nX: ")), nil},
		{"resets within CONNECT", http, site, broke, said("answer", "reset"), does(readsOne, resets), nil},
		{"resets when it has read CONNECT", http, site, broke, said("answer", "reset"), does(readsHead, resets), nil},
		{"resets when it has read a request", http, plain, broke, said("answer", "reset"), does(readsHead, resets), nil},
		{"speaks SSH", http, site, broke, said("answer"), does(readsHead, sends("SSH-2.0-OpenSSH_9.2\r\n"), hangs), nil},
		{"speaks no protocol", http, site, broke, said("answer"), does(readsHead, sends("\x00\xff\r\n\r\n"), hangs), nil},
		{"speaks SSH to a request", http, plain, broke, said("answer"), does(readsHead, sends("SSH-2.0-OpenSSH_9.2\r\n"), hangs), nil},
		{"sends lines of a header without end", http, site, broke, nil, does(readsHead, sends("HTTP/1.1 200 OK\r\n"), floods(filler)), nil},
		{"sends a line of a header without end", http, site, broke, nil, does(readsHead, sends("HTTP/1.1 200 OK\r\nX: "), floods("x")), nil},
		{"sends a status line without end", http, site, broke, nil, does(readsHead, floods("HTTP/1.1 200 OK ")), nil},
		{"sends early answers without end", http, site, broke, nil, does(readsHead, floods(early)), nil},
		{"sends early answers to a request without end", http, plain, broke, nil, does(readsHead, floods(early)), nil},
		{"sends early answers for ever", http, site, "Timeout", said("no answer"), does(readsHead, drips(early)), nil},
	}
}

// answering answer CONNECT, or a request, with what may be an answer.
func answering() []hostile {
	const http, refused = "http", "ConnectRefused"
	answer := func(text string, then ...step) step {
		return does(readsHead, sends("HTTP/1.1 "+text+"\r\n"), does(then...))
	}
	empty := sends("Content-Length: 0\r\n\r\n")
	return []hostile{
		{"answers 403", http, site, refused, said("CONNECT", "403"), answer("403 No", empty), nil},
		{"answers 502", http, site, refused, said("CONNECT", "502"), answer("502 No", empty), nil},
		{"answers 302", http, site, refused, said("CONNECT", "302"), answer("302 There", sends("Location: "+plain+"\r\n"), empty), nil},
		{"answers 403 and a page without end", http, site, refused, said("CONNECT", "403"), answer("403 No", sends("\r\n"), floods("no")), nil},
		{"answers 407", http, site, "ProxyAuthRequired", said("407", "authSecretRef"), answer("407 Who", empty), nil},
		{"answers 407 to a request", http, plain, "ProxyAuthRequired", said("407", "authSecretRef"), answer("407 Who", empty), nil},
		{"answers 502 to a request", http, plain, "UnexpectedStatus", said("502"), answer("502 No", empty), nil},
		{"grants CONNECT and hangs", http, site, "Timeout", said("TLS handshake"), answer("200 OK", sends("\r\n"), hangs), nil},
		{"grants CONNECT and closes", http, site, "TLSFailed", said("EOF"), answer("200 OK", sends("\r\n"), readsHello), nil},
		{"grants CONNECT and resets", http, site, "TLSFailed", said("reset"), answer("200 OK", sends("\r\n"), readsOne, resets), nil},
		{"grants CONNECT and speaks no TLS", http, site, "TLSFailed", said("TLS"), answer("200 OK", sends("\r\n"), readsOne, sends(page), hangs), nil},
		{"grants CONNECT and speaks first", http, site, "TLSFailed", said("TLS"), answer("200 OK", sends("\r\n220 mail.example ESMTP\r\n"), hangs), nil},
		{"grants CONNECT and drips", http, site, "Timeout", said("TLS handshake"), answer("200 OK", sends("\r\n"), readsHello, drips("\x16\x03\x03\x3f\xff")), nil},
		{"grants CONNECT and floods", http, site, "TLSFailed", nil, answer("200 OK", sends("\r\n"), floods(page)), nil},
	}
}

// guarding are proxies that are spoken to in TLS.
func guarding(certificate, other tls.Certificate) []hostile {
	const https, no = "https", "TLSFailed"
	return []hostile{
		{"hangs before TLS", https, site, "Timeout", said("no answer"), hangs, nil},
		{"closes before TLS", https, site, no, said("proxy itself"), readsHello, nil},
		{"speaks no TLS itself", https, site, no, said("proxy itself", "TLS"), does(readsHello, sends("HTTP/1.1 400 Bad Request\r\n\r\n"), hangs), nil},
		{"is signed by another", https, site, no, said("proxy itself", "caSecretRef"), inTLS(other, hangs), nil},
		{"hangs in TLS", https, site, "Timeout", said("no answer"), inTLS(certificate, readsHead, hangs), nil},
		{"closes in TLS", https, site, "ConnectRefused", said("answer"), inTLS(certificate, readsHead), nil},
		{"answers 403 in TLS", https, site, "ConnectRefused", said("CONNECT", "403"), inTLS(certificate, readsHead, sends("HTTP/1.1 403 No\r\n\r\n")), nil},
		{"answers 407 in TLS", https, plain, "ProxyAuthRequired", said("407"), inTLS(certificate, readsHead, sends("HTTP/1.1 407 Who\r\n\r\n")), nil},
		{"floods in TLS", https, site, "ConnectRefused", nil, inTLS(certificate, readsHead, sends("HTTP/1.1 200 OK\r\n"), floods(filler)), nil},
		{"grants CONNECT in TLS and hangs", https, site, "Timeout", said("TLS handshake"), inTLS(certificate, readsHead, sends(granted), hangs), nil},
	}
}

// socks are proxies that speak SOCKS5, more or less.
func socks() []hostile {
	const socks5, refused = "socks5", "ConnectRefused"
	greets := does(readsBytes(3), sends("\x05\x00"))
	asked := does(greets, readsBytes(7+int64(len(siteName)))) // the name's length, the port and what is before them
	grants := does(asked, sends("\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50"))
	return []hostile{
		{"hangs before SOCKS", socks5, site, "Timeout", said("no answer"), hangs, nil},
		{"hangs when it has greeted", socks5, site, "Timeout", said("no answer"), does(greets, hangs), nil},
		{"hangs within its reply", socks5, plain, "Timeout", said("no answer"), does(asked, sends("\x05\x00\x00\x03\x09"), hangs), nil},
		{"closes before SOCKS", socks5, site, refused, said("answer"), does(), nil},
		{"resets before SOCKS", socks5, site, refused, said("answer", "reset"), does(readsBytes(3), resets), nil},
		{"closes when it is asked", socks5, site, refused, said("answer", "EOF"), asked, nil},
		{"speaks HTTP", socks5, site, refused, said("SOCKS5"), does(readsBytes(3), sends("HTTP/1.1 400 Bad Request\r\n\r\n"), hangs), nil},
		{"denies by a rule", socks5, site, refused, said("2", "not allowed"), does(asked, sends("\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00")), nil},
		{"takes nobody", socks5, site, "ProxyAuthRequired", said("username"), does(readsBytes(3), sends("\x05\xff")), nil},
		{"connects and hangs", socks5, site, "Timeout", said("TLS handshake"), does(grants, hangs), nil},
		{"connects and resets", socks5, site, "TLSFailed", said("reset"), does(grants, readsOne, resets), nil},
		{"connects and hangs at a request", socks5, plain, "Timeout", said("not answer"), does(grants, hangs), nil},
		{"connects and floods", socks5, plain, "ProbeSucceeded", nil, does(grants, readsHead, sends(endless), floods("x")), nil},
	}
}

// behind are sites that misbehave, behind a proxy that does what it is to, and such
// proxies as are merely odd.
func behind(certificate tls.Certificate) []hostile {
	const http, passes, odd = "http", "ProbeSucceeded", "UnexpectedStatus"
	tunnel := func(steps ...step) step {
		return does(readsHead, sends(granted), inTLS(certificate, does(readsHead, does(steps...))))
	}
	request := func(steps ...step) step { return does(readsHead, does(steps...)) }
	return []hostile{
		{"takes its time", http, site, passes, nil, tunnel(pauses(haste/3), sends(page)), nil},
		{"takes its time for a request", http, plain, passes, nil, request(pauses(haste/3), sends(page)), nil},
		{"takes too long", http, site, "Timeout", said("not answer"), tunnel(pauses(2*haste), sends(page)), nil},
		{"hangs within its status line", http, site, "Timeout", said("in time"), tunnel(sends("HTTP/1.1 2"), hangs), nil},
		{"takes too long for a request", http, plain, "Timeout", said("in time"), request(pauses(2*haste), sends(page)), nil},
		{"sends a page without end", http, site, passes, nil, tunnel(sends(endless), floods("x")), nil},
		{"sends a page without end for a request", http, plain, passes, nil, request(sends(endless), floods("x")), nil},
		{"sends chunks without end", http, site, passes, nil, tunnel(sends("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), floods("2\r\nno\r\n")), nil},
		{"drips a page", http, site, "Timeout", said("in time"), tunnel(sends(endless), drips("x")), nil},
		{"drips a page for a request", http, plain, "Timeout", said("in time"), request(sends(endless), drips("x")), nil},
		{"hangs within its page", http, site, "Timeout", said("in time"), tunnel(sends(endless+"x"), hangs), nil},
		{"closes within its page", http, site, odd, said("broke off"), tunnel(sends(endless + "x")), nil},
		{"closes within its page for a request", http, plain, odd, said("broke off"), request(sends(endless + "x")), nil},
		{"closes instead of a page", http, site, odd, said("broke off"), tunnel(), nil},
		{"sends garbage for a page", http, site, odd, said("broke off"), tunnel(sends("\x00\r\n\r\n"), hangs), nil},
		{"sends a header without end", http, site, odd, nil, tunnel(sends("HTTP/1.1 200 OK\r\n"), floods(filler)), nil},
		{"sends early pages without end", http, site, odd, nil, tunnel(floods(early)), nil},
		{"asks for the proxy's credentials", http, site, odd, said("407"), tunnel(sends("HTTP/1.1 407 Who\r\n\r\n")), nil},
		{"answers 404", http, site, odd, said("404"), tunnel(sends("HTTP/1.1 404 No\r\n\r\n")), nil},
		{"grants with another 2xx", http, site, passes, nil, does(readsHead, sends("HTTP/1.0 201 Made\r\n\r\n"), inTLS(certificate, readsHead, sends(page))), nil},
		{"grants with a length that means nothing", http, site, passes, nil, does(readsHead, sends("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"), inTLS(certificate, readsHead, sends(page))), nil},
	}
}

// readsHello reads what TLS begins with, as a whole: who closes without that resets.
func readsHello(conn net.Conn) error {
	var head [5]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	return readsBytes(int64(head[3])<<8 | int64(head[4]))(conn)
}

// rogues are all of them, with who signs the sites and the proxies.
func rogues(t *testing.T) (all []hostile, roots *x509.CertPool, signers *fleet.Authorities) {
	t.Helper()
	authority := newAuthority(t)
	issued := func(a *certs.Authority, name string) tls.Certificate { return issue(t, a, time.Now(), name) }
	all = append(unanswering(), answering()...)
	all = append(all, guarding(issued(authority, proxyName), issued(newAuthority(t), proxyName))...)
	all = append(all, socks()...)
	all = append(all, behind(issued(authority, siteName))...)
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM)
	return all, roots, authoritiesOf(t, authority)
}

// What a broken or hostile proxy does is named, and no sooner than it is known: one that
// is slow is given all the time that its Proxy says.
func TestHostileProxiesAreJudgedByWhatTheyDo(t *testing.T) {
	all, roots, signers := rogues(t)
	f := run(t, roots, &counter{})
	// Those that hang come last, since how far they come in their time is told: floods
	// would take it from them.
	for _, hanging := range []bool{false, true} {
		proxies := map[int]fleet.Proxy{}
		for i, h := range all {
			if (h.reason == "Timeout") == hanging {
				p := h.proxy(t, fmt.Sprint("hostile-", i), h.listen(t), signers)
				if hanging {
					p.Check.Timeout = haste
				}
				proxies[i] = p
			}
		}
		began := time.Now()
		for _, p := range proxies {
			f.Upsert(p)
		}
		for i, p := range proxies {
			t.Run(all[i].name, func(t *testing.T) {
				v := verdictOn(t, f, p.Key)
				f.Delete(p.Key, p.UID)
				says(t, v, all[i].reason, all[i].words...)
				if took := v.Time.Sub(began); hanging && (took < haste || took > 15*haste) {
					t.Errorf("the verdict came after %s, want %s", took, haste)
				}
			})
		}
	}
}
