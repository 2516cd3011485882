package registry

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// yieldTimeout is how long a spoke waits for a younger one to give a cluster up,
// which takes a moment unless that one's server hangs.
const yieldTimeout = 15 * time.Second

// duplicateError says that a cluster belongs to another spoke.
type duplicateError struct {
	owner string
	local bool // the owner is the hub's own cluster
	// unproven says that the owner is the younger, but shows Proxies that this
	// cluster does not have.
	unproven bool
}

func (e *duplicateError) Error() string {
	switch {
	case e.unproven:
		return fmt.Sprintf("the cluster has the identity of spoke %s, and shows none of its Proxies, or that one is not there to compare: it is not taken for the same; delete one of the two Secrets", e.owner)
	case e.local:
		return fmt.Sprintf("this is the hub's own cluster, which is spoke %s by --local-spoke: delete this Secret, or undo its change", e.owner)
	default:
		return fmt.Sprintf("this cluster is that of spoke %s already, whose Secret is older: delete one of the two Secrets, or undo the change of this one", e.owner)
	}
}

// mayHold says why the spoke may not have the cluster; nil: it may.
func (r *Registry) mayHold(s *spoke, uid string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mayHoldLocked(s, uid)
}

func (r *Registry) mayHoldLocked(s *spoke, uid string) error {
	if r.spokes[s.name] != s {
		return errSevered
	}
	claims := make([]claim, 0, len(r.spokes))
	for _, other := range r.spokes {
		claims = append(claims, other.claim)
	}
	owner := holder(claims, uid)
	if owner == "" || owner == s.name {
		return nil
	}
	duplicate := &duplicateError{owner: owner, local: owner == r.LocalSpoke}
	if !s.claim.to(uid) && s.claim.before(r.spokes[owner].claim) {
		if r.engaged[owner] != nil {
			return nil // to be proven, see publish
		}
		duplicate.unproven = true
	}
	s.waits = uid
	return duplicate
}

// engagedLocked is the connection of another spoke to the cluster, and that spoke.
func (r *Registry) engagedLocked(s *spoke, uid string) (*connection, *spoke) {
	for name, conn := range r.engaged {
		if name != s.name && conn.identity.clusterUID == uid {
			return conn, r.spokes[name]
		}
	}
	return nil, nil
}

// publish makes conn the one that Get answers with, unless the spoke has been
// deregistered meanwhile or its cluster belongs to another one: each Proxy would
// then be two, and leased twice. A younger spoke that has the cluster gives it up
// first.
func (r *Registry) publish(ctx context.Context, s *spoke, conn *connection) error {
	ctx, cancel := context.WithTimeout(ctx, yieldTimeout)
	defer cancel()
	uid := conn.identity.clusterUID
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		err := r.mayHoldLocked(s, uid)
		theirs, younger := r.engagedLocked(s, uid)
		if err == nil && younger == nil {
			r.engaged[s.name], s.claim.wants = conn, uid
		}
		r.mu.Unlock()
		if err == nil && younger == nil {
			return nil
		}
		if err == nil && !conn.isThatOf(theirs) {
			err = &duplicateError{owner: younger.name, unproven: true}
		}
		if err != nil {
			r.want(s, "")
			return err
		}
		r.want(s, uid)
		poke(younger.yield)
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.want(s, "")
			return &preflightError{v1alpha1.ReasonConnecting, fmt.Sprintf("waiting for spoke %s, whose Secret is younger, to give this cluster up", younger.name)}
		}
	}
}

// want states that the spoke is ready to have the cluster; empty: no more.
func (r *Registry) want(s *spoke, uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.claim.wants = uid
}

// hold states that the spoke is the cluster now, and lets go of the one before.
func (r *Registry) hold(s *spoke, uid string) {
	r.mu.Lock()
	before := s.claim.holds
	s.claim.holds, s.claim.wants, s.waits = uid, "", ""
	r.mu.Unlock()
	if before != uid {
		r.released(before)
	}
}

// disown takes a spoke's claim back that it has from a hub before this one, and
// that its Secret has just shown not to be true: it leads elsewhere.
func (r *Registry) disown(s *spoke, uid string) {
	r.mu.Lock()
	untrue := r.engaged[s.name] == nil && s.claim.holds == uid && uid != ""
	if untrue {
		s.claim.holds = ""
	}
	r.mu.Unlock()
	if untrue {
		r.released(uid)
	}
}

// isThatOf says that a connection shows a Proxy that the other one shows, by
// UID, or that the other shows none. An identity is easily claimed: this cannot
// be guessed.
func (c *connection) isThatOf(other *connection) bool {
	var theirs v1alpha1.ProxyList
	if err := other.cluster.GetCache().List(other.ctx, &theirs, client.UnsafeDisableDeepCopy); err != nil {
		return false
	}
	for i := range theirs.Items {
		var mine v1alpha1.Proxy
		known := &theirs.Items[i]
		if c.cluster.GetCache().Get(c.ctx, client.ObjectKeyFromObject(known), &mine) == nil && mine.UID == known.UID {
			return true
		}
	}
	return len(theirs.Items) == 0
}

// released wakes the spokes that wait for a cluster which may be free now.
func (r *Registry) released(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spokes {
		if uid != "" && s.waits == uid {
			poke(s.changed)
		}
	}
}
