package pod

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// untouched fails unless the pod and its Secret are as they were.
func (b *bench) untouched(pod *corev1.Pod, secret *corev1.Secret) {
	b.t.Helper()
	if now := b.pod(); now == nil || now.UID != pod.UID || now.ResourceVersion != pod.ResourceVersion {
		b.t.Errorf("the pod was %+v, is %+v", pod.ObjectMeta, now)
	}
	if now := b.secret(secret.Name); now.ResourceVersion != secret.ResourceVersion {
		b.t.Errorf("the Secret was %+v, is %+v", secret.ObjectMeta, now.ObjectMeta)
	}
}

func (b *bench) mustDelete(id string, forced bool) {
	b.t.Helper()
	if err := b.Delete(b.t.Context(), b.request().Ref, id, forced); err != nil {
		b.t.Fatal(err)
	}
}

func TestDeletingOneInstanceLeavesItsNamesakeAlone(t *testing.T) {
	b := newBench(t)
	req := b.request(someFiles)
	b.mustCreate(req)
	pod, secret := b.pod(), b.secret(filesOf(req))
	for _, id := range []string{"another", ""} {
		for _, forced := range []bool{false, true} {
			b.mustDelete(id, forced)
			b.untouched(pod, secret)
		}
	}
}

func TestAnInstanceWithoutANodeIsGoneAtOnce(t *testing.T) {
	b := newBench(t)
	id := b.mustCreate(b.request()).ID
	for range 2 { // gone already is success
		b.mustDelete(id, false)
		_, err := b.Get(t.Context(), b.request().Ref)
		isOf(t, err, "not found")
	}
}

func TestADeadNodesInstanceStaysUntilItIsForced(t *testing.T) {
	b := newBench(t)
	id := b.mustCreate(b.request()).ID
	b.bind(b.pod())
	before := time.Now()
	b.mustDelete(id, false)
	going, err := b.Get(t.Context(), b.request().Ref)
	if err != nil {
		t.Fatal(err)
	}
	// The API server shows whole seconds.
	grace := going.GoneBy.Sub(before)
	if going.State != provider.StateDeleting || going.ID != id || grace < (gracePeriodSeconds-2)*time.Second || grace > patience {
		t.Errorf("%s, gone in %s", going.State, grace)
	}
	if going.Message != "it is on node node-1" {
		t.Errorf("says %q", going.Message)
	}
	b.mustDelete(id, false)
	if again, err := b.Get(t.Context(), b.request().Ref); err != nil || !again.GoneBy.Equal(going.GoneBy) {
		t.Errorf("deleted again it should be gone by %s, %v, not %s", again.GoneBy, err, going.GoneBy)
	}
	b.mustDelete(id, true)
	if b.pod() != nil {
		t.Error("forced, it is still there")
	}
}

func TestForcedAtOnceItDoesNotWaitForItsNode(t *testing.T) {
	b := newBench(t)
	id := b.mustCreate(b.request()).ID
	b.bind(b.pod())
	b.mustDelete(id, true)
	if b.pod() != nil {
		t.Error("it is still there")
	}
}

func TestAFinalizerHoldsAForcedInstanceAndIsNamed(t *testing.T) {
	b := newBench(t)
	id := b.mustCreate(b.request()).ID
	pod := b.pod()
	pod.Finalizers = []string{"example.com/hold"}
	if err := b.admin.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.mustDelete(id, true)
	if inst, err := b.Get(t.Context(), b.request().Ref); err != nil || inst.State != provider.StateDeleting || inst.Message != "it has the finalizers example.com/hold" {
		t.Errorf("%s %q, %v", inst.State, inst.Message, err)
	}
}

// given is what an object is to be once it is nobody's.
func given(o client.Object, owner provider.Owner) client.Object {
	o = o.DeepCopyObject().(client.Object)
	labels := maps.Clone(o.GetLabels())
	for label := range ownership(owner) {
		delete(labels, label)
	}
	o.SetLabels(labels)
	var others []metav1.OwnerReference
	for _, r := range o.GetOwnerReferences() {
		if r.UID != types.UID(owner.ProxyUID) {
			others = append(others, r)
		}
	}
	o.SetOwnerReferences(others)
	return o
}

// same compares but for what every change changes.
func same(a, b client.Object) bool {
	bare := func(o client.Object) client.Object {
		o = o.DeepCopyObject().(client.Object)
		o.SetResourceVersion("")
		o.SetManagedFields(nil)
		o.SetGeneration(0)
		return o
	}
	return reflect.DeepEqual(bare(a), bare(b))
}

