package pod

import (
	"context"
	"maps"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// filesOf is the name of the Secret of the instance's files.
func filesOf(req provider.CreateRequest) string { return filesName(req.Ref, req.SpecHash) }

// before returns the provider with something that happens before it makes an object.
func (b *bench) before(happens func(client.Object)) Provider {
	p := b.Provider
	p.Writer = interceptor.NewClient(b.hub, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			happens(o)
			return c.Create(ctx, o, opts...)
		},
	})
	return p
}

func TestAnInstanceIsMadeWithItsFilesAndTheUsersSpecStaysAsItIs(t *testing.T) {
	b := newBench(t)
	asked := func() provider.CreateRequest {
		spec := everything()
		spec.ServiceAccountName = "default"
		return b.request(withSpec(spec), withFiles(map[string]string{
			provider.FileUserData: "#cloud-config", provider.FileUsername: "u", provider.FilePassword: "p",
			provider.FileCertificate: "a certificate", provider.FileKey: "its key",
		}))
	}
	req := asked()
	inst := b.mustCreate(req)
	if !reflect.DeepEqual(req, asked()) {
		t.Errorf("what the server has filled in is in the user's spec: %+v", req.Spec.Kubernetes)
	}
	pod := b.pod()
	if inst.ID != string(pod.UID) || inst.Owner != req.Owner || inst.State != provider.StateProvisioning || !inst.CreatedAt.Equal(pod.CreationTimestamp.Time) {
		t.Errorf("made %+v of %+v", inst, pod.ObjectMeta)
	}
	if got, err := b.Get(t.Context(), req.Ref); err != nil || !reflect.DeepEqual(got, instance(pod)) {
		t.Errorf("reads as %+v, %v, want %+v", got, err, instance(pod))
	}
	b.has(filesOf(req))
	for hash, want := range map[string]map[string][]byte{req.SpecHash: req.Files, "v2-other": nil} {
		if files, err := b.Files(t.Context(), req.Ref, hash); err != nil || !reflect.DeepEqual(files, want) {
			t.Errorf("files of %s: %d, %v, want %d", hash, len(files), err, len(want))
		}
	}
}

func TestCreatingTwiceMakesOneInstanceAndOneSecret(t *testing.T) {
	b := newBench(t)
	req := b.request(someFiles)
	b.mustCreate(req)
	pod, secret := b.pod(), b.secret(filesOf(req))
	_, err := b.Create(t.Context(), req)
	isOf(t, err, "exists")
	if again := b.pod(); again.ResourceVersion != pod.ResourceVersion {
		t.Errorf("the pod was %+v, is %+v", pod.ObjectMeta, again.ObjectMeta)
	}
	if again := b.secret(secret.Name); again.ResourceVersion != secret.ResourceVersion {
		t.Errorf("the Secret was %+v, is %+v", secret.ObjectMeta, again.ObjectMeta)
	}
	b.has(secret.Name)
}

func TestACrashBetweenTheSecretAndThePodLosesNothing(t *testing.T) {
	b := newBench(t)
	req := b.request(someFiles)
	ctx, crash := context.WithCancel(t.Context())
	crashing := b.before(func(o client.Object) {
		if _, ok := o.(*corev1.Pod); ok {
			crash()
		}
	})
	_, err := crashing.Create(ctx, req)
	isOf(t, err, "transient", "create pod")
	if b.pod() != nil {
		t.Fatal("there is a pod")
	}
	secret := b.secret(filesOf(req))
	b.mustCreate(req)
	if again := b.secret(filesOf(req)); again.UID != secret.UID || again.ResourceVersion != secret.ResourceVersion {
		t.Errorf("the Secret was made again: %s, %s", secret.UID, again.UID)
	}
	b.has(secret.Name)
}

func TestASecretThatAnotherLeaderHasJustMadeIsUsed(t *testing.T) {
	b := newBench(t)
	req := b.request(someFiles)
	late := b.before(func(o client.Object) {
		if s, ok := o.(*corev1.Secret); ok {
			b.make(s.DeepCopy())
		}
	})
	if _, err := late.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	b.has(filesOf(req))
}

