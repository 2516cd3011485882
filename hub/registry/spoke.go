package registry

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

const (
	// A spoke that does not connect is tried again after backoffFirst, then
	// twice that, and so on up to backoffCap.
	backoffFirst, backoffCap = time.Second, 30 * time.Second
	// A connected spoke is contacted every checkInterval, and every reviewEvery
	// contacts the whole preflight is repeated: rights and the CRD can go, too.
	checkInterval = 10 * time.Second
	reviewEvery   = 6
)

// credential is what a vetted registration leads to.
type credential struct {
	config *rest.Config
	// hash is that of the kubeconfig, key tells one credential from another.
	hash, key string
	// namespaces are the only ones that may be read; none: all.
	namespaces []string
	// local says that this is the hub's own cluster.
	local bool
	// routable says that addresses of its pods are the hub's to dial; guarded by
	// the spoke's mu.
	routable bool
}

// server is the URL of the API server.
func (c *credential) server() string { return strings.TrimSuffix(c.config.Host, "/") }

// spoke is one registered cluster. Its goroutine (run) owns the fields of the
// second group; those of the third are guarded by mu, the last two by the
// registry's.
type spoke struct {
	name     string
	registry *Registry
	log      logr.Logger
	secret   string    // the UID of the Secret that this registration belongs to
	since    time.Time // when it was registered
	stop     chan struct{}
	changed  chan struct{} // one slot each: something new is wanted,
	suspect  chan struct{} // an informer has lost its watch,
	yield    chan struct{} // an older spoke waits for the cluster,
	lead     chan struct{} // this hub leads from here on
	gate     gate

	conn      *connection
	shown     string // the cluster whose Proxies the fleet shows; empty: none
	standing  *standing
	disengage context.CancelFunc

	mu      sync.Mutex
	state   State
	settled bool        // connected or refused, once
	accept  string      // the identity that may take the place of the pinned one
	want    *credential // what was offered last; nil: it is refused at sight
	serves  *credential // what serves; nil: nothing
	permit  *permit     // of the connections to the present cluster
	feeds   *credential // what led to the cluster whose Proxies the fleet shows
	// routable is what the annotation on the pod network came to last, said the last
	// word in it that was one.
	routable, said bool

	claim claim
	waits string // the cluster that this spoke may not have, for now
}

// permit lets requests go out until it is revoked.
type permit struct{ revoked atomic.Bool }

func newSpoke(name string, reg registration, r *Registry) *spoke {
	s := &spoke{
		name: name, registry: r, log: r.Log.WithValues("spoke", name), secret: reg.secret, since: time.Now(),
		stop: make(chan struct{}), changed: make(chan struct{}, 1), suspect: make(chan struct{}, 1), yield: make(chan struct{}, 1), lead: make(chan struct{}, 1),
		state: newState(reg.pinned), permit: &permit{}, claim: claim{spoke: name, holds: reg.pinned, created: reg.created},
	}
	s.gate.contested = func(others string) {
		if others != "" && s.State().Others == "" {
			s.update(func(st *State) { st.Others = others })
		}
	}
	return s
}

// tellOthers takes over who else has marked Proxies. That somebody has is told
// at once, anything else with the next contact: marks may come and go quickly.
func (s *spoke) tellOthers() {
	others := s.gate.otherHubs()
	s.update(func(st *State) { st.Others = others })
}

// State is a copy of the spoke's state.
func (s *spoke) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *spoke) isSettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled
}

func (s *spoke) wanted() *credential {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.want
}

func poke(slot chan<- struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}

// run is the spoke's goroutine: connect, watch over the connection, swap it.
// An attempt runs beside the contacts with the present connection, so that
// neither delays the other.
func (s *spoke) run() {
	ctx, ok := s.begin()
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	l := &loop{spoke: s, contact: time.NewTicker(s.registry.checkInterval), retry: time.NewTimer(0), backoff: backoffFirst}
	defer l.end()
	for ctx.Err() == nil {
		l.step(ctx)
	}
}

// begin waits until the manager runs and returns the context that connections
// live in: the manager's, never a reconcile's, which would end with its timeout.
func (s *spoke) begin() (context.Context, bool) {
	patience := time.NewTimer(completeTimeout)
	defer patience.Stop()
	select {
	case <-s.registry.complete:
	case <-patience.C:
	case <-s.stop:
		return nil, false
	}
	select {
	case <-s.registry.running:
		return s.registry.ctx, true
	case <-s.stop:
		return nil, false
	}
}

// take puts a new connection in the place of the present one, if it may be
// there. A connection that is not taken is severed.
func (s *spoke) take(ctx context.Context, next *connection) error {
	found := next.identity.clusterUID
	err := s.admit(found) // asked again: it took a while to list
	if s.conn == nil || s.conn.identity.clusterUID == found {
		s.license(next)
	}
	if err == nil {
		err = s.registry.publish(ctx, s, next)
	}
	if err != nil {
		next.sever()
		return err
	}
	if s.shown != "" && s.shown != found {
		s.leave() // the cluster before it, with all its Proxies, is not this spoke any more
	}
	if err := s.engage(ctx, next); err != nil {
		s.registry.want(s, "")
		if ctx.Err() != nil {
			return ctx.Err() // the hub ends, or the registration
		}
		err = unusable(err)
		s.closed(err)
		return err
	}
	s.registry.hold(s, found)
	return nil
}

