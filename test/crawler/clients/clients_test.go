package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/cmd/forwardproxy/proxy"
	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

const username = "cr@wl/er %+?#&"

var (
	protocols   = []string{"http", "https", "socks5"}
	credentials = &proxy.Credentials{Username: username, Password: printable}
)

// each runs a test with every installed client that can use a protocol. They mostly wait.
func each(t *testing.T, protocol string, test func(t *testing.T, client clients.Client)) {
	t.Helper()
	for _, client := range clients.ForTest(t, protocol) {
		t.Run(client.Name(), func(t *testing.T) {
			t.Parallel()
			test(t, client)
		})
	}
}

// fetched gets a page and fails unless the proxy got it.
func fetched(t *testing.T, client clients.Client, lease clients.Lease, site *origin.Server) {
	t.Helper()
	status, body, err := clients.Fetch(t.Context(), client, lease, site.URL+"/page?q={1,2}&r=[3-4]", site.CAPEM)
	if err != nil {
		t.Fatal(err)
	}
	var reply origin.Reply
	if err := json.Unmarshal(body, &reply); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	want := origin.Reply{RemoteAddr: exit, Host: site.Addr(), Path: "/page", TLS: true}
	if status != 200 || reply != want {
		t.Fatalf("%d %+v, want 200 %+v", status, reply, want)
	}
}

// refused fails unless a fetch fails, in the client's words, and returns how.
func refused(t *testing.T, client clients.Client, lease clients.Lease, site *origin.Server) *clients.Error {
	t.Helper()
	status, _, err := clients.Fetch(t.Context(), client, lease, site.URL, site.CAPEM)
	var failed *clients.Error
	if !errors.As(err, &failed) {
		t.Fatalf("status %d and error %v, want an error of the client", status, err)
	}
	mustNotTell(t, err.Error(), username, printable)
	if !strings.HasPrefix(err.Error(), client.Name()+": ") || failed.Said == "" {
		t.Fatalf("the error does not say whose it is, or what it is: %v", err)
	}
	return failed
}

func TestEveryClientUsesALease(t *testing.T) {
	site := origin.Start(t)
	for _, protocol := range protocols {
		t.Run(protocol+" open to all", func(t *testing.T) {
			lease := serve(t, protocol, nil, exit).lease(t, "", "")
			each(t, protocol, func(t *testing.T, c clients.Client) { fetched(t, c, lease, site) })
		})
		t.Run(protocol+" with a password", func(t *testing.T) {
			lease := serve(t, protocol, credentials, exit).lease(t, username, printable)
			each(t, protocol, func(t *testing.T, c clients.Client) { fetched(t, c, lease, site) })
		})
		t.Run(protocol+" at an IPv6 address", func(t *testing.T) {
			p := serve(t, protocol, credentials, proxyName)
			changes := []func(*answer){at(relay(t, "[::1]:0", p.addr))}
			if protocol == "https" {
				changes = append(changes, named(proxyName))
			}
			lease := p.lease(t, username, printable, changes...)
			each(t, protocol, func(t *testing.T, c clients.Client) { fetched(t, c, lease, site) })
		})
	}
}

func TestWrongCredentialsAreToldApart(t *testing.T) {
	site := origin.Start(t)
	says := map[string]string{"http": "407", "https": "407", "socks5": "authentication"}
	for _, protocol := range protocols {
		p := serve(t, protocol, credentials, exit)
		for name, lease := range map[string]clients.Lease{
			"wrong password": p.lease(t, username, printable+"!"),
			"wrong user":     p.lease(t, username+"!", printable),
			"no password":    p.lease(t, "", ""),
		} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				each(t, protocol, func(t *testing.T, c clients.Client) {
					err := refused(t, c, lease, site)
					if !errors.Is(err, clients.ErrCredentials) {
						t.Fatalf("not told apart: %v", err)
					}
					// curl words it its own way.
					if said := strings.ToLower(err.Said); !strings.Contains(said, says[protocol]) && !strings.Contains(said, "rejected by the socks5 server") {
						t.Errorf("what the client said is not in %v", err)
					}
				})
			})
		}
	}
}

// Whoever listens at a proxy's address gets the crawler's password, unless it is the proxy.
func TestAnHTTPSProxyIsVerified(t *testing.T) {
	site := origin.Start(t)
	p := serve(t, "https", credentials, exit, "::1", "localhost", proxyName)
	_, otherCA := issue(t, exit)
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		t.Fatal(err)
	}
	local := "localhost:" + port
	if _, err := net.Dial("tcp", local); err != nil {
		local = strings.Replace(relay(t, "127.0.0.1:0", p.addr), "127.0.0.1", "localhost", 1)
	}
	for _, c := range []struct {
		name    string
		changes []func(*answer)
		ok      bool
		not     string // clients of which some releases cannot, see the package's documentation
	}{
		{"by the address in its URL", nil, true, ""},
		{"by an IPv6 address in its URL", []func(*answer){at(relay(t, "[::1]:0", p.addr))}, true, "curl node"},
		{"by the name in its URL", []func(*answer){at(local)}, true, ""},
		{"by another name", []func(*answer){named(proxyName)}, true, ""},
		{"by another name than that in its URL", []func(*answer){at(local), named(proxyName)}, true, ""},
		{"by another address", []func(*answer){at(local), named(exit)}, true, ""},
		{"by another IPv6 address", []func(*answer){named("::1")}, true, "curl node"},
		{"not if it has another name", []func(*answer){named("other.example")}, false, ""},
		{"not if another CA signs", []func(*answer){named(proxyName), signedBy(otherCA)}, false, ""},
		{"not if only the system's CAs may sign", []func(*answer){signedBy("")}, false, ""},
		{"not by the system's CAs and a name", []func(*answer){func(a *answer) { a.TLS = nil }}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			lease := p.lease(t, username, printable, c.changes...)
			each(t, "https", func(t *testing.T, client clients.Client) {
				switch {
				case strings.Contains(c.not, client.Name()):
					_, _, err := clients.Fetch(t.Context(), client, lease, site.URL, site.CAPEM)
					mustNotTell(t, fmt.Sprint(err), username, printable)
					t.Log(err)
				case c.ok:
					fetched(t, client, lease, site)
				default:
					if err := refused(t, client, lease, site); errors.Is(err, clients.ErrCredentials) {
						t.Errorf("the proxy has seen the password: %v", err)
					}
				}
			})
		})
	}
}