// strangers makes Secrets that are not of this Proxy's instances, each by one
// mark, and returns their names.
func (b *bench) strangers(owner provider.Owner) (names []string) {
	b.t.Helper()
	all := map[string]map[string]string{"users": {}}
	for label := range ownership(owner) {
		without, other := ownership(owner), ownership(owner)
		delete(without, label)
		other[label] = "another"
		all["without-"+label], all["other-"+label] = without, other
	}
	for name, labels := range all {
		labels[v1alpha1.LabelSpecHash] = theHash
		b.make(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name, Labels: labels}, Type: filesType})
		names = append(names, name)
	}
	return names
}

func TestTheNextCreateRemovesTheSecretsOfEarlierInstancesAndNobodyElses(t *testing.T) {
	for name, files := range map[string]func(*provider.CreateRequest){"with files": someFiles, "without": func(*provider.CreateRequest) {}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for _, hash := range []string{"v2-first", "v2-second", "v2-third"} {
				b.make(buildFiles(b.request(someFiles, withHash(hash))))
			}
			want := b.strangers(b.request().Owner)
			req := b.request(files, withHash("v2-third"))
			b.mustCreate(req)
			if len(req.Files) > 0 {
				want = append(want, filesOf(req))
			}
			b.has(want...)
		})
	}
}

func TestClearLeavesNothingOfOursAndEverythingElse(t *testing.T) {
	b := newBench(t)
	for _, hash := range []string{"v2-first", "v2-second"} {
		b.make(buildFiles(b.request(someFiles, withHash(hash))))
	}
	want := b.strangers(b.request().Owner)
	for range 2 { // the second time there is nothing
		if err := b.Clear(t.Context(), b.request().Ref, b.request().Owner); err != nil {
			t.Fatal(err)
		}
		b.has(want...)
	}
	if err := b.Clear(t.Context(), provider.Ref{Namespace: "no-such-namespace", Name: "x"}, b.request().Owner); err != nil {
		t.Errorf("in a namespace that is gone: %v", err)
	}
}

func TestASecretOfThatNameThatWeDidNotMakeStopsTheInstanceAndIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*corev1.Secret){
		"somebody else's":        func(s *corev1.Secret) { s.Labels, s.OwnerReferences, s.Data = nil, nil, map[string][]byte{"a": nil} },
		"ours but for the hub":   func(s *corev1.Secret) { s.Labels[v1alpha1.LabelHub] = "another" },
		"ours but for a label":   func(s *corev1.Secret) { delete(s.Labels, v1alpha1.LabelCluster) },
		"ours with other words":  func(s *corev1.Secret) { s.Data[provider.FileUserData] = []byte("y") },
		"ours with another file": func(s *corev1.Secret) { s.Data["more"] = nil },
		"ours without its file":  func(s *corev1.Secret) { s.Data = nil },
		"ours and not immutable": func(s *corev1.Secret) { s.Immutable = nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			req := b.request(someFiles)
			taken := buildFiles(req)
			change(taken)
			b.make(taken)
			_, err := b.Create(t.Context(), req)
			isOf(t, err, "lasting", filesOf(req), "remove it")
			if now := b.secret(taken.Name); now.ResourceVersion != taken.ResourceVersion || !maps.EqualFunc(now.Data, taken.Data, func(a, b []byte) bool { return string(a) == string(b) }) {
				t.Errorf("it was %+v, is %+v", taken.ObjectMeta, now.ObjectMeta)
			}
			if b.pod() != nil {
				t.Error("there is a pod with files that are not the user's")
			}
		})
	}
}

func TestASecretThatIsGoingIsWaitedFor(t *testing.T) {
	b := newBench(t)
	req := b.request(someFiles)
	going := buildFiles(req)
	going.Finalizers = []string{"example.com/hold"}
	b.make(going)
	if err := b.admin.Delete(t.Context(), going); err != nil {
		t.Fatal(err)
	}
	_, err := b.Create(t.Context(), req)
	isOf(t, err, "transient", "being deleted")
	now := b.secret(going.Name)
	now.Finalizers = nil
	if err := b.admin.Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	b.mustCreate(req)
}

func TestTheContentOfAnInstancesFilesCannotBeChangedUnderIt(t *testing.T) {
	b := newBench(t)
	req := b.request(someFiles)
	b.mustCreate(req)
	s := b.secret(filesOf(req))
	s.Data[provider.FileUserData] = []byte("y")
	if err := b.admin.Update(t.Context(), s); err == nil {
		t.Error("the content was changed")
	}
}
