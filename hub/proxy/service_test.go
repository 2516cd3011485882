package proxy

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/fairqueue"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// readyToReplace is a pass over a Proxy that is Ready and whose instance is of
// another hash, without any API server.
func readyToReplace(t *testing.T) (*pass, *v1alpha1.Proxy, wanted, *provided) {
	t.Helper()
	p := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: "a", UID: "uid-a", Generation: 2}, Spec: managedSpec}
	want := wanted{made: made{uid: "uid-a", spec: &p.Spec}}
	var err error
	if want.hash, err = want.made.hash(); err != nil {
		t.Fatal(err)
	}
	p.Annotations = map[string]string{v1alpha1.AnnotationSpecHash: want.hash, v1alpha1.AnnotationHub: "hub"}
	inst := &provider.Instance{ID: "1", ProviderID: "id-1", Owner: provider.Owner{ProxyUID: "uid-a", Hub: "hub", ClusterUID: "cluster"},
		SpecHash: "v2-00000000000000000000000000000000", State: provider.StateRunning, Host: "10.0.0.1"}
	setInstance(p, inst, true)
	setProvisioned(p, true, v1alpha1.ReasonCreated, "the instance runs")
	setCondition(p, v1alpha1.ConditionHealthy, "True", v1alpha1.ReasonProbeSucceeded, "")
	prov := &provided{inst: inst, fail: map[string]error{}}
	f, b := routableFleet(), newBudget(Limit{})
	s := &pass{spoke: spoke{name: "eu", clusterUID: "cluster", provider: prov}, hubID: "hub", fleet: f, budget: b, pauses: newPauses(), fresh: newFresh(), now: func() time.Time { return noon }}
	s.base = p.Status.DeepCopy()
	return s, p, want, prov
}

func TestARefusedReplacementDoesNotWakeItself(t *testing.T) {
	s, p, want, prov := readyToReplace(t)
	prov.fail["delete"] = fmt.Errorf("a webhook says no: %w", provider.ErrPermanent)
	s.fleet.Upsert(fleet.FromObject("eu", p))
	q := fairqueue.New(fairqueue.Options[mcreconcile.Request]{
		RateLimiter: workqueue.DefaultTypedControllerRateLimiter[mcreconcile.Request](),
		Group:       func(r mcreconcile.Request) string { return r.ClusterName.String() }, Most: 4})
	defer q.ShutDown()
	if err := fleetSource(s.fleet, s.budget, newReferences()).Start(context.Background(), q); err != nil {
		t.Fatal(err)
	}
	if q.Len() != 0 {
		t.Fatalf("%d before", q.Len())
	}
	res, _, err := s.managed(t.Context(), p, want)
	if err != nil || res.RequeueAfter == 0 {
		t.Fatal(res, err)
	}
	if q.Len() != 0 {
		t.Errorf("asked to come again after %s, and put itself into the queue at once: a loop without a pause", res.RequeueAfter)
	}
}

func TestAStoppedInstanceIsNotPutBackIntoService(t *testing.T) {
	s, p, want, prov := readyToReplace(t)
	prov.inst.State = provider.StateStopped
	prov.inst.SpecHash = want.hash
	prov.fail["delete"] = fmt.Errorf("a webhook says no: %w", provider.ErrPermanent)
	s.fleet.Upsert(fleet.FromObject("eu", p))
	if _, _, err := s.managed(t.Context(), p, want); err != nil {
		t.Fatal(err)
	}
	if s.fleet.Get(s.key(p)).Offerable() || provisioned(p) {
		t.Errorf("a stopped instance is offered (%v), status %+v", s.fleet.Get(s.key(p)).Offerable(), find(&p.Status, "Provisioned"))
	}
}

