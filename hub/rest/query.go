package rest

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
)

const (
	defaultLimit = 500
	maxLimit     = 5000
	attrPrefix   = "attr."
)

// listQuery is what GET /v1/proxies is asked for.
type listQuery struct {
	attributes         map[string]string
	cluster, namespace string
	healthy            *bool
	limit              int
	// after is the last Proxy of the page before; the zero Key comes before all.
	after fleet.Key
}

func (q *listQuery) matches(p *fleet.Proxy) bool {
	return (q.cluster == "" || q.cluster == p.Cluster) &&
		(q.namespace == "" || q.namespace == p.Namespace) &&
		(q.healthy == nil || *q.healthy == p.Offerable()) &&
		lease.Selects(q.attributes, p.Attributes)
}

// appendPage is the page on the wire. It goes on after a key, not a number, so Proxies
// that come and go between two pages neither repeat nor hide others. list visits the
// Proxies after a key in order.
func (q *listQuery) appendPage(b []byte, list func(after fleet.Key, visit func(p *fleet.Proxy, active int) (more bool))) []byte {
	b = append(b, `{"proxies":[`...)
	count, next := 0, ""
	var last fleet.Key
	list(q.after, func(p *fleet.Proxy, active int) bool {
		switch {
		case !q.matches(p):
			return true
		case count == q.limit:
			next = encodeToken(last)
			return false
		case count > 0:
			b = append(b, ',')
		}
		b = appendProxy(b, p, p, active, false)
		count, last = count+1, p.Key
		return true
	})
	b = appendNumber(b, `],"count":`, count)
	b = appendText(b, `,"continue":`, next)
	return append(b, '}')
}

// parseQuery splits a query into parameters that are each given once.
func parseQuery(raw string) (map[string]string, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, invalid("the query is not well-formed: percent-encode what is not a letter or digit")
	}
	single := make(map[string]string, len(values))
	var twice []string
	for name, all := range values {
		if !utf8.ValidString(name) || !utf8.ValidString(all[0]) {
			return nil, invalid("the query is not UTF-8")
		}
		if len(all) > 1 {
			twice = append(twice, name)
		}
		single[name] = all[0]
	}
	if len(twice) > 0 {
		return nil, invalid("query parameter %s is given more than once: write it once", quoted(twice))
	}
	return single, nil
}

// noQuery is for the calls that take no query parameters.
func noQuery(raw string) error {
	if raw == "" {
		return nil
	}
	given, err := parseQuery(raw)
	if err != nil || len(given) == 0 {
		return err
	}
	return invalid("unknown query parameter %s: this call takes none", quoted(slices.Collect(maps.Keys(given))))
}

func parseListQuery(raw string) (*listQuery, error) {
	given, err := parseQuery(raw)
	if err != nil {
		return nil, err
	}
	q := &listQuery{limit: defaultLimit, attributes: map[string]string{}}
	var unknown []string
	for name := range given {
		if !slices.Contains([]string{"cluster", "namespace", "healthy", "limit", "continue"}, name) && !strings.HasPrefix(name, attrPrefix) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return nil, invalid("unknown query parameter %s: this call takes attr.KEY, cluster, namespace, healthy, limit and continue", quoted(unknown))
	}
	for _, name := range slices.Sorted(maps.Keys(given)) { // the same mistakes read the same
		if err := q.set(name, given[name]); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// set takes one parameter. An empty cluster, namespace or continue is as good
// as none, so that a client may always send them.
func (q *listQuery) set(name, value string) error {
	switch name {
	case "cluster":
		q.cluster = value
	case "namespace":
		q.namespace = value
	case "healthy":
		if value != "true" && value != "false" {
			return invalid("healthy must be true or false")
		}
		healthy := value == "true"
		q.healthy = &healthy
	case "limit":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxLimit || value[0] == '+' {
			return invalid("limit must be a whole number from 1 to %d", maxLimit)
		}
		q.limit = n
	case "continue":
		after, ok := decodeToken(value)
		if !ok {
			return invalid("continue must be what an answer before gave as continue: leave it out to start from the beginning")
		}
		q.after = after
	default:
		key := strings.TrimPrefix(name, attrPrefix)
		if err := lease.CheckAttribute("attr", key, value); err != nil {
			return err
		}
		q.attributes[key] = value
	}
	return nil
}

// encodeToken makes the continue token of a page that ended with this Proxy.
// It is opaque so that clients pass it on and build nothing on what is in it.
func encodeToken(last fleet.Key) string {
	data, _ := json.Marshal([]string{last.Cluster, last.Namespace, last.Name}) // strings cannot fail
	return base64.RawURLEncoding.EncodeToString(data)
}

func decodeToken(token string) (fleet.Key, bool) {
	if token == "" {
		return fleet.Key{}, true
	}
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return fleet.Key{}, false
	}
	var parts []string
	if json.Unmarshal(data, &parts) != nil || len(parts) != 3 {
		return fleet.Key{}, false
	}
	return fleet.Key{Cluster: parts[0], Namespace: parts[1], Name: parts[2]}, true
}
