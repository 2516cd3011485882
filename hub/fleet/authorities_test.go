package fleet

import (
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
)

// They go into leases: a file in which a key stands as well must not give it away.
func TestOfAuthoritiesTheCertificatesAreTakenAndNothingElse(t *testing.T) {
	first, err := certs.NewAuthority("one")
	if err != nil {
		t.Fatal(err)
	}
	second, err := certs.NewAuthority("two")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := first.Issue("proxy.example")
	if err != nil {
		t.Fatal(err)
	}
	one, two, key := string(first.PEM), string(second.PEM), string(pair.Key)
	for name, given := range map[string]string{
		"bare": one + two, "with a key": key + one + key + two, "with words": "# ours\n" + one + "\nand theirs\n" + two + "rest",
		"with headers": strings.Replace(one, "\n", "\nPassword: secret\n\n", 1) + two,
	} {
		a, err := ParseAuthorities([]byte(given))
		if err != nil || a.PEM != one+two {
			t.Errorf("%s: %v, %+v", name, err, a)
		}
	}
	for name, given := range map[string]string{"empty": "", "a key": key, "words": "hello", "broken": strings.Replace(one, "MII", "AAA", 1)} {
		if a, err := ParseAuthorities([]byte(given)); err == nil || strings.Contains(err.Error(), "AAA") {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
}
