package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/yaml"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

var known = &Credentials{"crawler", "p4ssword"}

func guarded(p *Proxy) { p.NeedsCredentials = true }

func with(c *Credentials) func(*Proxy) {
	return func(p *Proxy) { p.NeedsCredentials, p.Credentials = true, c }
}

func TestCredentialsNeverPrint(t *testing.T) {
	proxy := running("a", with(known))
	var printed []string
	for _, v := range []any{
		*known, known, proxy, &proxy, []*Credentials{known}, []Credentials{*known}, map[string]*Proxy{"a": &proxy},
		Change{New: &proxy},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%o", "%U", "%c", "%t", "%e"} {
			printed = append(printed, fmt.Sprintf(verb, v))
		}
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var plain, structured bytes.Buffer
		slog.New(slog.NewTextHandler(&plain, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&structured, nil)).Info("x", "v", v)
		add := func(prefix, args string) { printed = append(printed, prefix+args) }
		for _, log := range []logr.Logger{funcr.New(add, funcr.Options{}), funcr.NewJSON(func(line string) { add("", line) }, funcr.Options{})} {
			log.Info("x", "v", v)
		}
		printed = append(printed, string(data), string(text), plain.String(), structured.String(), fmt.Sprint(v), fmt.Errorf("x: %v", v).Error())
	}
	for _, hidden := range []any{struct{ p Proxy }{proxy}, struct{ c *Credentials }{known}} {
		printed = append(printed, fmt.Sprintf("%v %+v %#v", hidden, hidden, hidden))
	}
	for _, text := range printed {
		lower := strings.ToLower(text)
		for _, secret := range []string{"crawler", "p4ssword", "637261776c6572", "703473", "112 52 115"} { // as text, in hex, in decimal
			if strings.Contains(lower, secret) {
				t.Errorf("%q is in %s", secret, text)
			}
		}
	}
	if got := fmt.Sprintf("%v %+v %#v %s %x", known, known, known, *known, *known); strings.Count(got, redacted) != 5 {
		t.Errorf("printed %s", got)
	}
}

func TestAProxyIsNeitherProbedNorOfferedWhileItsCredentialsAreNotKnown(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a", healthy, guarded)) // as after a restart: the status claims health
	if p := f.Get(key("a")); p.Probeable() || p.Offerable() || p.Phase() != "Probing" {
		t.Errorf("probeable %v, offerable %v, phase %s", p.Probeable(), p.Offerable(), p.Phase())
	}
	f.SetCredentials(key("a"), "instance-1", known)
	if p := f.Get(key("a")); !p.Probeable() || !p.Offerable() || p.Phase() != "Ready" || !p.Proof().Equal(known) {
		t.Errorf("probeable %v, offerable %v, phase %s", p.Probeable(), p.Offerable(), p.Phase())
	}
	f.SetCredentials(key("a"), "instance-1", nil)
	if f.Get(key("a")).Offerable() {
		t.Error("offered though nobody knows the credentials any more")
	}
}

func TestCredentialsAreThoseOfOneInstanceAndNoOther(t *testing.T) {
	for _, tc := range []struct {
		name   string
		second Proxy
		kept   bool
	}{
		{"seen again unchanged", running("a", guarded), true},
		{"attributes edited", running("a", guarded, func(p *Proxy) { p.Attributes = map[string]string{"k": "v"} }), true},
		{"the instance has another address", running("a", guarded, func(p *Proxy) { p.Host = "10.0.0.9" }), true},
		{"instance replaced", running("a", guarded, func(p *Proxy) { p.Instance = "instance-2" }), false},
		{"deleted and made again under the same name", running("a", guarded, func(p *Proxy) { p.UID = "uid-other" }), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := judging(Options{})
			f.Upsert(running("a", guarded))
			f.SetCredentials(key("a"), "instance-1", known)
			f.SetCredentials(key("a"), "instance-0", &Credentials{"late", "late"})
			f.Upsert(tc.second)
			want := known
			if !tc.kept {
				want = nil
			}
			if p := f.Get(key("a")); !p.Proof().Equal(want) || !p.Credentials.Equal(want) {
				t.Errorf("kept: %v, want %v", p.Credentials != nil, tc.kept)
			}
		})
	}
}

