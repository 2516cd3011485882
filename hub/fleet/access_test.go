package fleet

import (
	"testing"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// An edit of the spec must not change how the instance is used that is still there.
func TestAnInstanceIsReachedAsItWasMadeWhateverTheSpecSays(t *testing.T) {
	edited := func(p *v1alpha1.Proxy) {
		p.Spec.Protocol = v1alpha1.ProtocolHTTPS
		p.Spec.TLS = &v1alpha1.TLS{ServerName: "proxy.example", CASecretRef: &v1alpha1.CASecretReference{Name: "ca"}}
		p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "auth"}
		p.Spec.Kubernetes = &v1alpha1.KubernetesSpec{Expose: v1alpha1.ExposeLoadBalancer}
	}
	made := func(a *v1alpha1.Access) func(p *v1alpha1.Proxy) {
		return func(p *v1alpha1.Proxy) { p.Status.Access = a }
	}
	for _, tc := range []struct {
		name       string
		edits      []func(*v1alpha1.Proxy)
		approach   Approach
		podNetwork bool
		lacks      bool
		unknown    bool
	}{
		{"as the spec asks", nil, Approach{Protocol: "http"}, false, false, false},
		{"the spec asks for something else", []func(*v1alpha1.Proxy){edited}, Approach{Protocol: "http"}, false, false, false},
		{"a pod's own address stays one", []func(*v1alpha1.Proxy){edited, made(&v1alpha1.Access{Protocol: "socks5", Expose: "PodIP"})}, Approach{Protocol: "socks5"}, true, false, false},
		{"made as the spec asks", []func(*v1alpha1.Proxy){edited, func(p *v1alpha1.Proxy) { p.Status.Access = p.Spec.AccessTo() }},
			Approach{Protocol: "https", ServerName: "proxy.example"}, false, true, false},
		{"without a name in its certificate", []func(*v1alpha1.Proxy){made(&v1alpha1.Access{Protocol: "https", Expose: "HostPort"})},
			Approach{Protocol: "https", ServerName: "10.0.0.1"}, false, false, false},
		{"it does not show", []func(*v1alpha1.Proxy){edited, made(nil)}, Approach{Protocol: "https", ServerName: "proxy.example"}, false, true, true},
		{"a protocol that is none", []func(*v1alpha1.Proxy){made(&v1alpha1.Access{Protocol: "javascript"})}, Approach{Protocol: "javascript"}, true, false, true},
	} {
		p := FromObject("eu", ready(tc.edits...))
		if got := p.Approach(); !got.Equal(tc.approach) || p.PodNetwork != tc.podNetwork || p.Lacks() != tc.lacks || p.AccessUnknown != tc.unknown {
			t.Errorf("%s: %+v, pod network %v, lacks %v, unknown %v", tc.name, got, p.PodNetwork, p.Lacks(), p.AccessUnknown)
		}
		if p.Probeable() == (tc.lacks || tc.unknown || tc.podNetwork && p.Barred.Kind != NotBarred) {
			t.Errorf("%s: probeable %v", tc.name, p.Probeable())
		}
	}
}

func TestAnExternalProxyIsReachedAsTheSpecSays(t *testing.T) {
	p := FromObject("eu", ready(func(p *v1alpha1.Proxy) {
		p.Spec.Mode, p.Spec.Provider, p.Spec.Endpoint = v1alpha1.ModeExternal, "", &v1alpha1.Endpoint{Host: "10.0.0.1", Port: 3128}
		p.Spec.Protocol, p.Status.Access = v1alpha1.ProtocolSOCKS5, &v1alpha1.Access{Protocol: "http"}
	}))
	if p.Protocol != "socks5" || p.PodNetwork || p.AccessUnknown {
		t.Errorf("%+v", p)
	}
}

func TestAuthoritiesStayWithTheirInstance(t *testing.T) {
	https := func(p *Proxy) { p.Protocol, p.NeedsAuthorities = "https", true }
	known := &Authorities{PEM: "x"}
	f := judging(Options{})
	f.Upsert(running("a", https, healthy))
	if p := f.Get(key("a")); p.Probeable() {
		t.Error("probed before anybody knows who signs its certificate")
	}
	f.SetAuthorities(key("a"), "instance-0", &Authorities{PEM: "late"})
	f.SetAuthorities(key("a"), "instance-1", known)
	f.Upsert(running("a", https, func(p *Proxy) { p.MaxLeases = 1 }))
	if p := f.Get(key("a")); !p.Offerable() || !p.Approach().Authorities.Equal(known) {
		t.Error("they are lost, or another instance's, or cost it its verdict")
	}
	f.SetAuthorities(key("a"), "instance-1", &Authorities{PEM: "y"})
	if p := f.Get(key("a")); !p.Offerable() || p.Approach().Authorities.PEM != "y" {
		t.Error("an edit of them takes it out of service, or is not seen")
	}
	f.Upsert(running("a", https, func(p *Proxy) { p.Instance = "instance-2" }))
	if p := f.Get(key("a")); p.Probeable() {
		t.Error("the next instance is probed before they are read anew")
	}
}

// Nobody has ever spoken SOCKS to what spoke HTTP a moment ago.
func TestAVerdictIsAboutTheProtocolThatWasSpoken(t *testing.T) {
	speaks := func(protocol string) func(*Proxy) {
		return func(p *Proxy) { p.Managed, p.Protocol = false, protocol }
	}
	f := judging(Options{})
	f.Upsert(running("a", speaks("http"), healthy))
	f.Upsert(running("a", speaks("socks5")))
	if p := f.Get(key("a")); p.Offerable() || !p.Probeable() {
		t.Errorf("offerable %v, probeable %v", p.Offerable(), p.Probeable())
	}
	external := func(p *v1alpha1.Proxy) {
		p.Spec.Mode, p.Spec.Endpoint = v1alpha1.ModeExternal, &v1alpha1.Endpoint{Host: "10.0.0.1", Port: 3128}
		p.Generation, p.Status.ObservedGeneration = 2, 2
	}
	if p := FromObject("eu", ready(external)); p.Verdict.Health != Healthy {
		t.Error("a restarted hub has forgotten a verdict")
	}
	if p := FromObject("eu", ready(external, func(p *v1alpha1.Proxy) { p.Generation = 3 })); p.Verdict.Health != Unknown {
		t.Error("a verdict about an earlier spec is taken over")
	}
}

func TestAVerdictOnOneThatIsGoneIsNoneOnItsNamesake(t *testing.T) {
	external := func(p *Proxy) { p.Managed = false }
	f := judging(Options{})
	f.Upsert(running("a", external))
	about := f.Get(key("a")).Subject()
	f.Upsert(running("a", external, func(p *Proxy) { p.UID = "another" }))
	if f.SetVerdict(key("a"), about, Verdict{Health: Healthy}) {
		t.Error("taken")
	}
}
