package lease_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

func TestSpellingsOfOneSiteAreOneTarget(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "",
		"   ":                                "",
		"example.com":                        "example.com",
		" Example.COM ":                      "example.com",
		"example.com.":                       "example.com",
		"EXAMPLE.com:8443":                   "example.com",
		"example.com:":                       "example.com",
		"example.com.:443":                   "example.com",
		"https://Example.com:8443/a/b?c=d#e": "example.com",
		"https://example.com?next=http://x":  "example.com",
		"http://user:p@ss@example.com/":      "example.com",
		"//example.com/x":                    "example.com",
		"example.com/http://other.org":       "example.com",
		`https://example.com\@evil.org`:      "example.com",
		"localhost":                          "localhost",
		"my_site":                            "my_site",
		"10.0.0.1:80":                        "10.0.0.1",
		"http://[2001:DB8::1]:8080/x":        "2001:db8::1",
		"2001:db8:0::1":                      "2001:db8::1",
		"[fe80::1%25eth0]":                   "fe80::1",
		"BÜCHER.example":                     "xn--bcher-kva.example",
		"https://bücher.example./x":          "xn--bcher-kva.example",
		"例え。テスト":                             "xn--r8jz45g.xn--zckzah",
		"xn--bcher-kva.example":              "xn--bcher-kva.example",
	} {
		got, err := lease.NormalizeTarget(in)
		if err != nil || got != want {
			t.Errorf("NormalizeTarget(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestTargetsThatNameNoSiteAreRefused(t *testing.T) {
	for _, in := range []string{
		"https://", "://", "/path", ":80", ".", "a..b", ".a", "a b", "a\x00b", "a\nb", "\xff", "%41",
		"example.com:http", "a:1:2", "[::1", "[::1]x", "[example.com]", "*.example.com", "mailto:me",
		"http:example.com", strings.Repeat("a", 254),
	} {
		got, err := lease.NormalizeTarget(in)
		var invalid *lease.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "target" || got != "" {
			t.Errorf("NormalizeTarget(%q) = %q, %v; want an InvalidError about target", in, got, err)
		}
	}
}

func TestNormalisingTwiceChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.OneOf(
			rapid.String(),
			rapid.StringMatching(`(HTTPS?://)?[A-Za-zÀ-ſ0-9._-]{0,12}(:[0-9]{0,4})?(/.{0,5})?`),
			rapid.StringMatching(`\[?[0-9a-fA-F:.%]{0,16}\]?(:[0-9]{0,3})?`),
		).Draw(t, "target")
		once, err := lease.NormalizeTarget(in)
		if err != nil {
			return
		}
		if twice, err := lease.NormalizeTarget(once); err != nil || twice != once {
			t.Fatalf("%q became %q and then %q, %v", in, once, twice, err)
		}
	})
}
