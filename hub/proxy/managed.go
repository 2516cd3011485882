package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// wanted is what a Proxy asks for.
type wanted struct {
	made
	// hash names it; empty where blocked says why it is not known.
	hash        string
	credentials *fleet.Credentials
	// authorities sign the proxy's certificate; unverified says why they are not
	// known, in words for a person.
	authorities *fleet.Authorities
	unverified  string
	blocked     trouble
	// unread says that blocked may go by itself.
	unread bool
	// inputs names all that a creation depends on.
	inputs string
}

// asked is what an instance that is what is wanted asks its clients for, empty
// for nothing.
func (w wanted) asked() *fleet.Credentials {
	if w.credentials == nil {
		return &fleet.Credentials{}
	}
	return w.credentials
}

// want reads what the instance is to be made of. An error may go by itself.
func (s *pass) want(ctx context.Context, p *v1alpha1.Proxy) (wanted, error) {
	want := wanted{made: made{uid: string(p.UID), spec: &p.Spec}}
	files, err := readFiles(ctx, s.secrets, p)
	var content *contentError
	if errors.As(err, &content) {
		want.blocked = trouble{content.reason, content.message, pollDrift}
		return want, nil
	}
	if err != nil {
		// The log has the words; here they would differ every time.
		want.unread = true
		want.blocked = trouble{v1alpha1.ReasonTransientError, "the Secrets that it refers to cannot be read, which will be tried again", pollDrift}
		return want, err
	}
	want.files = files
	if p.Spec.AuthSecretRef != nil {
		want.credentials = &fleet.Credentials{Username: string(files[provider.FileUsername]), Password: string(files[provider.FilePassword])}
	}
	if want.hash, err = want.made.hash(); err != nil {
		return want, err
	}
	want.inputs, err = inputs(p.Generation, want.hash, s.providerConfig, p.Annotations[v1alpha1.AnnotationRetry])
	return want, err
}

// managed looks at the instance, does what the plan says and stages the status.
// gone says that the finalizer was dropped: there is no status to write any more.
func (s *pass) managed(ctx context.Context, p *v1alpha1.Proxy, want wanted) (res ctrl.Result, gone bool, err error) {
	t := target{
		ref:   provider.Ref{Namespace: p.Namespace, Name: provider.NameFromUID(string(p.UID))},
		owner: provider.Owner{ProxyUID: string(p.UID), Hub: s.hubID, ClusterUID: s.clusterUID},
		want:  want,
	}
	if t.inst, err = s.look(ctx, t.ref); err != nil {
		res, err = s.failed(p, step{}, want, err)
		return res, false, err
	}
	now, err := s.situation(p, &t)
	if err == nil {
		err = s.know(ctx, p, &t)
	}
	if err != nil {
		res, err = s.failed(p, step{}, want, err)
		return res, false, err
	}
	next := plan(now)
	s.told = next.told
	if !s.latched {
		p.Status.FailedInputs = ""
	}
	// Staged before it is done: if doing it fails, what is known stands.
	s.stage(p, t, next)
	before := s.seen(p)
	if err := s.do(ctx, p, next.act, &t); err != nil {
		if next.act == actDelete && !now.deleting && refused(err) && t.inst.State == provider.StateRunning {
			return s.servesOn(p, t, before, err), false, nil
		}
		res, err = s.failed(p, next, want, err)
		return res, false, err
	}
	switch next.act {
	case actRelease, actAbandon:
		return ctrl.Result{}, true, nil
	case actCreate:
		s.stage(p, t, next)
	}
	if next.wait == 0 {
		return ctrl.Result{}, false, nil
	}
	return ctrl.Result{RequeueAfter: spread(next.wait)}, false, nil
}

// refused says that nothing has been done, and will not be by trying again soon.
func refused(err error) bool {
	return errors.Is(err, provider.ErrPermanent) || errors.Is(err, provider.ErrLasting) || errors.Is(err, provider.ErrQuotaExceeded)
}

