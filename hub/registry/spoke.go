package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/spoke/kubeconfig"
)

const (
	// A spoke that does not connect is tried again after backoffFirst, then
	// twice that, and so on up to backoffCap.
	backoffFirst, backoffCap = time.Second, 30 * time.Second
	// A connected spoke is contacted every checkInterval; after checkMisses
	// failures in a row it counts as unreachable.
	checkInterval = 10 * time.Second
	checkMisses   = 3
)

// State is what the registry makes of a spoke.
type State struct {
	// Ready and Reason are the Ready condition; Message is for a person.
	Ready           bool
	Reason, Message string
	// CredentialReason is set while a changed kubeconfig is not taken.
	CredentialReason, CredentialMessage string
	Server, Version, ClusterUID         string
	// Hash is that of the kubeconfig that was offered last.
	Hash string
}

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

	conn   *connection
	misses int

	mu        sync.Mutex
	state     State
	want      *credential // nil: nothing usable was offered
	connected bool        // at least once
}

func newSpoke(name string, r *Registry) *spoke {
	return &spoke{
		name: name, registry: r, log: r.Log.WithValues("spoke", name),
		stop: make(chan struct{}), changed: make(chan struct{}, 1),
		state: State{Reason: v1alpha1.ReasonConnecting, Message: "connecting for the first time"},
	}
}

// State is a copy of the spoke's state.
func (s *spoke) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *spoke) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected || s.want == nil && s.state.Hash != ""
}

// offer hands a kubeconfig to the spoke. One that is refused replaces none
// that serves.
func (s *spoke) offer(raw []byte) {
	sum := sha256.Sum256(raw)
	hash := hex.EncodeToString(sum[:])
	s.mu.Lock()
	if s.state.Hash == hash {
		s.mu.Unlock()
		return
	}
	s.state.Hash = hash
	s.mu.Unlock()

	config, err := vet(s.name, raw)
	s.mu.Lock()
	if err == nil {
		s.want = &credential{config: config, hash: hash}
		if !s.connected {
			s.state.Server = config.Host
		}
	} else if !s.connected {
		s.want = nil
	}
	s.mu.Unlock()
	if err != nil {
		s.refused(err)
	}
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

// run is the spoke's goroutine: connect, watch over the connection, swap it.
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
	defer func() {
		if s.conn != nil {
			s.conn.close()
		}
	}()
	backoff := backoffFirst
	for {
		wait := checkInterval
		want := s.wanted()
		switch {
		case want == nil:
		case s.conn != nil && s.conn.hash == want.hash:
			s.check(ctx)
		case s.swap(ctx, want):
			backoff = backoffFirst
		default:
			if s.conn != nil {
				s.check(ctx)
			}
			wait, backoff = backoff, min(2*backoff, backoffCap)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			backoff = backoffFirst
		case <-time.After(wait):
		}
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

func (s *spoke) wanted() *credential {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.want
}

// swap brings up a connection with want and puts it in the place of the
// present one, which serves until then.
func (s *spoke) swap(ctx context.Context, want *credential) bool {
	next, err := connect(ctx, want, s.registry.Options, s.log)
	if err == nil {
		err = s.engage(ctx, next)
	}
	if ctx.Err() != nil {
		if next != nil {
			next.close()
		}
		return false
	}
	if err != nil {
		s.refused(err)
		return false
	}
	s.update(func(st *State) {
		s.connected = true
		st.Ready, st.Reason, st.Message = true, v1alpha1.ReasonConnected, "connected"
		st.CredentialReason, st.CredentialMessage = "", ""
		st.Server, st.Version, st.ClusterUID = want.config.Host, next.identity.version, next.identity.clusterUID
	})
	s.log.Info("Spoke connected", "server", want.config.Host, "version", next.identity.version)
	return true
}

// engage makes next the spoke's connection: for Get, for the controllers and
// for the fleet, in this order.
func (s *spoke) engage(ctx context.Context, next *connection) error {
	if !s.registry.publish(s, next) {
		next.close()
		return context.Canceled
	}
	err := s.registry.aware.Engage(next.ctx, multicluster.ClusterName(s.name), next.cluster)
	if err == nil {
		err = s.gate.feed(ctx, next, s.name, s.registry.Fleet)
	}
	old := s.conn
	if err != nil {
		// Half engaged with two connections is worse than none: start over. The
		// fleet keeps what it knows.
		s.registry.withdraw(s.name, next)
		next.close()
		next = nil
	}
	s.conn, s.misses = next, 0
	if old != nil {
		old.close()
	}
	return err
}

// check contacts the spoke once. The first moment of loss is the transition
// time of the condition, since only changes of the state are told.
func (s *spoke) check(ctx context.Context) {
	version, err := s.conn.ping(ctx)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		s.misses = 0
		s.update(func(st *State) {
			st.Ready, st.Reason, st.Message, st.Version = true, v1alpha1.ReasonConnected, "connected", version
			if st.Hash == s.conn.hash {
				// A bad change that was taken back.
				st.CredentialReason, st.CredentialMessage = "", ""
			}
		})
		return
	}
	s.misses++
	reason, message := explain(err)
	if s.misses >= checkMisses || reason == v1alpha1.ReasonUnauthorized {
		s.update(func(st *State) { st.Ready, st.Reason, st.Message = false, reason, message })
	}
}

// refused tells why a kubeconfig does not lead to a connection: on Ready while
// nothing serves, on CredentialAccepted while another one does.
func (s *spoke) refused(err error) {
	reason, message := explain(err)
	s.update(func(st *State) {
		if s.connected {
			st.CredentialReason, st.CredentialMessage = reason, message
		} else {
			st.Ready, st.Reason, st.Message = false, reason, message
		}
	})
}

// update changes the state, and tells the controller if it did.
func (s *spoke) update(change func(*State)) {
	s.mu.Lock()
	before := s.state
	change(&s.state)
	after := s.state
	s.mu.Unlock()
	if before == after {
		return
	}
	if before.Reason != after.Reason || before.CredentialReason != after.CredentialReason {
		s.log.Info("Spoke changed", "reason", after.Reason, "message", after.Message,
			"credentialReason", after.CredentialReason, "credentialMessage", after.CredentialMessage)
	}
	s.registry.tell(s.name)
}

// remove ends the spoke. When it returns, its Proxies are out of the fleet and
// none will come back.
func (s *spoke) remove() {
	close(s.stop)
	s.gate.shut(func() { s.registry.Fleet.Retain(s.name, nil) })
	s.log.Info("Spoke deregistered")
}

// explain says in a condition's words why a spoke does not work.
func explain(err error) (reason, message string) {
	var refusal *kubeconfig.Refusal
	var preflight *preflightError
	switch {
	case errors.As(err, &refusal) && refusal.Forbidden:
		return v1alpha1.ReasonKubeconfigForbidden, refusal.Error()
	case errors.As(err, &refusal):
		return v1alpha1.ReasonKubeconfigInvalid, refusal.Error()
	case errors.As(err, &preflight):
		return preflight.reason, preflight.message
	default:
		return explainRequest(err)
	}
}