func TestRefusedAfterAHiccupItServesOn(t *testing.T) {
	s, p, want, prov := readyToReplace(t)
	s.fleet.Upsert(fleet.FromObject("eu", p))
	prov.fail["delete"] = fmt.Errorf("webhook has timed out: %w", provider.ErrTransient)
	_, _, _ = s.managed(t.Context(), p, want)
	s.fleet.Upsert(fleet.FromObject("eu", p))
	s.base = p.Status.DeepCopy()
	s.written = nil
	prov.fail["delete"] = fmt.Errorf("a webhook says no: %w", provider.ErrPermanent)
	_, _, _ = s.managed(t.Context(), p, want)
	if s.fleet.Get(s.key(p)).Withdrawn {
		t.Errorf("a running instance stays withdrawn for as long as the deletion is refused: %+v", find(&p.Status, "Provisioned"))
	}
}

// A hub dies after the pod has gone and before the status says so; the next one
// finds no pod and makes the new one in its first pass.
func TestWhatIsMadeInTheFirstPassKeepsItsPlace(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 0)
	for i := range 2 {
		r.show(key(i), 0, func(p *fleet.Proxy) { p.Verdict.Health = fleet.Healthy })
	}
	r.want = 1
	r.budget.seen(key(0), fmt.Sprint(r.want), false, true) // situation: there is no instance
	r.budget.seen(key(0), fmt.Sprint(r.want), true, false) // do: created
	r.show(key(0), 1)                                      // the status is written
	r.sicken(key(0))                                       // a bad edit
	if r.pass(key(1)) {
		t.Error("two of two are out of service, 1 may")
	}
}

func TestAFailedProxyDoesNotHoldUpAllLaterEdits(t *testing.T) {
	r := newRollout(t, Limit{number: 1}, 0)
	r.show(key(0), 0, func(p *fleet.Proxy) {
		p.Provisioned, p.Host, p.Instance, p.StatusPhase = false, "", "", "Failed"
	})
	for i := 1; i < 10; i++ {
		r.show(key(i), 0, func(p *fleet.Proxy) { p.Verdict.Health = fleet.Healthy })
	}
	for range 3 { // all is quiet after the restart
		r.budget.seen(key(0), fmt.Sprint(r.want), false, true) // latched: no instance
		for i := 1; i < 10; i++ {
			r.pass(key(i))
		}
	}
	r.want = 1 // an edit long after the restart
	taken := 0
	for range 3 {
		r.budget.seen(key(0), fmt.Sprint(r.want), false, true)
		for i := 1; i < 10; i++ {
			if r.pass(key(i)) {
				taken++
			}
		}
	}
	if taken == 0 {
		t.Error("one Proxy that has failed for reasons of its own holds up every edit after a restart, for ever")
	}
}

func TestAHiccupDoesNotUndoTheLatch(t *testing.T) {
	s, p, want, prov := readyToReplace(t)
	prov.inst = nil
	setInstance(p, nil, false)
	want.inputs = "inputs"
	p.Status.FailedInputs = want.inputs
	setProvisioned(p, false, v1alpha1.ReasonPermanentError, "no: image is bad")
	s.base = p.Status.DeepCopy()
	prov.fail["get"] = transient(1)
	_, _, _ = s.managed(t.Context(), p, want)
	if p.Status.FailedInputs != want.inputs {
		t.Errorf("forgotten: %+v", find(&p.Status, "Provisioned"))
	}
}

// noPatches refuses them.
type noPatches struct{ client.Client }

func (*noPatches) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "proxies"}, "a", fmt.Errorf("a policy says no"))
}

// The annotation only repeats the hash.
func TestARefusedMarkHoldsNoReplacementUp(t *testing.T) {
	s, p, want, prov := readyToReplace(t)
	p.Annotations[v1alpha1.AnnotationSpecHash] = prov.inst.SpecHash
	s.client = &noPatches{}
	s.fleet.Upsert(fleet.FromObject("eu", p))
	if _, _, err := s.managed(t.Context(), p, want); err != nil || !slices.Contains(prov.calls, "delete") {
		t.Errorf("called %v (%v)", prov.calls, err)
	}
}