// servesOn puts a running instance back into service whose replacement was
// refused: it is as good as it was a moment ago.
func (s *pass) servesOn(p *v1alpha1.Proxy, t target, before *fleet.Proxy, err error) ctrl.Result {
	if before != nil {
		s.fleet.Restore(s.key(p), t.inst.ProviderID, before.Verdict)
	}
	s.budget.giveBack(s.key(p))
	s.base.DeepCopyInto(&p.Status) // or the conditions' times would move
	setInstance(p, t.inst, false)
	s.setTrouble(p, true, v1alpha1.ReasonCreated, "the instance runs on, and its replacement is refused", err)
	finishStatus(p, s.seen(p), p.Status.ProviderID)
	return ctrl.Result{RequeueAfter: spread(pollDrift)}
}

// away is about a Proxy without an instance: what its status says of one is of
// the past, and offered to nobody from here on.
func (s *pass) away(p *v1alpha1.Proxy, t *target) {
	s.budget.seen(s.key(p), t.want.hash, false, true)
	if seen := s.fleet.Get(s.key(p)); seen != nil && seen.Instance != "" {
		s.fleet.SetWithdrawn(s.key(p), seen.Instance, true)
	}
}

// target is the instance that a pass is about.
type target struct {
	ref   provider.Ref
	owner provider.Owner
	want  wanted
	inst  *provider.Instance // nil: there is none
	fit   fit
	// credentials are those that inst has, empty for none; nil where they are not known.
	credentials *fleet.Credentials
}

func (t target) ours() bool { return t.inst != nil && t.inst.Owner == t.owner }

