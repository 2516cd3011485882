package proxy

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
)

// healthy is condition Healthy of the Proxy, as status/reason: message.
func (b *bench) healthy() string {
	c := find(&b.proxy().Status, v1alpha1.ConditionHealthy)
	return string(c.Status) + "/" + c.Reason + ": " + c.Message
}

func (b *bench) isHealthy(begins string, parts ...string) {
	b.t.Helper()
	got := b.healthy()
	for _, part := range append(parts, begins) {
		if !strings.HasPrefix(got, begins) || !strings.Contains(got, part) {
			b.t.Errorf("Healthy is %s, want %s with %q", got, begins, part)
		}
	}
}

func (b *bench) pair() (ca *certs.Authority, pair certs.Pair) {
	b.t.Helper()
	ca, err := certs.NewAuthority("ours")
	if err == nil {
		pair, err = ca.Issue("proxy.example")
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return ca, pair
}

// https has the Proxy speak https with what is in these Secrets; empty: without.
func (b *bench) https(certificate, ca string) {
	b.t.Helper()
	b.edit(func(p *v1alpha1.Proxy) {
		p.Spec.Protocol, p.Spec.TLS = v1alpha1.ProtocolHTTPS, &v1alpha1.TLS{ServerName: "proxy.example"}
		p.Spec.Kubernetes = &v1alpha1.KubernetesSpec{Image: "x:1"}
		if certificate != "" {
			p.Spec.TLS.SecretRef = &v1alpha1.SecretReference{Name: certificate}
		}
		if ca != "" {
			p.Spec.TLS.CASecretRef = &v1alpha1.CASecretReference{Name: ca}
		}
	})
}

// How an instance is reached, and who may be dialled.
var reached = []scenario{
	{"a certificate and its key reach the instance, who has signed it the fleet", func(b *bench) {
		ca, pair := b.pair()
		b.https("px", "px")
		b.secret("px", map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key), "ca.crt": string(ca.PEM) + string(pair.Key)})
		b.ready()
		b.files("tls.crt", string(pair.Certificate), "tls.key", string(pair.Key))
		seen := b.pass.fleet.Get(b.fleetKey())
		if a := seen.Approach(); a.Protocol != "https" || a.ServerName != "proxy.example" || a.Authorities == nil || a.Authorities.PEM != string(ca.PEM) {
			b.t.Errorf("the fleet knows %+v", a)
		}
		want := &v1alpha1.Access{Protocol: v1alpha1.ProtocolHTTPS, Expose: v1alpha1.ExposePodIP, ServerName: "proxy.example", Authorities: true}
		if got := b.proxy().Status.Access; got == nil || *got != *want {
			b.t.Errorf("status.access is %+v, want %+v", got, want)
		}
	}},
	{"a certificate that is none is told, and nothing is asked for", func(b *bench) {
		_, pair := b.pair()
		_, other := b.pair()
		b.https("broken", "")
		b.mustOnce()
		b.shows("Pending False TransientError")
		b.says("certificate: there is no Secret broken in namespace crawl")
		b.secret("broken", map[string]string{"tls.crt": string(pair.Certificate)})
		b.mustOnce()
		b.says("needs the keys tls.crt and tls.key")
		b.secret("broken", map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(other.Key)})
		b.mustOnce()
		b.says("tls.key is not the unencrypted PEM key of the certificate in tls.crt")
		b.secret("broken", map[string]string{"tls.crt": "nonsense", "tls.key": string(other.Key)})
		b.mustOnce()
		b.says("tls.crt holds no PEM certificate")
		if b.provided.creates() > 0 {
			b.t.Error("asked for an instance all the same")
		}
		b.secret("broken", map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key)})
		b.mustOnce()
		b.shows("Provisioning False Provisioning")
	}},
	{"other authorities replace nothing and count from the next pass on; missing ones take no running Proxy away", func(b *bench) {
		ca, pair := b.pair()
		other, _ := b.pair()
		b.https("px", "ca")
		b.secret("px", map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key)})
		b.secret("ca", map[string]string{"ca.crt": string(ca.PEM)})
		b.ready()
		b.secret("ca", map[string]string{"ca.crt": string(other.PEM)})
		b.mustOnce()
		b.shows("Ready True Created")
		if a := b.pass.fleet.Get(b.fleetKey()).Approach().Authorities; a == nil || a.PEM != string(other.PEM) {
			b.t.Error("the fleet goes by the old ones")
		}
		b.unsecret("ca")
		b.mustOnce()
		b.shows("Ready True Created")
		b.says("the instance runs: authorities: there is no Secret ca")
		b.told("Normal Provisioning", "Normal Created", "Normal ProbeSucceeded", "Warning TransientError: the instance runs: authorities: there is no Secret ca")
		b.secret("ca", map[string]string{"ca.crt": "not PEM"})
		b.mustOnce()
		b.says("authorities: ca.crt in Secret ca: there is no PEM certificate in it")
		if b.provided.creates() != 1 {
			b.t.Errorf("%d instances were asked for", b.provided.creates())
		}
	}},
	{"an instance comes up while its authorities are missing, and is probed once they are there", func(b *bench) {
		ca, _ := b.pair()
		b.https("", "later")
		b.mustOnce()
		b.provided.run()
		b.mustOnce()
		b.mustOnce() // the fleet has seen the instance
		b.shows("Probing True Created")
		b.isHealthy("Unknown/Probing", "authorities: there is no Secret later")
		if b.pass.fleet.Get(b.fleetKey()).Probeable() {
			b.t.Error("probed without")
		}
		b.secret("later", map[string]string{"ca.crt": string(ca.PEM)})
		b.mustOnce()
		b.says("the instance runs")
		if !b.pass.fleet.Get(b.fleetKey()).Probeable() {
			b.t.Error("not probed")
		}
	}},
	{"an edit that waits changes nothing of how the instance is reached", func(b *bench) {
		b.ready()
		b.https("absent", "")
		b.mustOnce()
		b.shows("Ready True Created")
		b.says("cannot be replaced")
		if p := b.pass.fleet.Get(b.fleetKey()); !p.Offerable() || p.Approach() != (fleet.Approach{Protocol: "http"}) {
			b.t.Errorf("it is reached by %+v", p.Approach())
		}
	}},
	{"an edit that waits leaves an https instance verified as it is", func(b *bench) {
		ca, pair := b.pair()
		b.https("waits", "waits")
		b.secret("waits", map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key), "ca.crt": string(ca.PEM)})
		b.ready()
		b.edit(func(p *v1alpha1.Proxy) {
			p.Spec.Protocol, p.Spec.TLS, p.Spec.AuthSecretRef = v1alpha1.ProtocolSOCKS5, nil, &v1alpha1.SecretReference{Name: "absent"}
		})
		b.mustOnce()
		b.says("cannot be replaced")
		p := b.pass.fleet.Get(b.fleetKey())
		if a := p.Approach(); !p.Offerable() || a.Protocol != "https" || a.Authorities == nil || a.Authorities.PEM != string(ca.PEM) {
			b.t.Errorf("offerable %v, reached by %+v", p.Offerable(), a)
		}
	}},
	{"while a new certificate waits for its turn, the old one is verified by who has signed that", func(b *bench) {
		ca, pair := b.pair()
		b.https("both", "both")
		b.secret("both", map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key), "ca.crt": string(ca.PEM)})
		b.ready()
		b.takePlace()
		ca2, pair2 := b.pair()
		b.secret("both", map[string]string{"tls.crt": string(pair2.Certificate), "tls.key": string(pair2.Key), "ca.crt": string(ca2.PEM)})
		b.mustOnce()
		b.says("waits to be replaced")
		if a := b.pass.fleet.Get(b.fleetKey()).Approach().Authorities; a == nil || a.PEM != string(ca.PEM) {
			b.t.Error("verified by who has signed the next one")
		}
	}},
	{"an instance whose password nobody knows any more is not leased without one", func(b *bench) {
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "lost"} })
		b.secret("lost", map[string]string{"username": "u", "password": "one"})
		b.ready()
		b.provided.inst.Access = b.proxy().Status.Access
		b.unsecret("lost")
		b.provided.request.Files = nil // somebody has deleted the Secret of its files
		b.restart()
		b.mustOnce()
		if p := b.pass.fleet.Get(b.fleetKey()); p.Probeable() || p.Offerable() {
			b.t.Error("probed or leased")
		}
	}},
	{"a load balancer that has lost its address is dialled by nobody", func(b *bench) {
		b.edit(func(p *v1alpha1.Proxy) {
			p.Spec.Kubernetes = &v1alpha1.KubernetesSpec{Expose: v1alpha1.ExposeLoadBalancer}
		})
		b.mustOnce()
		b.provided.run()
		b.provided.inst.Access, b.provided.inst.Host = b.proxy().Spec.AccessTo(), "203.0.113.7"
		b.mustOnce()
		b.provided.inst.Host, b.provided.inst.State, b.provided.inst.Message = "", provider.StateProvisioning, "the load balancer has no address yet"
		b.mustOnce()
		b.shows("Probing True Created")
		b.says("the instance cannot be reached: the load balancer has no address yet")
		if p := b.pass.fleet.Get(b.fleetKey()); p.Host != "" || p.Probeable() {
			b.t.Errorf("dialled at %q", p.Host)
		}
		b.provided.inst.Host, b.provided.inst.State, b.provided.inst.Message = "203.0.113.8", provider.StateRunning, ""
		b.mustOnce()
		if s := b.proxy().Status; s.Endpoint != "203.0.113.8:3128" {
			b.t.Errorf("endpoint %s", s.Endpoint)
		}
	}},
	{"after a restart an instance tells itself how it is reached", func(b *bench) {
		b.ready()
		b.provided.inst.Access = &v1alpha1.Access{Protocol: v1alpha1.ProtocolHTTP, Expose: v1alpha1.ExposePodIP}
		b.https("absent", "")
		p := b.proxy()
		p.Status.Access = nil
		if err := b.admin.Status().Update(b.t.Context(), p); err != nil {
			b.t.Fatal(err)
		}
		b.restart()
		if b.pass.fleet.Get(b.fleetKey()).Probeable() {
			b.t.Error("probed as the spec says")
		}
		b.mustOnce()
		if p := b.pass.fleet.Get(b.fleetKey()); !p.Probeable() || p.Protocol != "http" {
			b.t.Errorf("probeable %v, %s", p.Probeable(), p.Protocol)
		}
	}},
	{"a pod network that is not said to be routable is told with both ways out, once", func(b *bench) {
		b.pass.fleet.SetRoutable("eu", false)
		b.mustOnce()
		b.provided.run()
		b.mustOnce()
		b.mustOnce() // woken by the fleet
		b.shows("Probing True Created")
		b.isHealthy("Unknown/NotRoutable", "crawl.proxyfleet.dev/pod-network=routable", "spec.kubernetes.expose", "HostPort", "LoadBalancer", "eu")
		b.told("Normal Provisioning", "Normal Created", "Warning NotRoutable: it is not probed")
		b.writes = nil
		b.mustOnce()
		if len(b.writes) > 0 {
			b.t.Errorf("wrote %v", b.writes)
		}
		b.pass.fleet.SetRoutable("eu", true)
		b.mustOnce()
		b.isHealthy("Unknown/Probing: no verdict yet")
	}},
	{"of two with one endpoint each is told of the other", func(b *bench) {
		b.ready()
		rival := *b.pass.fleet.Get(b.fleetKey())
		rival.Cluster, rival.UID, rival.PodNetwork = "us", "other", false
		b.pass.fleet.Upsert(rival)
		b.mustOnce()
		b.shows("Probing True Created")
		b.isHealthy("Unknown/EndpointConflict", rival.Key.String(), "10.0.0.1:3128")
		b.pass.fleet.Delete(rival.Key, rival.UID)
		b.mustOnce()
		b.isHealthy("Unknown/Probing")
	}},
	{"an endpoint that nobody may dial is told", func(b *bench) {
		b.mustOnce()
		b.provided.run()
		b.provided.inst.Host = "169.254.169.254"
		b.mustOnce()
		b.mustOnce()
		b.shows("Unhealthy True Created")
		b.isHealthy("False/EndpointForbidden", "169.254.169.254 is a link-local address", "--allow-local-endpoints")
		b.told("Normal Provisioning", "Normal Created", "Warning EndpointForbidden")
	}},
	{"what the instance lacks is made, and the instance serves on", func(b *bench) {
		b.ready()
		b.provided.inst.Lacks = "its Service is gone"
		res := b.mustOnce()
		b.shows("Ready True Created")
		b.says("the instance runs: its Service is gone")
		if last := b.provided.calls[len(b.provided.calls)-1]; last != "repair" || res.RequeueAfter > 2*pollSoon {
			b.t.Errorf("last call %s, next look in %s", last, res.RequeueAfter)
		}
		b.mustOnce()
		b.says("the instance runs")
		b.provided.inst.Lacks = "its Service is gone" // somebody else's doing
		if res := b.mustOnce(); res.RequeueAfter < pollDrift/2 {
			b.t.Errorf("fought again in %s", res.RequeueAfter)
		}
		b.now = b.now.Add(2 * pollDrift)
		b.provided.fail["repair"] = transient(1)
		for i := range 4 {
			if _, err := b.once(); err == nil {
				b.t.Error("not tried again")
			}
			if i == 0 {
				b.writes, b.events = nil, nil
			}
			b.shows("Ready True Created")
		}
		if len(b.writes)+len(b.events) > 0 {
			b.t.Errorf("a repair that fails the same way again wrote %v and told %q", b.writes, b.events)
		}
	}},
	{"an address that moves is followed, at the port that the instance has", func(b *bench) {
		b.ready()
		b.provided.inst.Host = "lb.example"
		b.mustOnce()
		if s := b.proxy().Status; s.Endpoint != "lb.example:3128" || s.IP != "lb.example" || s.Phase != v1alpha1.PhaseProbing {
			b.t.Errorf("endpoint %s, ip %s, phase %s", s.Endpoint, s.IP, s.Phase)
		}
		b.cloudInit("absent") // an edit that waits
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 })
		b.provided.inst.Host = "2001:db8::1"
		b.mustOnce()
		if s := b.proxy().Status; s.Endpoint != "[2001:db8::1]:3128" {
			b.t.Errorf("endpoint %s", s.Endpoint)
		}
	}},
	{"credentials are as long as a client of the protocol can send", func(b *bench) {
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "long"} })
		b.secret("long", map[string]string{"username": "u", "password": strings.Repeat("x", maxCredential+1)})
		b.mustOnce()
		b.says("longer than the 1024 bytes")
		b.secret("long", map[string]string{"username": "a:b", "password": strings.Repeat("x", maxCredential)})
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.Protocol = v1alpha1.ProtocolSOCKS5 })
		b.mustOnce()
		b.says("longer than the 255 bytes")
		b.secret("long", map[string]string{"username": "a:b", "password": strings.Repeat("x", maxSOCKSCredential)})
		b.mustOnce()
		b.shows("Provisioning False Provisioning")
	}},
}