func TestAnEditedPasswordLeavesAProxyInService(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a", healthy, guarded))
	f.SetCredentials(key("a"), "instance-1", known)
	f.SetCredentials(key("a"), "instance-1", &Credentials{"crawler", "new"})
	if p := f.Get(key("a")); !p.Offerable() || p.Proof().Password != "new" {
		t.Errorf("offerable %v", p.Offerable())
	}
}

// Whoever resolves the Secret may have seen the edit that asks for it first.
func TestCredentialsThatComeBeforeTheEditAreThereWhenItComes(t *testing.T) {
	external := func(p *Proxy) { p.Managed = false }
	f := judging(Options{})
	f.Upsert(running("a", healthy, external))
	f.SetCredentials(key("a"), "instance-1", known)
	if p := f.Get(key("a")); p.Proof() != nil || !p.Offerable() {
		t.Error("a Proxy that asks for nothing is shown them, or is out of service")
	}
	f.Upsert(running("a", guarded, external))
	if p := f.Get(key("a")); !p.Offerable() || !p.Proof().Equal(known) {
		t.Error("they are lost")
	}
}

func TestAnEditThatAsksForCredentialsTakesNoInstanceOutOfServiceThatHasNone(t *testing.T) {
	asks := func(p *v1alpha1.Proxy) { p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "auth"} }
	f := judging(Options{})
	f.Upsert(FromObject("eu", ready()))
	f.Upsert(FromObject("eu", ready(asks)))
	if p := f.Get(key("a")); !p.Offerable() || p.Proof() != nil {
		t.Error("out of service, although it serves as it did")
	}
	f.Upsert(FromObject("eu", ready(asks, func(p *v1alpha1.Proxy) {
		p.Status.ProviderID, p.Status.Access = "crawl/proxy-uid-a/pod-2", p.Spec.AccessTo()
	})))
	if p := f.Get(key("a")); p.Probeable() {
		t.Error("the next instance is probed without the credentials that it has")
	}
}

func TestFollowersAreToldOfNewCredentialsAlone(t *testing.T) {
	f := judging(Options{})
	f.Upsert(running("a", guarded))
	changes := -1 // Follow tells of what is there
	f.Follow(func(Change) { changes++ })
	f.SetCredentials(key("a"), "instance-1", nil)
	given := *known
	f.SetCredentials(key("a"), "instance-1", &given)
	f.SetCredentials(key("a"), "instance-1", &Credentials{"crawler", "p4ssword"})
	f.Upsert(running("a", guarded))
	given.Password = "changed by its owner"
	f.SetCredentials(key("a"), "another", &given)
	f.SetCredentials(key("b"), "instance-1", &given)
	if changes != 1 || !f.Get(key("a")).Credentials.Equal(known) {
		t.Errorf("%d changes told, want one", changes)
	}
}

func TestFromObjectReadsWhichSecretsTheSpecRefersTo(t *testing.T) {
	auth := func(p *v1alpha1.Proxy) {
		p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "auth"}
		if p.Status.Access.Protocol != "" {
			p.Status.Access = p.Spec.AccessTo()
		}
	}
	cloudInit := func(p *v1alpha1.Proxy) {
		p.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.SecretKeyReference{Name: "init"}}
	}
	external := func(p *v1alpha1.Proxy) {
		p.Spec.Mode, p.Spec.Endpoint = v1alpha1.ModeExternal, &v1alpha1.Endpoint{Host: "10.0.0.1", Port: 3128}
	}
	for _, tc := range []struct {
		name    string
		object  *v1alpha1.Proxy
		secrets []string
		needs   bool
	}{
		{"neither", ready(), nil, false},
		{"credentials", ready(auth), []string{"auth"}, true},
		{"both, sorted", ready(auth, cloudInit), []string{"auth", "init"}, true},
		{"cloud-init", ready(cloudInit), []string{"init"}, false},
		{"external", ready(external, auth), []string{"auth"}, true},
		{"asked for by the spec and not yet by the instance", ready(func(p *v1alpha1.Proxy) { p.Status.Access = &v1alpha1.Access{} }, auth), []string{"auth"}, false},
	} {
		p := FromObject("eu", tc.object)
		if !slices.Equal(p.Secrets, tc.secrets) || (p.Secrets == nil) != (tc.secrets == nil) || p.NeedsCredentials != tc.needs || p.Credentials != nil {
			t.Errorf("%s: secrets %q, needs credentials %v", tc.name, p.Secrets, p.NeedsCredentials)
		}
	}
}
