package kubeconfig

import (
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/client-go/rest"
)

// maxURL bounds the URL of a server, which a Spoke's status shows, and of a proxy.
const maxURL = 2048

func vetServer(raw string, cfg *rest.Config, r *Refusal) {
	const write = "write https://host:port"
	server := parse("server", raw, write, r)
	if server == nil {
		return
	}
	if server.Scheme != "https" {
		r.forbid("server is not https: %s", write)
	}
	if server.User != nil {
		r.forbid("server carries user info: remove it")
	}
	vetHostPort("server", server, write, r)
	if hasTail(server) {
		r.invalid("server has a query or fragment: %s", write)
	}
	cfg.Host = strings.TrimSuffix(server.String(), "/")
}

// vetProxyURL takes user info as it is; a path, a query or a fragment would
// mean nothing.
func vetProxyURL(raw string, cfg *rest.Config, r *Refusal) {
	const write = "write http://host:port, https://host:port or socks5://host:port"
	proxy := parse("proxy-url", raw, write, r)
	if proxy == nil {
		return
	}
	switch proxy.Scheme {
	case "http", "https", "socks5":
	default:
		r.invalid("proxy-url has another scheme than http, https and socks5: %s", write)
	}
	vetHostPort("proxy-url", proxy, write, r)
	if hasTail(proxy) || strings.TrimSuffix(proxy.EscapedPath(), "/") != "" {
		r.invalid("proxy-url has a path, query or fragment: %s", write)
	}
	cfg.Proxy = http.ProxyURL(proxy)
}

// parse returns nil for what is no URL. The parser's error quotes the URL, and
// with it a password: it is not shown.
func parse(key, raw, write string, r *Refusal) *url.URL {
	if len(raw) > maxURL {
		r.invalid("%s is longer than %d bytes: %s", key, maxURL, write)
		return nil
	}
	// The parser would take some of them, in the path for example.
	if strings.ContainsFunc(raw, func(c rune) bool { return c == ' ' || !unicode.IsPrint(c) }) {
		r.invalid("%s has a space, a line break or another character that no URL has: %s", key, write)
		return nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" || u.Opaque != "" {
		r.invalid("%s is not a URL: %s", key, write)
		return nil
	}
	return u
}

func hasTail(u *url.URL) bool { return u.RawQuery != "" || u.ForceQuery || u.Fragment != "" }

func vetHostPort(key string, u *url.URL, write string, r *Refusal) {
	switch host := u.Hostname(); {
	case host == "":
		r.invalid("%s has no host: %s", key, write)
	case !isHost(host):
		r.invalid("%s has a host that is neither a DNS name nor an IP address: %s", key, write)
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			r.invalid("%s has a port that is not from 1 to 65535: %s", key, write)
		}
	}
}

// isHost is for what might be an address or the name of a host. Resolving it is
// the connection's business; here it must only be nothing else.
func isHost(s string) bool {
	if address, err := netip.ParseAddr(s); err == nil {
		return address.Zone() == "" || isName(address.Zone())
	}
	return len(s) <= 253 && isName(s)
}

func isName(s string) bool {
	return strings.Trim(s, ".") != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
	})
}