func TestWhoIsNotDialledIsToldInTheReasonsOfTheContract(t *testing.T) {
	for kind, reason := range map[fleet.BarKind]string{
		fleet.NotRoutable: v1alpha1.ReasonNotRoutable, fleet.EndpointConflict: v1alpha1.ReasonEndpointConflict, fleet.EndpointForbidden: v1alpha1.ReasonEndpointForbidden,
	} {
		p := proxyObject()
		setInstance(p, &provider.Instance{ProviderID: "i", Host: "10.0.0.1"}, true)
		setProvisioned(p, true, v1alpha1.ReasonCreated, "the instance runs")
		seen := seenAs("i", fleet.Verdict{Health: fleet.Healthy, Time: time.Now()})
		seen.Host, seen.Port, seen.Barred = "10.0.0.1", 3128, fleet.Bar{Kind: kind, Detail: "x"}
		finishStatus(p, seen, "i")
		c, ready := find(&p.Status, v1alpha1.ConditionHealthy), find(&p.Status, v1alpha1.ConditionReady)
		if c.Reason != reason || ready.Status != metav1.ConditionFalse || ready.Reason != reason || !barred[reason] {
			t.Errorf("%d: Healthy %s/%s, Ready %s/%s", kind, c.Status, c.Reason, ready.Status, ready.Reason)
		}
	}
}