// Neither the lease's CA nor the site's may vouch for the other.
func TestTheSiteIsVerifiedByItsOwnCA(t *testing.T) {
	site := origin.Start(t)
	https := serve(t, "https", nil, exit)
	for _, c := range []struct {
		name   string
		lease  clients.Lease
		siteCA string
	}{
		{"http, by the system's", serve(t, "http", nil).lease(t, "", ""), ""},
		{"socks5, by the system's", serve(t, "socks5", nil).lease(t, "", ""), ""},
		{"https, by the proxy's", https.lease(t, "", "", signedBy(https.ca+string(site.CAPEM))), https.ca},
		{"https, the proxy by the site's", https.lease(t, "", "", signedBy(string(site.CAPEM))), https.ca + string(site.CAPEM)},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, c.lease.Protocol, func(t *testing.T, client clients.Client) {
				status, _, err := clients.Fetch(t.Context(), client, c.lease, site.URL, []byte(c.siteCA))
				var failed *clients.Error
				if !errors.As(err, &failed) {
					t.Errorf("status %d, error %v", status, err)
				}
			})
		})
	}
}

func TestTheSitesVerdictIsNoError(t *testing.T) {
	site := origin.Start(t)
	lease := serve(t, "http", nil).lease(t, "", "")
	each(t, "http", func(t *testing.T, client clients.Client) {
		for _, want := range []int{204, 302, 503} {
			status, body, err := clients.Fetch(t.Context(), client, lease, fmt.Sprintf("%s/status/%d", site.URL, want), site.CAPEM)
			if err != nil || status != want || len(body) != 0 {
				t.Errorf("%d %q %v, want %d", status, body, err, want)
			}
		}
	})
}

func TestNobodyListens(t *testing.T) {
	site := origin.Start(t)
	listener, err := net.Listen("tcp", exit+":0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	listener.Close()
	for _, protocol := range protocols {
		p := running{protocol: protocol, addr: closed}
		lease := p.lease(t, username, printable)
		t.Run(protocol, func(t *testing.T) {
			each(t, protocol, func(t *testing.T, client clients.Client) {
				if err := refused(t, client, lease, site); errors.Is(err, clients.ErrCredentials) {
					t.Error(err)
				}
			})
		})
	}
}

// A proxy that accepts and says nothing must not hold a crawler for longer than it wants to wait.
func TestFetchEndsWithItsContext(t *testing.T) {
	each(t, "http", func(t *testing.T, client clients.Client) {
		listener, err := net.Listen("tcp", exit+":0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			if conn, err := listener.Accept(); err == nil {
				defer conn.Close()
				cancel(errors.New("waited long enough"))
				<-t.Context().Done()
			}
		}()
		lease := running{protocol: "http", addr: listener.Addr().String()}.lease(t, username, printable)
		_, _, err = clients.Fetch(ctx, client, lease, "https://site.example/", nil)
		if err == nil || ctx.Err() == nil {
			t.Fatalf("ended with %v, before its context", err)
		}
		mustNotTell(t, err.Error(), username, printable)
	})
}

// These are what the package's documentation says that clients cannot do. Whether they can or
// not, they must not go around the proxy, and not tell the password.
func TestUncommonPasswordsNeverLeadAroundTheProxy(t *testing.T) {
	site := origin.Start(t)
	cannot := map[string]string{
		"line feed": "curl", "latin": "python", "chinese": "python", "not UTF-8": "python node",
	}
	for name, suffix := range map[string]string{"line feed": "\n", "latin": "é", "chinese": "中文", "not UTF-8": "\x80\xff"} {
		for _, protocol := range []string{"http", "socks5"} { // https differs from http only in being encrypted
			t.Run(protocol+" "+name, func(t *testing.T) {
				password := marker + suffix
				lease := serve(t, protocol, &proxy.Credentials{Username: "u", Password: password}, exit).lease(t, "u", password)
				each(t, protocol, func(t *testing.T, client clients.Client) {
					status, body, err := clients.Fetch(t.Context(), client, lease, site.URL, site.CAPEM)
					switch {
					case err == nil && (status != 200 || !strings.Contains(string(body), exit)):
						t.Errorf("%d %s: did not go through the proxy", status, body)
					case err != nil && !strings.Contains(cannot[name], client.Name()):
						t.Error(err)
					case err != nil:
						mustNotTell(t, err.Error(), "u", password)
						t.Log(err)
					}
				})
			})
		}
	}
}
