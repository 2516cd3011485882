package fleet

import (
	"net"
	"slices"
	"strconv"
)

// Bar is why nobody may dial a Proxy, whatever runs there. A Proxy with one is
// neither probed nor offered, and has no verdict.
type Bar struct {
	Kind BarKind
	// Rival has the same endpoint, with EndpointConflict.
	Rival Key
	// Detail says what is wrong with the endpoint, with EndpointForbidden.
	Detail string
}

// BarKind is the kind of a Bar.
type BarKind uint8

// The kinds. The zero value: it may be dialled.
const (
	NotBarred BarKind = iota
	// NotRoutable: the endpoint is in a pod network that the hub cannot reach, or
	// where somebody else has its address.
	NotRoutable
	// EndpointForbidden: the endpoint is on an address that no proxy can have.
	EndpointForbidden
	// EndpointConflict: another Managed Proxy has the same endpoint.
	EndpointConflict
)

// barAlone is what stands against dialling p by itself, whatever others there are.
func barAlone(p *Proxy, routable, allowLocal bool) Bar {
	switch {
	case p.Host == "":
		return Bar{}
	case p.PodNetwork && !routable:
		return Bar{Kind: NotRoutable}
	case allowLocal:
		return Bar{}
	case disguised(p.Host):
		return Bar{Kind: EndpointForbidden, Detail: p.Host + " is a name that some clients take for an address"}
	}
	if a, is := literal(p.Host); is {
		if kind := Forbidden(a); kind != "" {
			return Bar{Kind: EndpointForbidden, Detail: p.Host + " is " + kind}
		}
	}
	return Bar{}
}

// contends is the endpoint that p, barred like this, claims for itself alone; empty
// for none. That of an External proxy may be several Proxies': with other credentials
// it is another.
func contends(p *Proxy, barred Bar) string {
	if !p.Managed || p.Host == "" || barred.Kind != NotBarred && barred.Kind != EndpointConflict {
		return ""
	}
	return net.JoinHostPort(sameHost(p.Host), strconv.Itoa(p.Port))
}

// rivals are the Managed Proxies of one endpoint, in the order of their keys. Each
// is told of the next, and the last of the first: so whoever comes or goes is news
// to one other, and not to thousands.
type rivals []Key

func (r rivals) with(k Key) rivals {
	if i, there := slices.BinarySearchFunc(r, k, Key.Compare); !there {
		return slices.Insert(r, i, k)
	}
	return r
}

func (r rivals) without(k Key) rivals {
	if i, there := slices.BinarySearchFunc(r, k, Key.Compare); there {
		return slices.Delete(r, i, i+1)
	}
	return r
}

// around returns the one that is told of k, and the one that k is told of; each is k
// itself where there is no other.
func (r rivals) around(k Key) (before, after Key) {
	i, there := slices.BinarySearchFunc(r, k, Key.Compare)
	n := len(r)
	if n == 0 {
		return k, k
	}
	if there {
		return r[(i+n-1)%n], r[(i+1)%n]
	}
	return r[(i+n-1)%n], r[i%n]
}
