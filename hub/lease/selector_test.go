package lease_test

import (
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

func TestAttributesThatNoProxyCanHaveAreRefused(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, tc := range []struct {
		key, value string
		ok         bool
	}{
		{"region", "eu", true},
		{"a", "A", true},
		{"a.b_c-d9", "-._", true},
		{long[:63], long[:63], true},
		{"Region", "eu", false},
		{"", "eu", false},
		{"-a", "eu", false},
		{"a-", "eu", false},
		{long, "eu", false},
		{"region", "", false},
		{"region", long, false},
		{"region", "eu west", false},
		{"region\n", "eu", false},
		{"region", "eu\n", false},
		{"région", "eu", false},
		{"region", "\xff", false},
	} {
		err := lease.CheckAttribute("selector", tc.key, tc.value)
		if (err == nil) != tc.ok {
			t.Errorf("CheckAttribute(%q, %q) = %v", tc.key, tc.value, err)
		}
		if err != nil && !strings.Contains(err.Error(), "write 1 to 63") {
			t.Errorf("%q=%q: %q does not say what to write", tc.key, tc.value, err)
		}
	}
}

func TestASelectorNeedsEveryPair(t *testing.T) {
	have := map[string]string{"region": "eu", "tier": "dc"}
	for _, tc := range []struct {
		name     string
		selector map[string]string
		want     bool
	}{
		{"none selects all", nil, true},
		{"one pair", map[string]string{"region": "eu"}, true},
		{"all pairs", map[string]string{"region": "eu", "tier": "dc"}, true},
		{"another value", map[string]string{"region": "us"}, false},
		{"one of two differs", map[string]string{"region": "eu", "tier": "isp"}, false},
		{"a key it lacks", map[string]string{"zone": "a"}, false},
	} {
		if got := lease.Selects(tc.selector, have); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
