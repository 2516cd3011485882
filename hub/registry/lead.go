package registry

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// Every replica of the hub runs the registry, but only the leader has controllers for
// it to tell of spokes, and only the leader writes Spokes.

// everywhere is a part of the hub that runs on every replica.
type everywhere func(context.Context) error

var _ manager.LeaderElectionRunnable = everywhere(nil)

// Start implements manager.Runnable.
func (run everywhere) Start(ctx context.Context) error { return run(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everywhere) NeedLeaderElection() bool { return false }

// Run connects the spokes, and feeds the fleet, from here on. SetUp has the manager
// run it.
func (r *Registry) Run(ctx context.Context) error {
	r.mu.Lock()
	r.began = time.Now()
	r.mu.Unlock()
	close(r.running)
	r.keep(ctx)
	return nil
}

// Start implements multicluster.ProviderRunnable: this hub leads from here on. The
// library's manager runs it as it runs what needs to lead, and only then.
func (r *Registry) Start(ctx context.Context, aware multicluster.Aware) error {
	r.mu.Lock()
	r.aware = aware
	spokes, catchUp := slices.Collect(maps.Values(r.spokes)), r.catchUp
	r.mu.Unlock()
	for _, s := range spokes {
		poke(s.lead)
	}
	if catchUp != nil {
		if err := catchUp(ctx); err != nil {
			return err
		}
	}
	r.keep(ctx)
	return nil
}

// keep keeps the connections up until ctx ends. The manager ends what runs on every
// replica first, and passes that are under way then still need them.
func (r *Registry) keep(ctx context.Context) {
	r.mu.Lock()
	r.needed++
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.needed--; r.needed == 0 {
		r.end()
	}
}

// leads returns the controllers; nil: this hub does not lead.
func (r *Registry) leads() multicluster.Aware {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.aware
}

// outruled says that the leader has found the Secret to lead to another cluster than
// this replica has. Both may have looked at different times, and the Spoke is what
// holds: a replica that had its own opinion would forget the identity that is pinned.
func (r *Registry) outruled(s *spoke, reg registration) bool {
	if reg.pinned == "" || r.leads() != nil {
		return false
	}
	r.mu.Lock()
	if s.claim.holds == "" && s.claim.wants == "" {
		s.claim.holds = reg.pinned
	}
	r.mu.Unlock()
	s.update(func(st *State) { st.pinned(reg.pinned) })
	return !moved(reg.pinned, s.State().ClusterUID, reg.accept)
}

// introduce makes the spoke known to the controllers, if there are any.
func (s *spoke) introduce(ctx context.Context) error {
	aware := s.registry.leads()
	if s.disengage != nil || aware == nil {
		return nil
	}
	var engagement context.Context
	engagement, s.disengage = context.WithCancel(ctx)
	return aware.Engage(engagement, multicluster.ClusterName(s.name), s.standing)
}

// takeOver gives the controllers of a hub that has begun to lead the connection that
// is there.
func (l *loop) takeOver(ctx context.Context) {
	if l.standing == nil {
		return // the next connection is introduced when it is taken
	}
	if err := l.introduce(ctx); err != nil && ctx.Err() == nil {
		l.drop()
		l.closed(unusable(err))
		l.retry.Reset(l.backoff)
	}
}

// catchUp has every Spoke looked at that the one who led before may have left as it
// was, those included whose Secret has gone since.
func (c *secretController) catchUp(ctx context.Context) error {
	var secrets corev1.SecretList
	var spokes v1alpha1.SpokeList
	for _, list := range []client.ObjectList{&secrets, &spokes} {
		if err := c.client.List(ctx, list, client.InNamespace(c.namespace)); err != nil {
			return err
		}
	}
	names := map[string]bool{}
	for i := range secrets.Items {
		names[secrets.Items[i].Name] = true
	}
	for i := range spokes.Items {
		names[spokes.Items[i].Name] = true
	}
	if c.registry.LocalSpoke != "" {
		names[c.registry.LocalSpoke] = true
	}
	for name := range names {
		c.registry.tell(name)
	}
	return nil
}
