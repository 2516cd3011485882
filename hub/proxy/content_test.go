package proxy

import (
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// What an instance is made of beside the spec.
var contents = []scenario{
	{"cloud-init inline reaches the instance", func(b *bench) {
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "#cloud-config"} })
		b.mustOnce()
		b.files("user-data", "#cloud-config")
	}},
	{"cloud-init and credentials of Secrets reach the instance, and the fleet knows the credentials", func(b *bench) {
		b.cloudInit("all")
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "all"} })
		b.secret("all", map[string]string{"user-data": "#!", "username": "u", "password": "p:w d"})
		b.ready()
		b.files("user-data", "#!", "username", "u", "password", "p:w d")
		seen := b.pass.fleet.Get(b.fleetKey())
		if seen.Credentials == nil || *seen.Credentials != (fleet.Credentials{Username: "u", Password: "p:w d"}) {
			b.t.Errorf("the fleet knows other credentials, or none")
		}
		if text := strings.Join(b.events, " "); strings.Contains(text, "p:w d") {
			b.t.Errorf("the password is in an Event: %s", text)
		}
	}},
	{"another key of the Secret", func(b *bench) {
		b.edit(func(p *v1alpha1.Proxy) {
			p.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.SecretKeyReference{Name: "other", Key: "mine"}}
		})
		b.secret("other", map[string]string{"user-data": "no", "mine": "yes"})
		b.mustOnce()
		b.files("user-data", "yes")
	}},
	{"without its Secret nothing is asked for, and what is missing is said", func(b *bench) {
		b.cloudInit("absent")
		if res := b.mustOnce(); res.RequeueAfter == 0 {
			b.t.Error("never looked at again")
		}
		b.shows("Pending False CloudInitError")
		b.says("there is no Secret absent in namespace crawl")
		b.told("Warning CloudInitError: cloud-init: there is no Secret")
		if b.provided.creates() > 0 {
			b.t.Error("asked for an instance all the same")
		}
		b.secret("absent", map[string]string{"userdata": "misspelt"})
		b.mustOnce()
		b.says("Secret absent has no key user-data")
		b.secret("absent", map[string]string{"user-data": "x"})
		b.mustOnce()
		b.shows("Provisioning False Provisioning")
	}},
	{"a Secret that vanishes takes no running Proxy away", func(b *bench) {
		b.cloudInit("vanishes")
		b.secret("vanishes", map[string]string{"user-data": "x"})
		b.ready()
		b.events = nil
		b.unsecret("vanishes")
		for range 3 {
			b.mustOnce()
		}
		b.shows("Ready True Created")
		b.says("the instance runs on", "there is no Secret vanishes")
		b.told("Warning CloudInitError: ")
		b.secret("vanishes", map[string]string{"user-data": "x"})
		b.mustOnce()
		b.says("the instance runs")
		if b.provided.creates() != 1 {
			b.t.Error("replaced although the content is what it was")
		}
	}},
	{"while its Secret cannot be read, what happens to the instance is seen all the same", func(b *bench) {
		b.cloudInit("unreadable")
		b.secret("unreadable", map[string]string{"user-data": "x"})
		b.ready()
		b.pass.secrets = newSecrets(newReferences()).of("eu", "cluster", b.admin, refusing{b.pass.direct})
		b.provided.inst.State = provider.StateStopped
		if _, err := b.once(); err == nil {
			b.t.Error("not tried again")
		}
		b.shows("Replacing False Replacing")
		b.provided.inst = nil
		for range 3 {
			if _, err := b.once(); err == nil {
				b.t.Error("not tried again")
			}
		}
		b.shows("Pending False TransientError")
		b.says("the Secrets that it refers to cannot be read")
	}},
	{"a restart in the middle of a rotation takes no healthy Proxy out of service", func(b *bench) {
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "rotated"} })
		b.secret("rotated", map[string]string{"username": "u", "password": "one"})
		b.ready()
		b.secret("rotated", map[string]string{"username": "u", "password": "two"})
		b.restart()
		b.takePlace()
		b.mustOnce()
		b.shows("Ready True Created")
		b.says("waits to be replaced")
		if c := b.pass.fleet.Get(b.fleetKey()).Credentials; c == nil || c.Password != "one" {
			b.t.Error("the fleet does not know the password that the instance has")
		}
	}},
	{"an edited Secret replaces the instance", func(b *bench) {
		b.cloudInit("edited")
		b.secret("edited", map[string]string{"user-data": "x"})
		b.ready()
		before := b.proxy().Annotations[v1alpha1.AnnotationSpecHash]
		b.secret("edited", map[string]string{"user-data": "y"})
		b.mustOnce()
		b.shows("Replacing False Replacing")
		if after := b.proxy().Annotations[v1alpha1.AnnotationSpecHash]; after == before {
			b.t.Error("the annotation says the same hash")
		}
		b.provided.inst = nil
		b.mustOnce()
		b.files("user-data", "y")
	}},
	{"a key that nobody refers to replaces nothing, and neither does moving the content inline", func(b *bench) {
		b.cloudInit("same")
		b.secret("same", map[string]string{"user-data": "x"})
		b.ready()
		b.secret("same", map[string]string{"user-data": "x", "more": "y"})
		b.mustOnce()
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "x"} })
		b.mustOnce()
		b.shows("Ready True Created")
	}},
	{"content that is too large is refused before anything is replaced", func(b *bench) {
		b.cloudInit("large")
		b.secret("large", map[string]string{"user-data": strings.Repeat("x", 64<<10)})
		b.ready()
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "one-more"} })
		b.secret("one-more", map[string]string{"username": "u", "password": "p"})
		b.mustOnce()
		b.shows("Ready True Created")
		b.says("65538 bytes", "65536")
	}},
	{"credentials that are none are told", func(b *bench) {
		b.edit(func(p *v1alpha1.Proxy) { p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "creds"} })
		b.mustOnce()
		b.shows("Pending False TransientError")
		b.says("there is no Secret creds")
		b.secret("creds", map[string]string{"user": "u"})
		b.mustOnce()
		b.says("no username and no password")
		b.secret("creds", map[string]string{"username": "a:b", "password": "p"})
		b.mustOnce()
		b.says("colon")
		b.told("Warning TransientError: credentials: there is", "Warning TransientError: credentials: Secret creds has no username", "Warning TransientError: credentials: the username")
		b.secret("creds", map[string]string{"username": "a", "password": "p\n"})
		b.mustOnce()
		b.says("line break")
		b.secret("creds", map[string]string{"username": "a", "password": "p"})
		b.mustOnce()
		b.shows("Provisioning False Provisioning")
	}},
}