// license lets requests of conn out for as long as the spoke is this cluster.
func (s *spoke) license(conn *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn.permit.Store(s.permit)
}

// unusable says that the hub could not put a connection to use.
func unusable(err error) error {
	return &preflightError{v1alpha1.ReasonUnreachable, "the hub cannot work with the connection: " + worded(err)}
}

// worded is the error in the words of a condition, unless it is not about a request.
func worded(err error) string {
	var step *stepError
	var own *preflightError
	if errors.As(err, &step) || errors.As(err, &own) {
		_, message := explain(err)
		return message
	}
	return err.Error()
}

// admit says why the spoke may not be this cluster; nil: it may.
func (s *spoke) admit(clusterUID string) error {
	owned := s.registry.mayHold(s, clusterUID)
	if pinned := s.State().ClusterUID; !moved(pinned, clusterUID, s.accepts()) {
		s.registry.disown(s, pinned)
		var duplicate *duplicateError
		if errors.As(owned, &duplicate) {
			return &identityError{pinned, clusterUID, duplicate.owner}
		}
		return &identityError{pinned, clusterUID, ""}
	}
	return owned
}

func (s *spoke) accepts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accept
}

func (s *spoke) closed(err error) {
	s.update(func(st *State) {
		s.serves = nil
		st.closed(explain(err))
	})
}

// engage makes next, which has been published, the connection of the
// controllers and then of the fleet.
func (s *spoke) engage(ctx context.Context, next *connection) error {
	s.license(next)
	var err error
	if s.standing == nil {
		s.standing = &standing{conn: next}
		next.standing.Store(s.standing)
	} else {
		next.standing.Store(s.standing)
		err = s.standing.swap(next)
	}
	if err == nil {
		err = s.introduce(ctx)
	}
	if err == nil {
		s.shown = next.identity.clusterUID
		s.feed(next.cred)
		err = s.gate.feed(next, s.name, s.registry.Options)
	}
	old := s.conn
	s.conn = next
	if err != nil {
		// Half engaged with two connections is worse than none: start over. The
		// fleet keeps what it knows.
		s.drop()
	}
	if old != nil {
		old.close()
	}
	return err
}

// drop gives the connection and the engagement up.
func (s *spoke) drop() {
	if s.disengage != nil {
		s.disengage()
	}
	s.standing, s.disengage = nil, nil
	if s.conn != nil {
		s.registry.withdraw(s.name, s.conn)
		s.conn.sever()
		s.conn = nil
	}
}

// leave takes the spoke's Proxies out of the fleet at once and drops the
// connection. Nothing in the cluster is touched, by passes under way neither.
func (s *spoke) leave() {
	s.mu.Lock()
	s.permit.revoked.Store(true)
	s.permit = &permit{}
	s.mu.Unlock()
	s.gate.clear(func() { s.registry.Fleet.Retain(s.name, nil) })
	s.shown = ""
	s.feed(nil)
	s.drop()
	s.registry.Recorder.ForgetSpoke(s.name)
}

// giveUp leaves a cluster that belongs to an older spoke.
func (s *spoke) giveUp() {
	if s.conn == nil {
		return
	}
	if err := s.registry.mayHold(s, s.conn.identity.clusterUID); err != nil {
		s.leave()
		s.closed(err)
	}
}

// check contacts the spoke once, and says whether it answered. A contact that
// counts makes, with others, a loss.
func (s *spoke) check(ctx context.Context, counts bool) bool {
	err := s.conn.prove(ctx)
	if ctx.Err() != nil {
		return false
	}
	now := time.Now()
	var identity *identityError
	switch {
	case err == nil:
		s.update(func(st *State) { st.answered(now) })
		return true
	case errors.As(err, &identity):
		reason, message := explain(err)
		s.update(func(st *State) { st.doubted(reason, message, false, now) })
		return moved(identity.pinned, identity.found, s.accepts())
	case counts:
		reason, message := explain(err)
		s.update(func(st *State) { st.missed(reason, message, now) })
	}
	return false
}

// update changes the state, and tells the controller if somebody can see it.
func (s *spoke) update(change func(*State)) {
	s.mu.Lock()
	before := s.state
	change(&s.state)
	after := s.state
	s.mu.Unlock()
	if before.visible() == after.visible() {
		return
	}
	if before.Reason != after.Reason || before.CredentialReason != after.CredentialReason || before.Others != after.Others ||
		(before.Path == pathBroken) != (after.Path == pathBroken) {
		s.log.Info("Spoke changed", "ready", after.Ready, "reason", after.Reason, "message", after.Message, "server", after.Server,
			"credentialReason", after.CredentialReason, "credentialMessage", after.CredentialMessage, "contested", after.Others, "pathBroken", after.Path == pathBroken)
	}
	s.registry.tell(s.name)
}

// remove ends the spoke. When it returns, its Proxies are out of the fleet and
// none will come back, and nothing goes to the cluster any more.
func (s *spoke) remove() {
	s.mu.Lock()
	s.permit.revoked.Store(true)
	s.mu.Unlock()
	close(s.stop)
	s.gate.shut(func() {
		s.registry.Fleet.Retain(s.name, nil)
		s.registry.Fleet.SetRoutable(s.name, false)
	})
	s.registry.forget(s.name)
	s.log.Info("Spoke deregistered")
}
