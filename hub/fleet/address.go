package fleet

import (
	"net/netip"
	"strings"
)

// metadata are addresses outside the link-local ranges at which clouds tell a
// machine its secrets. Sources: the manuals of the clouds, named beside each.
var metadata = map[netip.Addr]bool{
	netip.MustParseAddr("fd00:ec2::254"):   true, // AWS, instance metadata over IPv6
	netip.MustParseAddr("fd00:ec2::23"):    true, // AWS, EKS Pod Identity over IPv6
	netip.MustParseAddr("fd20:ce::254"):    true, // Google, metadata server over IPv6
	netip.MustParseAddr("168.63.129.16"):   true, // Azure, wire server
	netip.MustParseAddr("100.100.100.200"): true, // Alibaba, instance metadata
	netip.MustParseAddr("192.0.0.192"):     true, // Oracle, instance metadata of its first generation
}

// thisNetwork is 0.0.0.0/8, which no other machine has (RFC 791).
var thisNetwork = netip.MustParsePrefix("0.0.0.0/8")

// embeddings are ranges of IPv6 in which an IPv4 address is, from byte at on, that a
// translator or tunnel on the way may send the connection to: NAT64's prefixes (RFC
// 6052, RFC 8215), 6to4 (RFC 3056) and IPv4-compatible addresses (RFC 4291).
var embeddings = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // SIIT (RFC 2765)
	{netip.MustParsePrefix("::/96"), 12},
}

// Forbidden says what kind of address this is if nobody's proxy can be there, and
// a probe sent there would reach the hub itself or what is around it; empty: it
// may be dialled.
func Forbidden(a netip.Addr) string {
	a = a.WithZone("").Unmap()
	switch {
	case a.IsUnspecified(), thisNetwork.Contains(a):
		return "an unspecified address"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsMulticast():
		return "a multicast address"
	case metadata[a]:
		return "a cloud's metadata address"
	}
	for _, e := range embeddings {
		if b := a.As16(); e.prefix.Contains(a) {
			return Forbidden(netip.AddrFrom4([4]byte(b[e.at:])))
		}
	}
	return ""
}

// literal reads a host that is an address. A name that ends in a number is none,
// but some clients read one as an address all the same (127.1, 2130706433).
func literal(host string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(host)
	return a.WithZone("").Unmap(), err == nil
}

// disguised says that a host is an address to some clients and a name to others:
// its last label is a number, decimal or hexadecimal. Source: the URL Standard of
// the WHATWG, "ends in a number".
func disguised(host string) bool {
	if _, is := literal(host); is {
		return false
	}
	host = strings.ToLower(strings.TrimRight(host, "."))
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, is := strings.CutPrefix(last, "0x"); is {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// sameHost is how a host is compared with others: it has several spellings.
func sameHost(host string) string {
	if a, is := literal(host); is {
		return a.String()
	}
	return strings.ToLower(strings.TrimRight(host, "."))
}
