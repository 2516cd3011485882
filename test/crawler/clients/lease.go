package clients

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Lease is what clients need of a lease. It prints as the proxy's address.
type Lease struct {
	ID string
	// Protocol is http, https or socks5; Host is a name, or an IP address without brackets.
	Protocol string
	Host     string
	Port     uint16
	// ServerName and CA are how an https proxy is verified. Empty: by Host, and with the system's roots.
	ServerName string
	CA         string
	// secrets is a function, because fmt and encoders print what they find in a field, an
	// unexported one too, but cannot look into a function.
	secrets func() secrets
}

// secrets are what nobody may see. url is proxy.url, to the byte.
type secrets struct{ url, username, password string }

// Format implements fmt.Formatter, for all verbs.
func (l Lease) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "lease %s of %s://%s", l.ID, l.Protocol, l.address())
}

// address is host:port as URLs have it.
func (l Lease) address() string { return hostInURL(l.Host) + ":" + strconv.Itoa(int(l.Port)) }

func hostInURL(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// leaseJSON is what is read of the API's lease, and what is written to clients that are programs.
type leaseJSON struct {
	LeaseID string    `json:"leaseID"`
	Proxy   proxyJSON `json:"proxy"`
	TLS     *tlsJSON  `json:"tls,omitempty"`
}

type proxyJSON struct {
	Protocol string `json:"protocol"`
	URL      string `json:"url"`
}

type tlsJSON struct {
	ServerName string `json:"serverName,omitempty"`
	CA         string `json:"ca,omitempty"`
}

// ParseLease reads the lease that POST /v1/leases answers with. It takes no URL that a client
// could fail to read, because clients quote those in their errors. Its own errors quote nothing.
func ParseLease(data []byte) (Lease, error) {
	var read leaseJSON
	if json.Unmarshal(data, &read) != nil {
		return Lease{}, errors.New("this is not the JSON of a lease")
	}
	l := Lease{ID: read.LeaseID}
	if err := l.setURL(read.Proxy.URL); err != nil {
		return Lease{}, err
	}
	if read.Proxy.Protocol != l.Protocol {
		return Lease{}, fmt.Errorf("proxy.protocol and the scheme of proxy.url differ: the latter is that of %s", l.Protocol)
	}
	if read.TLS == nil {
		return l, nil
	}
	if l.Protocol != "https" {
		return Lease{}, fmt.Errorf("there is a tls, which %s has no use for", l.Protocol)
	}
	if read.TLS.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(read.TLS.CA)) {
		return Lease{}, errors.New("tls.ca has no PEM certificate")
	}
	if name := read.TLS.ServerName; name != "" && !isHost(name) {
		return Lease{}, errors.New("tls.serverName is neither a host name nor an IP address")
	}
	l.ServerName, l.CA = read.TLS.ServerName, read.TLS.CA
	return l, nil
}

// protocols are the schemes of proxy.url. Of SOCKS there is the one that leaves names to the proxy.
var protocols = map[string]string{"http": "http", "https": "https", "socks5h": "socks5"}

// encoded is a user or password in which all but the unreserved is percent-encoded.
var encoded = regexp.MustCompile(`^([A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})+$`)

func (l *Lease) setURL(raw string) error {
	scheme, rest, ok := strings.Cut(raw, "://")
	l.Protocol = protocols[scheme]
	if !ok || l.Protocol == "" {
		return errors.New("proxy.url begins with none of http://, https:// and socks5h://")
	}
	userinfo, address, has := strings.Cut(rest, "@")
	if !has {
		userinfo, address = "", rest
	}
	found := secrets{url: raw}
	if has {
		username, password, both := strings.Cut(userinfo, ":")
		if !both || !encoded.MatchString(username) || !encoded.MatchString(password) {
			return errors.New("proxy.url has no percent-encoded user:password before the @")
		}
		found.username, _ = url.PathUnescape(username) // cannot fail
		found.password, _ = url.PathUnescape(password)
	}
	host, digits, err := net.SplitHostPort(address)
	port, notPort := strconv.ParseUint(digits, 10, 16)
	l.Host, l.Port = host, uint16(port)
	// The last condition is that brackets and leading zeros are where they belong.
	if err != nil || notPort != nil || port == 0 || !isHost(host) || l.address() != address {
		return errors.New("proxy.url does not end in host:port")
	}
	l.secrets = func() secrets { return found }
	return nil
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9.])?$`)

func isHost(s string) bool {
	ip, err := netip.ParseAddr(s)
	return err == nil && ip.Zone() == "" || hostName.MatchString(s)
}

// document is the lease as clients that are programs read it.
func (l Lease) document() ([]byte, error) {
	written := leaseJSON{LeaseID: l.ID, Proxy: proxyJSON{Protocol: l.Protocol, URL: l.secrets().url}}
	if l.Protocol == "https" {
		written.TLS = &tlsJSON{ServerName: l.ServerName, CA: l.CA}
	}
	return json.Marshal(written)
}

// withheld stands for words that may have the password in them.
const withheld = "(what it said has the password in it, and is withheld)"

// quote is what a client said, on one line, if it may be repeated. Clients are used so that they
// have no reason to say the password. Should one do so all the same, in whatever encoding,
// nothing of what it said is passed on.
func (l Lease) quote(said string) string {
	s := l.secrets()
	if s.password == "" {
		return oneLine(said)
	}
	token := base64.StdEncoding.EncodeToString([]byte(s.username + ":" + s.password))
	if strings.Contains(said, s.password) || strings.Contains(said, token) {
		return withheld
	}
	// However it is quoted or encoded, also more than once: its letters and digits stay.
	bare := letters(s.password)
	for decoded, i := said, 0; bare != "" && i < maxEncodings; decoded, i = decode(decoded), i+1 {
		if strings.Contains(letters(decoded), bare) {
			return withheld
		}
	}
	return oneLine(said)
}

const maxEncodings = 4

var escape = regexp.MustCompile(`%[0-9A-Fa-f]{2}|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}`)

// decode undoes the escapes of URLs, JSON and Python's repr.
func decode(s string) string {
	return escape.ReplaceAllStringFunc(s, func(code string) string {
		r, _ := strconv.ParseUint(strings.TrimLeft(code, `%\xu`), 16, 32) // cannot fail
		return string(rune(r))
	})
}

// letters is the letters and digits of a text, in lower case.
func letters(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, s)
}

const maxLine = 500

// oneLine makes printable what a stranger said.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	s = strings.ToValidUTF8(s, "?")
	if len(s) > maxLine {
		s = strings.ToValidUTF8(s[:maxLine], "") + "…"
	}
	return s
}
