package rest

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// proxyView is a Proxy on the wire: an item of the list and, with url, the
// Proxy of a lease.
type proxyView struct {
	Cluster       string            `json:"cluster"`
	Namespace     string            `json:"namespace"`
	Name          string            `json:"name"`
	UID           string            `json:"uid"`
	Protocol      string            `json:"protocol"`
	Host          string            `json:"host"`
	Port          int               `json:"port"`
	URL           string            `json:"url,omitempty"`
	Attributes    map[string]string `json:"attributes"`
	Healthy       bool              `json:"healthy"`
	Phase         string            `json:"phase"`
	LatencyMillis int64             `json:"latencyMillis,omitempty"` // none: absent
	ActiveLeases  int               `json:"activeLeases"`
	MaxLeases     int               `json:"maxLeases,omitempty"` // no limit: absent
}

func viewProxy(p *fleet.Proxy, active int) proxyView {
	attributes := p.Attributes
	if attributes == nil {
		attributes = map[string]string{} // {} and not null
	}
	return proxyView{
		Cluster: p.Cluster, Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		Protocol: p.Protocol, Host: p.Host, Port: p.Port, Attributes: attributes,
		Healthy: p.Offerable(), Phase: p.Phase(), LatencyMillis: p.Verdict.LatencyMillis(),
		ActiveLeases: active, MaxLeases: p.MaxLeases,
	}
}

// proxyURL is what a client configures as its proxy. With the credentials in
// it, it goes into a lease and nowhere else.
func proxyURL(p *fleet.Proxy) string {
	scheme := p.Protocol
	if scheme == "socks5" {
		scheme = "socks5h" // names are resolved by the proxy: that is what many clients call it
	}
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(p.Host, strconv.Itoa(p.Port))}
	proof := p.Proof()
	if proof == nil {
		return u.String()
	}
	user := percentEncoded(proof.Username) + ":" + percentEncoded(proof.Password) + "@"
	return strings.Replace(u.String(), "://", "://"+user, 1)
}

// percentEncoded encodes all but letters, digits, '-', '.', '_' and '~'. url.User
// leaves more as it is, rightly; but clients differ in how they take apart a URL
// with a plus or an ampersand before the host, and shells in what they make of it.
func percentEncoded(s string) string {
	// This is what QueryEscape does, except to a space; a plus it encodes.
	return strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
}

// leaseView is a lease on the wire.
type leaseView struct {
	LeaseID    string    `json:"leaseID"`
	Client     string    `json:"client"`
	Target     string    `json:"target"`
	ExpiresAt  string    `json:"expiresAt"`
	TTLSeconds int64     `json:"ttlSeconds"`
	Proxy      proxyView `json:"proxy"`
	TLS        *tlsView  `json:"tls,omitempty"` // https alone
}

// tlsView is what a client verifies an https proxy by.
type tlsView struct {
	ServerName string `json:"serverName"`
	CA         string `json:"ca,omitempty"` // PEM; absent: the authorities that the client's system trusts
}

func viewLease(l lease.Lease) leaseView {
	v := leaseView{
		LeaseID: l.ID, Client: l.Client, Target: l.Target,
		// Whole seconds, cut off: a client that trusts it is early, never late.
		ExpiresAt:  l.ExpiresAt.UTC().Format(time.RFC3339),
		TTLSeconds: int64(l.TTL / time.Second),
		Proxy:      viewProxy(l.Proxy, l.Active),
	}
	v.Proxy.URL = proxyURL(l.Proxy)
	if approach := l.Proxy.Approach(); approach.Protocol == "https" {
		v.TLS = &tlsView{ServerName: approach.ServerName}
		if approach.Authorities != nil {
			v.TLS.CA = approach.Authorities.PEM
		}
	}
	return v
}

// listView is a page of Proxies on the wire.
type listView struct {
	Proxies  []proxyView `json:"proxies"`
	Count    int         `json:"count"`
	Continue string      `json:"continue"`
}

// clusterView is a spoke on the wire.
type clusterView struct {
	Name            string `json:"name"`
	Ready           bool   `json:"ready"`
	Reason          string `json:"reason"`
	Proxies         int    `json:"proxies"`
	Instances       int    `json:"instances"`
	LastContactTime string `json:"lastContactTime,omitempty"` // never: absent
}

// clustersView is all spokes on the wire: there are too few of them for pages.
type clustersView struct {
	Clusters []clusterView `json:"clusters"`
}

// viewClusters orders by name, and leaves the slice that it is given as it is.
func viewClusters(all []Cluster) clustersView {
	views := make([]clusterView, len(all))
	for i, c := range all {
		views[i] = clusterView{Name: c.Name, Ready: c.Ready, Reason: c.Reason, Proxies: c.Proxies, Instances: c.Instances}
		if !c.LastContact.IsZero() {
			views[i].LastContactTime = c.LastContact.UTC().Format(time.RFC3339)
		}
	}
	slices.SortFunc(views, func(a, b clusterView) int { return strings.Compare(a.Name, b.Name) })
	return clustersView{views}
}

// writeJSON sends an answer. It is encoded first, so that it has a length and
// a failure is still a 500.
func writeJSON(w http.ResponseWriter, status int, body any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // this is not a web page, and URLs have &
	if err := e.Encode(body); err != nil {
		panic(err) // a type that cannot be encoded is a bug
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client is gone: nothing to be done
}
