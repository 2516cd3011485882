package health

import (
	"context"
	"crypto/x509"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// prober probes through one proxy at a time; it keeps nothing between probes.
type prober struct {
	dialer
	// roots verify the probed site's certificate; nil for the system's.
	roots *x509.CertPool
}

// through is the proxy that a probe goes through.
type through struct {
	fleet.Approach
	host string
	port int
}

func throughOf(p *fleet.Proxy) through { return through{p.Approach(), p.Host, p.Port} }

// aim is what a probe fetches, and what passes.
type aim struct {
	url string
	// expected are the statuses that pass; none: any 2xx.
	expected []int
	// insecure takes any certificate of the site.
	insecure bool
}

func (a aim) passes(code int) bool {
	if len(a.expected) > 0 {
		return slices.Contains(a.expected, code)
	}
	return code/100 == 2
}

// site is where a URL leads.
type site struct {
	url *url.URL
	// name is the host that a certificate is for, address host:port.
	name, address string
}

// Usable says whether a probe can fetch target: an http:// or https:// URL with a host,
// and no port that is none.
func Usable(target string) bool {
	_, usable := parseSite(target)
	return usable
}

func parseSite(target string) (site, bool) {
	u, err := url.Parse(target)
	if err != nil || u.Hostname() == "" {
		return site{}, false
	}
	port := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return site{}, false
	case port == "" && u.Scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return site{}, false
	}
	// A name in letters beyond ASCII is spelt otherwise on the wire.
	name, err := httpguts.PunycodeHostPort(u.Hostname())
	if err != nil {
		return site{}, false
	}
	return site{u, name, net.JoinHostPort(name, port)}, true
}

var unusable = failure(v1alpha1.ReasonUnexpectedStatus, "the probe's URL is not usable")

// probe fetches a URL through a proxy: an https one through a tunnel, an http
// one of a proxy that speaks HTTP as an absolute-form request. The proxy, and
// nobody behind it, is shown the proof that it asks for. The connection is fresh, so
// that the tunnel is exercised each time, and is not kept. It ends with ctx.
func (p *prober) probe(ctx context.Context, via through, a aim) result {
	began := time.Now()
	to, usable := parseSite(a.url)
	if !usable {
		return unusable
	}
	t := trip{prober: p, via: via, to: to, insecure: a.insecure}
	res, err := t.fetch(ctx) //nolint:bodyclose // it ends with the connection
	latency := time.Since(began)
	if err == nil && a.passes(res.StatusCode) {
		err = t.drain(res)
	}
	t.end()
	switch {
	case err != nil:
		r := explain(err, t.at, advice{proven: via.Proof != nil, named: via.Authorities != nil})
		r.reach = t.reach()
		return r
	case !a.passes(res.StatusCode):
		who := "the probe's URL answered "
		if t.at < tunnelled {
			who = "the probe's URL, or the proxy in its place, answered "
		}
		r := failure(v1alpha1.ReasonUnexpectedStatus, who+statusLine(res.StatusCode)+a.unlisted())
		r.reach = accepted
		return r
	}
	return result{ok: true, reach: accepted, reason: v1alpha1.ReasonProbeSucceeded, message: "the probe passed", latency: latency}
}

// unlisted says why a status does not pass, where it is not plain.
func (a aim) unlisted() string {
	if len(a.expected) > 0 {
		return ", which is not among expectedStatuses"
	}
	return ""
}

// direct fetches the hub's own URL without a proxy. Where that is is the admin's to say,
// and may be where no proxy can be.
func (p *prober) direct(ctx context.Context, a aim) result {
	to, usable := parseSite(a.url)
	if !usable {
		return unusable
	}
	own := *p
	own.allowLocal = true
	t := trip{prober: &own, to: to, insecure: a.insecure}
	res, err := t.fetchDirectly(ctx) //nolint:bodyclose // it ends with the connection
	if err == nil && a.passes(res.StatusCode) {
		err = t.drain(res)
	}
	t.end()
	switch {
	case err != nil:
		r := explain(err, t.at, advice{})
		if r.reason == v1alpha1.ReasonTimeout {
			r.message = "no answer came in time"
		}
		return r
	case !a.passes(res.StatusCode):
		return failure(v1alpha1.ReasonUnexpectedStatus, "it answered "+statusLine(res.StatusCode))
	}
	return result{ok: true}
}

// failure is a failed probe. The names in its message are a Proxy's own, which may be
// long and hold anything where no CRD forbids it; a verdict keeps what a person reads.
func failure(reason, message string) result {
	const most = 300
	message = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, message)
	if len(message) > most {
		message = strings.ToValidUTF8(message[:most], "") + "…"
	}
	return result{reason: reason, message: message}
}
