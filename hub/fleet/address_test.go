package fleet

import (
	"net/netip"
	"testing"
)

func TestNobodyIsSentToAnAddressThatNoProxyCanHave(t *testing.T) {
	for address, kind := range map[string]string{
		"127.0.0.1": "a loopback address", "127.255.255.254": "a loopback address", "::1": "a loopback address",
		"169.254.169.254": "a link-local address", "169.254.0.1": "a link-local address", "fe80::1": "a link-local address", "fe80::1%eth0": "a link-local address",
		"224.0.0.1": "a multicast address", "239.255.255.255": "a multicast address", "ff02::1": "a multicast address", "ff0e::1": "a multicast address",
		"0.0.0.0": "an unspecified address", "0.1.2.3": "an unspecified address", "::": "an unspecified address",
		"fd00:ec2::254": "a cloud's metadata address", "168.63.129.16": "a cloud's metadata address",
		"100.100.100.200": "a cloud's metadata address", "192.0.0.192": "a cloud's metadata address", "fd20:ce::254": "a cloud's metadata address",
		// The same in IPv6's clothes.
		"::ffff:127.0.0.1": "a loopback address", "::ffff:169.254.169.254": "a link-local address", "::ffff:0.0.0.0": "an unspecified address",
		"64:ff9b::a9fe:a9fe": "a link-local address", "64:ff9b::7f00:1": "a loopback address", "::a9fe:a9fe": "a link-local address",
		"64:ff9b::a83f:8110": "a cloud's metadata address", "64:ff9b:1::a9fe:a9fe": "a link-local address", "2002:a9fe:a9fe::1": "a link-local address", "::ffff:0:a9fe:a9fe": "a link-local address",

		"10.0.0.1": "", "192.168.1.1": "", "172.16.0.1": "", "100.64.0.1": "", "203.0.113.7": "", "8.8.8.8": "", "169.253.0.1": "", "126.255.255.255": "",
		"2001:db8::1": "", "fd00::1": "", "64:ff9b::808:808": "", "::ffff:10.0.0.1": "",
	} {
		if got := Forbidden(netip.MustParseAddr(address)); got != kind {
			t.Errorf("%s is %q, want %q", address, got, kind)
		}
	}
}

func TestAHostIsComparedByWhatItMeans(t *testing.T) {
	for host, same := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:DB8::1": "2001:db8::1", "2001:db8:0:0:0:0:0:1": "2001:db8::1",
		"LB.Example.": "lb.example", "lb.example": "lb.example",
	} {
		if got := sameHost(host); got != same {
			t.Errorf("%s compares as %q, want %q", host, got, same)
		}
	}
}

// What the hub's resolver takes for a name, a crawler's may take for an address.
func TestAnAddressThatIsWrittenLikeANameIsFound(t *testing.T) {
	for host, want := range map[string]bool{
		"2130706433": true, "127.1": true, "0x7f.1": true, "0x7f000001": true, "017700000001": true, "127.0.0.1.": true, "evil.0x7f": true, "1.2.3.4.5": true, "0X7F000001": true,
		"127.0.0.1": false, "::1": false, "proxy.example": false, "1.example": false, "proxy1": false, "0xproxy.example": false, "localhost": false,
	} {
		if got := disguised(host); got != want {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
}