// refusing reads all but Secrets.
type refusing struct{ client.Reader }

func (r refusing) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, secret := o.(*corev1.Secret); secret {
		return apierrors.NewInternalError(errors.New("the key server is away"))
	}
	return r.Reader.Get(ctx, key, o, opts...)
}

// takePlace has another Proxy of the same Secret take the only place of a rollout.
func (b *bench) takePlace() {
	b.t.Helper()
	other := *b.pass.fleet.Get(b.fleetKey())
	other.Name, other.UID, other.Instance, other.Host = "other", "other", "other", "10.0.0.2"
	b.pass.fleet.Upsert(other)
	b.pass.budget.seen(other.Key, "x", false, false)
	if held := b.pass.budget.replace(other.Key); held != "" {
		b.t.Fatal(held)
	}
	b.pass.fleet.SetWithdrawn(other.Key, "other", true)
}

func (b *bench) unsecret(name string) {
	b.t.Helper()
	if err := b.admin.Delete(b.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: name}}); err != nil {
		b.t.Fatal(err)
	}
}

// files fails unless the instance was asked for with these files: names and contents.
func (b *bench) files(pairs ...string) {
	b.t.Helper()
	got := b.provided.request.Files
	if len(got) != len(pairs)/2 {
		b.t.Errorf("%d files, want %d", len(got), len(pairs)/2)
	}
	for i := 0; i < len(pairs); i += 2 {
		if string(got[pairs[i]]) != pairs[i+1] {
			b.t.Errorf("file %s has %d bytes, want %q", pairs[i], len(got[pairs[i]]), pairs[i+1])
		}
	}
}

func (b *bench) fleetKey() fleet.Key {
	return fleet.Key{Cluster: "eu", Namespace: "crawl", Name: b.key.Name}
}