// look returns the instance, nil when there is none.
func (s *pass) look(ctx context.Context, ref provider.Ref) (*provider.Instance, error) {
	inst, err := s.provider.Get(ctx, ref)
	if errors.Is(err, provider.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &inst, nil
}

// situation gathers what the plan depends on.
func (s *pass) situation(p *v1alpha1.Proxy, t *target) (situation, error) {
	now := situation{
		now: s.now(), deleting: !p.DeletionTimestamp.IsZero(), owner: t.owner, inst: t.inst, blocked: t.want.blocked,
		abandon: p.Annotations[v1alpha1.AnnotationAbandon] == "true",
		force:   p.Annotations[v1alpha1.AnnotationForceDelete] == "true",
	}
	switch {
	case now.deleting:
		t.fit = unknowing // what the spec asks for is nobody's business any more
		return now, nil
	case t.inst == nil:
		now.blocked = s.remembered(p, t.want)
		s.away(p, t)
		return now, nil
	}
	now.repaired = t.inst.Lacks != "" && s.pauses.left(s.pausedAs(p)+"/repair", t.inst.Lacks, s.now()) > 0
	now.seenRunning = provisioned(p) && p.Status.ProviderID == t.inst.ProviderID
	if t.want.hash == "" {
		t.fit, now.fit = unknowing, unknowing
		return now, nil
	}
	var err error
	if t.fit, err = t.want.compare(t.inst.SpecHash); err != nil {
		return now, err
	}
	now.fit = t.fit
	if !t.ours() {
		s.budget.seen(s.key(p), t.want.hash, false, false)
		return now, nil
	}
	going := t.inst.State == provider.StateDeleting || t.inst.State == provider.StateStopped
	s.budget.seen(s.key(p), t.want.hash, t.fit == fits || t.fit == newer, going)
	if t.fit == differs && !going {
		now.held = s.budget.replace(s.key(p))
	}
	return now, nil
}

// know finds out which credentials the instance has. One that is not what is
// wanted any more was made with others: after a restart its own files tell.
func (s *pass) know(ctx context.Context, p *v1alpha1.Proxy, t *target) error {
	if !t.ours() || !p.DeletionTimestamp.IsZero() {
		return nil
	}
	if t.fit == fits {
		t.credentials = t.want.asked()
		return nil
	}
	seen := s.seen(p)
	if seen == nil || seen.Instance != t.inst.ProviderID || seen.Credentials != nil {
		return nil
	}
	files, err := s.provider.Files(ctx, t.ref, t.inst.SpecHash)
	if err != nil {
		return fmt.Errorf("read the instance's credentials: %w", err)
	}
	if had := access(p, t.inst, false); had != nil && had.Authentication && files[provider.FilePassword] == nil {
		return nil // it has some, and nobody can say which
	}
	t.credentials = &fleet.Credentials{Username: string(files[provider.FileUsername]), Password: string(files[provider.FilePassword])}
	return nil
}

// remembered is what an earlier pass has learnt about asking for an instance.
func (s *pass) remembered(p *v1alpha1.Proxy, want wanted) trouble {
	if want.blocked != (trouble{}) {
		if c := s.written; want.unread && c != nil && c.Reason == v1alpha1.ReasonPermanentError && p.Status.FailedInputs != "" {
			// Whether its inputs have changed is not known: what is known stands.
			s.latched = true
			return trouble{c.Reason, c.Message, pollDrift}
		}
		return want.blocked
	}
	if c := s.written; c != nil && c.Reason == v1alpha1.ReasonPermanentError && p.Status.FailedInputs == want.inputs {
		s.latched = true
		return trouble{reason: c.Reason, message: c.Message}
	}
	if left := s.pauses.left(s.pausedAs(p), want.inputs, s.now()); left > 0 && s.written != nil && s.written.Reason == v1alpha1.ReasonQuotaExceeded {
		return trouble{s.written.Reason, s.written.Message, left}
	}
	return trouble{}
}

// stage puts what was seen and what the plan says about it into the status.
func (s *pass) stage(p *v1alpha1.Proxy, t target, next step) {
	inst := t.inst
	if inst != nil && !t.ours() && !next.provisioned {
		inst = nil // somebody else's: its id and address are not this Proxy's
	}
	if t.ours() {
		s.reveals = reveals{inst.ProviderID, t.credentials, s.authorities(p, t)}
	}
	setInstance(p, inst, t.fit == fits)
	message := next.message
	if next.provisioned && next.act != actDelete && t.want.unverified != "" {
		s.told = cmp.Or(s.told, v1alpha1.ReasonTransientError)
		message = withDetail(message, t.want.unverified)
	}
	setProvisioned(p, next.provisioned, next.reason, message)
	finishStatus(p, s.seen(p), p.Status.ProviderID)
}

// authorities are those to go by for the instance; nil: those that are known. One
// that is not what is wanted was signed by those before, if anybody knows them.
func (s *pass) authorities(p *v1alpha1.Proxy, t target) *fleet.Authorities {
	seen := s.fleet.Get(s.key(p))
	if t.fit != fits && seen != nil && seen.Instance == t.inst.ProviderID && seen.Authorities != nil {
		return nil
	}
	return t.want.authorities
}

// do carries the plan out. What it creates is the target's instance then.
func (s *pass) do(ctx context.Context, p *v1alpha1.Proxy, a act, t *target) error {
	logger := log.FromContext(ctx)
	switch a {
	case actCreate:
		if err := s.mark(ctx, p, t.want.hash); err != nil {
			return err
		}
		created, err := s.provider.Create(ctx, s.request(p, t))
		if err != nil {
			return err
		}
		t.inst, t.fit, t.credentials = &created, fits, t.want.asked()
		s.pauses.forget(s.pausedAs(p))
		s.budget.seen(s.key(p), t.want.hash, true, false)
		logger.Info("Created instance", "providerID", created.ProviderID, "specHash", t.want.hash)
	case actRepair:
		if err := s.provider.Repair(ctx, s.request(p, t)); err != nil {
			return err
		}
		// Whoever edits it back is met once a minute, not every five seconds.
		s.pauses.put(s.pausedAs(p)+"/repair", t.inst.Lacks, s.now(), spread(pollDrift))
		logger.Info("Repaired what the instance needs", "providerID", t.inst.ProviderID, "lacked", t.inst.Lacks)
		s.fleet.SetWithdrawn(s.key(p), t.inst.ProviderID, false)
	case actDelete, actForce:
		if err := s.mark(ctx, p, t.want.hash); err != nil {
			return err
		}
		// Out of service first: from here on it is offered to nobody, although
		// the status does not say so yet.
		s.fleet.SetWithdrawn(s.key(p), t.inst.ProviderID, true)
		if err := s.provider.Delete(ctx, t.ref, t.inst.ID, a == actForce); err != nil {
			return err
		}
		logger.Info("Deleting instance", "providerID", t.inst.ProviderID, "forced", a == actForce)
		if a == actForce {
			s.event(p, warning, "InstanceForceDeleted", "instance "+t.inst.ProviderID+" is removed without waiting for its node, as annotated")
		}
	case actRelease:
		if err := s.provider.Clear(ctx, t.ref, t.owner); err != nil {
			return err
		}
		return s.release(ctx, p)
	case actAbandon:
		// In this order: a cluster's collector deletes what refers to an owner
		// that is gone.
		if err := s.provider.Abandon(ctx, t.ref, t.owner, t.inst.ID); err != nil {
			return err
		}
		if err := s.release(ctx, p); err != nil {
			return err
		}
		s.event(p, warning, "InstanceAbandoned", "instance "+t.inst.ProviderID+" is left to itself, as annotated, and is nobody's from here on")
	case actNone:
		if t.inst != nil && t.inst.State != provider.StateDeleting {
			// A deletion that was begun and then not wanted any more.
			s.fleet.SetWithdrawn(s.key(p), t.inst.ProviderID, false)
		}
	}
	return nil
}

// request asks for an instance that is what is wanted.
func (s *pass) request(p *v1alpha1.Proxy, t *target) provider.CreateRequest {
	return provider.CreateRequest{
		Ref: t.ref, Owner: t.owner, SpecHash: t.want.hash, Spoke: s.name, ProxyName: p.Name, Spec: &p.Spec, Files: t.want.files,
	}
}

// failed stages what an error means that came up while step next was done, or
// before there was one.
func (s *pass) failed(p *v1alpha1.Proxy, next step, want wanted, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) || errors.Is(err, provider.ErrExists) {
		return ctrl.Result{RequeueAfter: spread(retrySoon)}, nil
	}
	said := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionProvisioned)
	if next.act == actNone && said != nil && said.Reason == v1alpha1.ReasonPermanentError && p.Status.FailedInputs != "" {
		return ctrl.Result{}, fmt.Errorf("look at the instance: %w", err) // what is known stands
	}
	v := planFailure(failure{
		err: err, doing: next.act, deleting: !p.DeletionTimestamp.IsZero(), provisioned: provisioned(p),
		replacing: said != nil && said.Reason == v1alpha1.ReasonReplacing,
	})
	s.setTrouble(p, v.provisioned, v.reason, v.sentence, err)
	if v.latched {
		p.Status.FailedInputs = want.inputs
	}
	finishStatus(p, s.seen(p), p.Status.ProviderID)
	if v.wait == 0 && !v.latched {
		return ctrl.Result{}, fmt.Errorf("reconcile instance: %w", err)
	}
	wait := spread(v.wait)
	if v.paused {
		s.pauses.put(s.pausedAs(p), want.inputs, s.now(), wait)
	}
	return ctrl.Result{RequeueAfter: wait}, nil
}

// pausedAs names the Proxy among those of all spokes: what a spoke calls a UID
// is its own word.
func (s *pass) pausedAs(p *v1alpha1.Proxy) string { return s.name + "/" + string(p.UID) }
