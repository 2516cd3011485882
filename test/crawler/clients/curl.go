package clients

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// curlClient is the command curl. It reads all options from stdin, so that no password is on a
// command line, where every user of the machine could read it.
type curlClient struct {
	path string
	// httpsProxy says that it was built with what https proxies take.
	httpsProxy bool
}

func findCurl(ctx context.Context) (Client, error) {
	path, err := exec.LookPath("curl")
	if err != nil {
		return nil, err
	}
	version, _, err := run(ctx, nil, path, "--disable", "--version")
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", path, err)
	}
	return curlClient{path, strings.Contains(string(version), "HTTPS-proxy")}, nil
}

func (curlClient) Name() string { return "curl" }

func (c curlClient) Supports(protocol string) (ok bool, why string) {
	if protocol == "https" && !c.httpsProxy {
		return false, "this curl is built without the feature HTTPS-proxy"
	}
	return true, ""
}

func (c curlClient) fetch(ctx context.Context, j job) (status int, body []byte, err error) {
	if hasControl(j.lease) {
		return 0, nil, &Error{Client: c.Name(), Said: "not tried: with a control character in the user or the password, curl 7.88 fetches without the proxy"}
	}
	output := filepath.Join(j.dir, "body")
	config, err := curlConfig(ctx, j, output)
	if err != nil {
		return 0, nil, &Error{Client: c.Name(), Said: j.lease.quote(err.Error())}
	}
	// --disable, which must come first, is for the user's .curlrc.
	stdout, stderr, err := run(ctx, []byte(config), c.path, "--disable", "--config", "-")
	var connect int
	var port uint16
	_, _ = fmt.Sscan(string(stdout), &status, &connect, &port) // zero is the right answer if there is none
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		// 97 is the failure of a SOCKS handshake, of which there are only words beyond that.
		refused := connect == 407 || exit.ExitCode() == 97 && (strings.Contains(string(stderr), "was rejected by the SOCKS5 server") ||
			strings.Contains(string(stderr), "No authentication method was acceptable"))
		return 0, nil, &Error{Client: c.Name(), Refused: refused, Said: j.lease.quote(string(stderr))}
	case err != nil:
		return 0, nil, &Error{Client: c.Name(), Said: j.lease.quote(err.Error())}
	case port != j.lease.Port:
		return 0, nil, &Error{Client: c.Name(), Said: fmt.Sprintf("it fetched without the proxy: from port %d", port)}
	}
	body, err = os.ReadFile(output)
	if errors.Is(err, os.ErrNotExist) {
		err = nil // there is no file where there is no body
	}
	return status, body, err
}

// hasControl says that curl would take the URL for none, and ignore it in silence.
func hasControl(l Lease) bool {
	s := l.secrets()
	return strings.ContainsFunc(s.username+s.password, func(r rune) bool { return r < ' ' })
}

// curlConfig is the configuration file of a fetch. Nothing in it needs escaping: ParseLease and
// CheckPage see to the URLs, and the paths are ours.
func curlConfig(ctx context.Context, j job, output string) (string, error) {
	var config strings.Builder
	option := func(name, value string) { fmt.Fprintf(&config, "%s = \"%s\"\n", name, value) }
	file := func(name, content string) error {
		path := filepath.Join(j.dir, name+".pem")
		option(name, path)
		return os.WriteFile(path, []byte(content), 0o600)
	}
	config.WriteString("silent\nshow-error\ngloboff\n")
	option("url", j.page)
	option("output", output)
	option("write-out", "%{http_code} %{http_connect} %{remote_port}")
	if len(j.siteCA) > 0 {
		option("capath", j.dir) // which has no hashed names: without it there is the system's
		if err := file("cacert", string(j.siteCA)); err != nil {
			return "", err
		}
	}
	proxy := j.lease.secrets().url
	if j.lease.Protocol == "https" {
		if j.lease.CA != "" {
			option("proxy-capath", j.dir)
			if err := file("proxy-cacert", j.lease.CA); err != nil {
				return "", err
			}
		}
		if name := j.lease.ServerName; name != "" && name != j.lease.Host {
			addresses, err := lookup(ctx, j.lease.Host)
			if err != nil {
				return "", err
			}
			proxy = renamed(j.lease)
			option("resolve", fmt.Sprintf("%s:%d:%s", hostInURL(name), j.lease.Port, addresses))
		}
	}
	option("proxy", proxy)
	return config.String(), nil
}

// renamed is the proxy's URL with the name in its certificate for the host. curl has no option for
// the name that a proxy is verified by. What works is to use the name, and to say with --resolve
// where it is, which holds for proxies too. (--connect-to does not: it is for sites, and changes
// what the proxy is asked to connect to.)
func renamed(l Lease) string {
	s := l.secrets().url
	end := cmp.Or(strings.Index(s, "@")+1, strings.Index(s, "//")+2)
	return s[:end] + hostInURL(l.ServerName) + ":" + strconv.Itoa(int(l.Port))
}

// lookup is the host's addresses as --resolve takes them, which takes no names.
func lookup(ctx context.Context, host string) (string, error) {
	ips := []netip.Addr{}
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = append(ips, ip)
	} else if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return "", err
	}
	addresses := make([]string, len(ips))
	for i, ip := range ips {
		addresses[i] = hostInURL(ip.Unmap().String())
	}
	return strings.Join(addresses, ","), nil
}