// inUse makes a bound instance with files, a label and another owner of
// somebody else's.
func (b *bench) inUse() (req provider.CreateRequest, pod *corev1.Pod, secret *corev1.Secret) {
	b.t.Helper()
	req = b.request(someFiles, withSpec(everything()), func(req *provider.CreateRequest) { req.Spec.Kubernetes.ServiceAccountName = "" })
	b.mustCreate(req)
	b.bind(b.pod())
	for _, o := range []client.Object{b.pod(), b.secret(filesOf(req))} {
		o.SetOwnerReferences(append(o.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"}))
		o.GetLabels()["theirs"] = "too"
		if err := b.admin.Update(b.t.Context(), o); err != nil {
			b.t.Fatal(err)
		}
	}
	return req, b.pod(), b.secret(filesOf(req))
}

func (b *bench) mustAbandon(req provider.CreateRequest, id types.UID) {
	b.t.Helper()
	if err := b.Abandon(b.t.Context(), req.Ref, req.Owner, string(id)); err != nil {
		b.t.Fatal(err)
	}
}

func TestAnAbandonedInstanceAndItsSecretStayAsTheyAreAndAreNobodys(t *testing.T) {
	b := newBench(t)
	req, pod, secret := b.inUse()
	stale := buildFiles(b.request(someFiles, withHash("v2-earlier")))
	b.make(stale)
	for range 2 {
		b.mustAbandon(req, pod.UID)
		if now := b.pod(); !same(now, given(pod, req.Owner)) {
			t.Errorf("the pod is %+v", now)
		}
		if now := b.secret(secret.Name); !same(now, given(secret, req.Owner)) {
			t.Errorf("the Secret is %+v", now)
		}
	}
	if now := b.secret(stale.Name); now.ResourceVersion != stale.ResourceVersion {
		t.Errorf("a Secret that it does not need is nobody's, and stays for ever: %+v", now.ObjectMeta)
	}
	pod, secret = b.pod(), b.secret(secret.Name)
	if err := b.Clear(t.Context(), req.Ref, req.Owner); err != nil {
		t.Fatal(err)
	}
	b.untouched(pod, secret)
	b.has(secret.Name)
}

func TestOnlyTheInstanceThatIsMeantIsAbandoned(t *testing.T) {
	b := newBench(t)
	req, pod, secret := b.inUse()
	if err := b.Abandon(t.Context(), req.Ref, req.Owner, "another"); !errors.Is(err, provider.ErrTransient) {
		t.Errorf("another id: %v, and the Proxy would go", err)
	}
	b.untouched(pod, secret)
	req.Owner.ProxyUID = "another"
	b.mustAbandon(req, pod.UID)
	b.untouched(pod, secret)
}

// A collector goes by the owner reference, whatever the labels say.
func TestAnInstanceThatHasLostALabelIsAbandonedAllTheSame(t *testing.T) {
	b := newBench(t)
	req, pod, _ := b.inUse()
	req.Owner.Hub = "as if it had another hub's label, or none"
	b.mustAbandon(req, pod.UID)
	now := b.pod()
	if now.DeletionTimestamp != nil || now.Labels[v1alpha1.LabelUID] != "" || slices.ContainsFunc(now.OwnerReferences, func(r metav1.OwnerReference) bool { return string(r.UID) == req.Owner.ProxyUID }) {
		t.Errorf("labels %v, owners %v", now.Labels, now.OwnerReferences)
	}
}

func TestAnInstanceThatIsGoneIsAbandonedAndItsSecretCollected(t *testing.T) {
	b := newBench(t)
	req, pod, secret := b.inUse()
	b.remove()
	b.mustAbandon(req, pod.UID)
	if now := b.secret(secret.Name); now.ResourceVersion != secret.ResourceVersion {
		t.Errorf("nobody removes the Secret now: %+v", now.ObjectMeta)
	}
}

func TestASecretThatIsNotOursIsNotGivenAway(t *testing.T) {
	b := newBench(t)
	req, pod, secret := b.inUse()
	secret.Labels[v1alpha1.LabelHub] = "another"
	if err := b.admin.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	b.mustAbandon(req, pod.UID)
	if now := b.secret(secret.Name); now.ResourceVersion != secret.ResourceVersion {
		t.Errorf("the Secret is %+v", now.ObjectMeta)
	}
}

// patching returns the provider with something that happens before it changes
// an object, in the place of the change where it is an error.
func (b *bench) patching(happens func(client.Object) error) Provider {
	p := b.Provider
	p.Writer = interceptor.NewClient(b.hub, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := happens(o); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	})
	return p
}

func TestACrashWhileAnInstanceIsAbandonedLosesNeitherPodNorSecret(t *testing.T) {
	b := newBench(t)
	req, pod, secret := b.inUse()
	crashing := b.patching(func(o client.Object) error {
		if o.GetName() == pod.Name {
			return context.Canceled
		}
		return nil
	})
	isOf(t, crashing.Abandon(t.Context(), req.Ref, req.Owner, string(pod.UID)), "transient", "disown pod")
	b.mustAbandon(req, pod.UID)
	if now := b.pod(); !same(now, given(pod, req.Owner)) {
		t.Errorf("the pod is %+v", now)
	}
	if now := b.secret(secret.Name); !same(now, given(secret, req.Owner)) {
		t.Errorf("the Secret is %+v", now)
	}
}

func TestAnOwnerThatIsAddedMeanwhileIsNotLost(t *testing.T) {
	b := newBench(t)
	req, pod, _ := b.inUse()
	late := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "late", UID: "late"}
	meddling := b.patching(func(o client.Object) error {
		if o.GetName() != pod.Name {
			return nil
		}
		now := b.pod()
		now.OwnerReferences = append(now.OwnerReferences, late)
		return b.admin.Update(t.Context(), now)
	})
	err := meddling.Abandon(t.Context(), req.Ref, req.Owner, string(pod.UID))
	if isOf(t, err, "transient"); !apierrors.IsConflict(err) {
		t.Errorf("%v is no conflict", err)
	}
	b.mustAbandon(req, pod.UID)
	if owners := b.pod().OwnerReferences; len(owners) != 2 || !slices.Contains(owners, late) {
		t.Errorf("owners %+v", owners)
	}
}
