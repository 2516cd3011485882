package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/proxyfleet/proxy-operator/spoke/kubeconfig"
)

const (
	// A spoke that does not connect is tried again after backoffFirst, then
	// twice that, and so on up to backoffCap.
	backoffFirst, backoffCap = time.Second, 30 * time.Second
	// A connected spoke is contacted every checkInterval.
	checkInterval = 10 * time.Second
)

// credential is a vetted kubeconfig.
type credential struct {
	config *rest.Config
	hash   string
}

// spoke is one registered cluster. Its goroutine (run) owns conn; everything
// else is guarded by mu.
type spoke struct {
	name     string
	registry *Registry
	log      logr.Logger
	stop     chan struct{}
	changed  chan struct{} // one slot: something new is wanted
	gate     gate

	conn *connection

	mu      sync.Mutex
	state   State
	settled bool        // connected or refused, once
	want    *credential // what shall serve; nil: nothing usable was offered
	serves  *credential // what does; nil: nothing
}

func newSpoke(name string, r *Registry) *spoke {
	return &spoke{
		name: name, registry: r, log: r.Log.WithValues("spoke", name),
		stop: make(chan struct{}), changed: make(chan struct{}, 1), state: newState(),
	}
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

// offer hands a kubeconfig to the spoke. One that is refused replaces none
// that serves.
func (s *spoke) offer(raw []byte) {
	sum := sha256.Sum256(raw)
	hash := hex.EncodeToString(sum[:])
	if s.State().Hash == hash {
		return
	}
	config, err := vet(s.name, raw)
	s.update(func(st *State) {
		if err != nil {
			s.want, s.settled = s.serves, true
			st.offered(hash, "")
			st.refused(explain(err))
			return
		}
		s.want = &credential{config: config, hash: hash}
		st.offered(hash, config.Host)
	})
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func vet(name string, raw []byte) (*rest.Config, error) {
	if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
		return nil, &kubeconfig.Refusal{Reasons: []string{
			"the Secret's name cannot be a spoke's name: use at most 63 lower-case letters, digits and '-', with a letter or digit at each end"}}
	}
	return kubeconfig.Vet(raw)
}

// attempt is the outcome of one connect.
type attempt struct {
	want *credential
	conn *connection
	err  error
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
	contact := time.NewTicker(checkInterval)
	defer contact.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	backoff := backoffFirst
	var trying chan attempt
	defer func() { s.end(trying) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-contact.C:
			s.check(ctx)
			continue
		case <-s.changed:
			backoff = backoffFirst
		case <-retry.C:
		case done := <-trying:
			trying = nil
			if s.adopt(ctx, done) {
				backoff = backoffFirst
			} else {
				retry.Reset(backoff)
				backoff = min(2*backoff, backoffCap)
				continue
			}
		}
		if want := s.wanted(); trying == nil && want != nil && (s.conn == nil || s.conn.hash != want.hash) {
			trying = make(chan attempt, 1)
			go func(result chan<- attempt) {
				conn, err := connect(ctx, want, s.registry.Options, s.log)
				result <- attempt{want, conn, err}
			}(trying)
		}
	}
}

// end closes what the goroutine holds; a connect under way ends with its context.
func (s *spoke) end(trying chan attempt) {
	if trying != nil {
		if last := <-trying; last.conn != nil {
			last.conn.close()
		}
	}
	if s.conn != nil {
		s.conn.close()
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

// adopt puts a new connection in the place of the present one, which served
// until now. It answers false when there is none to adopt and a retry is due.
func (s *spoke) adopt(ctx context.Context, a attempt) bool {
	if s.wanted() != a.want {
		// Something else was offered meanwhile: this outcome is nobody's news.
		if a.conn != nil {
			a.conn.close()
		}
		return true
	}
	if a.err != nil {
		s.update(func(st *State) { st.refused(explain(a.err)) })
		return false
	}
	if err := s.registry.publish(s, a.conn); err != nil {
		a.conn.close()
		s.update(func(st *State) {
			s.settled = true
			st.refused(explain(err))
		})
		return false
	}
	if err := s.engage(ctx, a.conn); err != nil {
		s.update(func(st *State) {
			s.serves = nil
			st.lost(explain(err))
		})
		return false
	}
	s.update(func(st *State) {
		s.settled, s.serves = true, a.want
		st.connected(a.want.hash, a.want.config.Host, a.conn.identity.version, a.conn.identity.clusterUID)
	})
	return true
}

// engage makes next, which has been published, the connection of the
// controllers and then of the fleet.
func (s *spoke) engage(ctx context.Context, next *connection) error {
	err := s.registry.aware.Engage(next.ctx, multicluster.ClusterName(s.name), next.cluster)
	if err == nil {
		err = s.gate.feed(ctx, next, s.name, s.registry.Options)
	}
	old := s.conn
	s.conn = next
	if err != nil {
		// Half engaged with two connections is worse than none: start over. The
		// fleet keeps what it knows.
		s.registry.withdraw(s.name, next)
		next.close()
		s.conn = nil
	}
	if old != nil {
		old.close()
	}
	return err
}

// check contacts the spoke once.
func (s *spoke) check(ctx context.Context) {
	if s.conn == nil {
		return
	}
	version, err := s.conn.ping(ctx)
	if ctx.Err() != nil {
		return
	}
	s.update(func(st *State) {
		if err == nil {
			st.answered(s.conn.hash, version)
		} else {
			st.missed(explain(err))
		}
	})
}

// update changes the state, and tells the controller if somebody can see it.
func (s *spoke) update(change func(*State)) {
	s.mu.Lock()
	before := s.state
	change(&s.state)
	after := s.state
	s.mu.Unlock()
	before.misses = after.misses
	if before == after {
		return
	}
	if before.Reason != after.Reason || before.CredentialReason != after.CredentialReason {
		s.log.Info("Spoke changed", "ready", after.Ready, "reason", after.Reason, "message", after.Message, "server", after.Server,
			"credentialReason", after.CredentialReason, "credentialMessage", after.CredentialMessage)
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
