package registry

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

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
}

// spoke is one registered cluster. Its goroutine (run) owns the fields of the
// second group; those of the third are guarded by mu, claim by the registry's.
type spoke struct {
	name     string
	registry *Registry
	log      logr.Logger
	secret   string    // the UID of the Secret that this registration belongs to
	since    time.Time // when it was registered
	stop     chan struct{}
	changed  chan struct{} // one slot each: something new is wanted,
	suspect  chan struct{} // an informer has lost its watch,
	yield    chan struct{} // an older spoke has the cluster
	gate     gate

	conn      *connection
	standing  *standing
	disengage context.CancelFunc
	adopted   time.Time

	mu      sync.Mutex
	state   State
	settled bool        // connected or refused, once
	offered string      // the key of what was offered last
	accept  string      // the identity that may take the place of the pinned one
	want    *credential // what shall serve; nil: nothing usable was offered
	serves  *credential // what does; nil: nothing

	claim claim
}

func newSpoke(name string, reg registration, r *Registry) *spoke {
	s := &spoke{
		name: name, registry: r, log: r.Log.WithValues("spoke", name), secret: reg.secret, since: time.Now(),
		stop: make(chan struct{}), changed: make(chan struct{}, 1), suspect: make(chan struct{}, 1), yield: make(chan struct{}, 1),
		state: newState(reg.pinned), claim: claim{spoke: name, clusterUID: reg.pinned, created: reg.created},
	}
	s.gate.contested = func(others string) { s.update(func(st *State) { st.Others = others }) }
	return s
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

// attempt is the outcome of one connect, or of one review of the connection
// that is there.
type attempt struct {
	want   *credential
	conn   *connection
	review bool
	id     identity
	err    error
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
	select {
	case <-s.registry.running:
		return s.registry.ctx, true
	case <-s.stop:
		return nil, false
	}
}

// adopt makes of an attempt what there is to make. It answers false when a
// retry is due.
func (s *spoke) adopt(ctx context.Context, a attempt) bool {
	mine := func() bool { return s.conn != nil && a.want == s.conn.cred }
	if !mine() && s.wanted() != a.want {
		// Something else was offered meanwhile: this outcome is nobody's news.
		if a.conn != nil {
			a.conn.sever()
		}
		return true
	}
	if a.err == nil && !a.review {
		a.err = s.take(ctx, a.conn)
	}
	now := time.Now()
	if a.err != nil {
		reason, message := explain(a.err)
		s.update(func(st *State) {
			s.settled = s.settled || reason != v1alpha1.ReasonUnreachable
			if mine() {
				st.doubted(reason, message, now)
			} else {
				st.refused(reason, message)
			}
		})
		return mine()
	}
	s.update(func(st *State) {
		if a.review {
			st.reviewed(a.id.version)
			return
		}
		s.settled, s.serves = true, a.want
		st.connected(a.want.hash, a.want.config.Host, a.conn.identity.version, a.conn.identity.clusterUID, now)
	})
	return true
}

// take puts a new connection in the place of the present one, if it may be
// there. A connection that is not taken is severed.
func (s *spoke) take(ctx context.Context, next *connection) error {
	found := next.identity.clusterUID
	err := s.admit(found) // asked again: it took a while to list
	if err == nil {
		err = s.registry.publish(s, next)
	}
	if err != nil {
		next.sever()
		return err
	}
	if s.conn != nil && s.conn.identity.clusterUID != found {
		s.leave() // the cluster before it, with all its Proxies, is not this spoke any more
	}
	if err := s.engage(ctx, next); err != nil {
		err = &preflightError{v1alpha1.ReasonUnreachable, "the hub cannot work with the connection: " + err.Error()}
		s.update(func(st *State) {
			s.serves = nil
			st.closed(explain(err))
		})
		return err
	}
	s.adopted = time.Now()
	return nil
}

// admit says why the spoke may not be this cluster; nil: it may.
func (s *spoke) admit(clusterUID string) error {
	if pinned := s.State().ClusterUID; !moved(pinned, clusterUID, s.accepts()) {
		return &identityError{pinned, clusterUID}
	}
	return s.registry.stake(s, clusterUID)
}

func (s *spoke) accepts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accept
}

// engage makes next, which has been published, the connection of the
// controllers and then of the fleet.
func (s *spoke) engage(ctx context.Context, next *connection) error {
	var err error
	if s.standing == nil {
		s.standing = &standing{conn: next}
		var engagement context.Context
		engagement, s.disengage = context.WithCancel(ctx)
		err = s.registry.aware.Engage(engagement, multicluster.ClusterName(s.name), s.standing)
	} else {
		err = s.standing.swap(next)
	}
	if err == nil {
		err = s.gate.feed(ctx, next, s.name, s.registry.Options)
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
	if s.standing != nil {
		s.disengage()
		s.standing = nil
	}
	if s.conn != nil {
		s.registry.withdraw(s.name, s.conn)
		s.conn.sever()
		s.conn = nil
	}
}

// leave takes the spoke's Proxies out of the fleet at once and drops the
// connection. Nothing in the cluster is touched.
func (s *spoke) leave() {
	s.gate.clear(func() { s.registry.Fleet.Retain(s.name, nil) })
	s.drop()
	s.registry.Recorder.ForgetSpoke(s.name)
}

// giveUp leaves a cluster that belongs to an older spoke.
func (s *spoke) giveUp() {
	if s.conn == nil {
		return
	}
	uid := s.conn.identity.clusterUID
	if err := s.registry.mayHold(s, uid); err != nil {
		s.leave()
		s.update(func(st *State) {
			s.serves = nil
			st.closed(explain(err))
		})
		s.registry.released(uid)
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
		s.update(func(st *State) { st.doubted(reason, message, now) })
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
	if before.Reason != after.Reason || before.CredentialReason != after.CredentialReason || before.Others != after.Others {
		s.log.Info("Spoke changed", "ready", after.Ready, "reason", after.Reason, "message", after.Message, "server", after.Server,
			"credentialReason", after.CredentialReason, "credentialMessage", after.CredentialMessage, "contested", after.Others)
	}
	s.registry.tell(s.name)
}

// remove ends the spoke. When it returns, its Proxies are out of the fleet and
// none will come back.
func (s *spoke) remove() {
	close(s.stop)
	s.gate.shut(func() { s.registry.Fleet.Retain(s.name, nil) })
	s.registry.Recorder.ForgetSpoke(s.name)
	s.log.Info("Spoke deregistered")
}
