package rest

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// Answers are appended, member by member: each function here writes one object of the
// contract, and name is what comes before a value, with its comma, quotes and colon.

func appendText(b []byte, name, value string) []byte {
	// The error is that of invalid UTF-8, which becomes U+FFFD; nobody is helped by
	// getting nothing.
	b, _ = jsontext.AppendQuote(append(b, name...), value)
	return b
}

func appendNumber[N int | int64](b []byte, name string, value N) []byte {
	return strconv.AppendInt(append(b, name...), int64(value), 10)
}

func appendFlag(b []byte, name string, value bool) []byte {
	return strconv.AppendBool(append(b, name...), value)
}

// appendTime cuts off what is beyond whole seconds: a client that trusts the end of a
// lease is early, never late.
func appendTime(b []byte, name string, value time.Time) []byte {
	b = append(append(b, name...), '"')
	b = value.UTC().AppendFormat(b, time.RFC3339)
	return append(b, '"')
}

// appendLease is a lease on the wire.
func appendLease(b []byte, l *lease.Lease) []byte {
	b = appendText(b, `{"leaseID":`, l.ID)
	b = appendText(b, `,"client":`, l.Client)
	b = appendText(b, `,"target":`, l.Target)
	b = appendTime(b, `,"expiresAt":`, l.ExpiresAt)
	b = appendNumber(b, `,"ttlSeconds":`, int64(l.TTL/time.Second))
	b = append(b, `,"proxy":`...)
	b = appendProxy(b, l.Proxy, l.Now, l.Active, true)
	if approach := l.Proxy.Approach(); approach.Protocol == "https" {
		b = appendText(b, `,"tls":{"serverName":`, approach.ServerName)
		if approach.Authorities != nil { // absent: those that the client's system trusts
			b = appendText(b, `,"ca":`, approach.Authorities.PEM)
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

// appendProxy is a Proxy on the wire: an item of the list or, with its url, the Proxy
// of a lease. at says how it is reached, now how it is, nil when it has left the fleet.
func appendProxy(b []byte, at, now *fleet.Proxy, active int, leased bool) []byte {
	known := now
	if now == nil {
		known = at
	}
	b = appendText(b, `{"cluster":`, at.Cluster)
	b = appendText(b, `,"namespace":`, at.Namespace)
	b = appendText(b, `,"name":`, at.Name)
	b = appendText(b, `,"uid":`, at.UID)
	b = appendText(b, `,"protocol":`, at.Protocol)
	b = appendText(b, `,"host":`, at.Host)
	b = appendNumber(b, `,"port":`, at.Port)
	if leased {
		b = append(b, `,"url":`...)
		b = appendURL(b, at)
	}
	b = appendAttributes(b, known.Attributes)
	if now != nil {
		b = appendFlag(b, `,"healthy":`, now.Offerable())
		b = appendText(b, `,"phase":`, now.Phase())
		if latency := now.Verdict.LatencyMillis(); latency > 0 { // none: absent
			b = appendNumber(b, `,"latencyMillis":`, latency)
		}
	} else {
		b = append(b, `,"healthy":false,"phase":"Gone"`...)
	}
	b = appendNumber(b, `,"activeLeases":`, active)
	if known.MaxLeases > 0 { // no limit: absent
		b = appendNumber(b, `,"maxLeases":`, known.MaxLeases)
	}
	return append(b, '}')
}

// appendAttributes goes by sorted keys, so that the same Proxy reads the same.
func appendAttributes(b []byte, attributes map[string]string) []byte {
	b = append(b, `,"attributes":{`...)
	var room [32]string // as many as there may be
	keys := room[:0]
	for key := range attributes {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, "", key)
		b = appendText(b, ":", attributes[key])
	}
	return append(b, '}')
}

// appendURL is what a client configures as its proxy, as a JSON string. With the
// credentials in it, it goes into a lease and nowhere else.
func appendURL(b []byte, p *fleet.Proxy) []byte {
	scheme := p.Protocol
	if scheme == "socks5" {
		scheme = "socks5h" // names are resolved by the proxy: that is what many clients call it
	}
	var room [128]byte
	u := append(append(room[:0], scheme...), "://"...)
	if proof := p.Proof(); proof != nil {
		u = append(append(u, percentEncoded(proof.Username)...), ':')
		u = append(append(u, percentEncoded(proof.Password)...), '@')
	}
	if strings.Contains(p.Host, ":") { // IPv6; a host is nothing but a name or an address
		u = append(append(append(u, '['), p.Host...), ']')
	} else {
		u = append(u, p.Host...)
	}
	u = strconv.AppendInt(append(u, ':'), int64(p.Port), 10)
	b, _ = jsontext.AppendQuote(b, u) // ASCII cannot fail
	return b
}

// percentEncoded encodes all but letters, digits, '-', '.', '_' and '~'. url.User
// leaves more as it is, rightly; but clients differ in how they take apart a URL
// with a plus or an ampersand before the host, and shells in what they make of it.
func percentEncoded(s string) string {
	// This is what QueryEscape does, except to a space; a plus it encodes.
	return strings.ReplaceAll(url.QueryEscape(s), "+", "%20")
}

// appendClusters is all spokes on the wire, by name: there are too few of them for
// pages. It leaves the slice that it is given as it is.
func appendClusters(b []byte, all []Cluster) []byte {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Cluster) int { return strings.Compare(a.Name, b.Name) })
	b = append(b, `{"clusters":[`...)
	for i, c := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, `{"name":`, c.Name)
		b = appendFlag(b, `,"ready":`, c.Ready)
		b = appendText(b, `,"reason":`, c.Reason)
		b = appendNumber(b, `,"proxies":`, c.Proxies)
		b = appendNumber(b, `,"instances":`, c.Instances)
		if !c.LastContact.IsZero() { // never: absent
			b = appendTime(b, `,"lastContactTime":`, c.LastContact)
		}
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

// appendError is what every error looks like on the wire.
func appendError(b []byte, e *requestError) []byte {
	b = appendText(b, `{"error":`, e.code)
	b = appendText(b, `,"message":`, e.message)
	return append(b, '}')
}

// appendNoMatch adds why nothing could be leased.
func appendNoMatch(b []byte, e *lease.NoMatchError) []byte {
	b = appendText(b, `{"error":"no_match","message":`, e.Error())
	b = appendNumber(b, `,"considered":`, e.Considered)
	b = appendNumber(b, `,"unhealthy":`, e.Unhealthy)
	b = appendNumber(b, `,"atCapacity":`, e.AtCapacity)
	b = appendNumber(b, `,"inCooldown":`, e.InCooldown)
	return append(b, '}')
}
