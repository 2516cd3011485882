package lease

import (
	"hash/maphash"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// query is whom a request considers.
type query struct {
	cluster  string // empty: any
	selector map[string]string
	// text is the same for all that ask for the same.
	text string
	// marks are those that every slot has that it matches.
	marks marks
}

// newQuery refuses a selector that no Proxy can match. The error is an *InvalidError.
func newQuery(cluster string, selector map[string]string) (query, error) {
	keys, err := sortedKeys(selector)
	if err != nil || len(keys) == 0 && cluster == "" {
		return query{}, err
	}
	q := query{cluster: cluster, selector: selector}
	// A zero byte, which no attribute has, ends a pair. A cluster may be any text, and so
	// comes last.
	var room [128]byte
	text := room[:0]
	for _, key := range keys {
		text = append(append(text, key...), '=')
		text = append(append(text, selector[key]...), 0)
		q.marks |= mark(key, selector[key])
	}
	if cluster != "" {
		q.marks |= mark("", cluster)
	}
	q.text = string(append(append(text, 0), cluster...))
	return q, nil
}

func (q *query) matchesAll() bool { return q.text == "" }

// matches says that the slot's Proxy is considered. Nearly all that are not lack one of
// the marks, so that a new selector can be held against a large fleet.
func (q *query) matches(sl *slot) bool {
	return sl.marks&q.marks == q.marks &&
		(q.cluster == "" || q.cluster == sl.proxy.Cluster) && Selects(q.selector, sl.proxy.Attributes)
}

// marks are a bit for each attribute and for the cluster, of which some have the same.
type marks uint64

func marksOf(p *fleet.Proxy) marks {
	m := mark("", p.Cluster) // no attribute has an empty key
	for key, value := range p.Attributes {
		m |= mark(key, value)
	}
	return m
}

var markSeed = maphash.MakeSeed()

func mark(key, value string) marks {
	return 1 << ((maphash.String(markSeed, key)*31 + maphash.String(markSeed, value)) % 64)
}
