package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// +kubebuilder:rbac:groups=crawl.proxyfleet.dev,resources=proxies,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=crawl.proxyfleet.dev,resources=proxies/status,verbs=patch
// +kubebuilder:rbac:groups=crawl.proxyfleet.dev,resources=proxies/finalizers,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// retrySoon is the wait after a conflict: normal, and over as soon as the
// cache has caught up.
const retrySoon = time.Second

// spoke is what passes need of the cluster that a Proxy lives in, and nothing
// of the others.
type spoke struct {
	name       string
	clusterUID string
	client     client.Client
	direct     client.Reader // never a cache
	secrets    readSecretFunc
	provider   provider.Provider // nil: this hub has none of that name
	recorder   events.EventRecorder
}

// pass is one look at one Proxy.
type pass struct {
	spoke
	hubID string
	// providerConfig is all of the provider's configuration that a creation
	// depends on.
	providerConfig string
	fleet          *fleet.Fleet
	budget         *budget
	pauses         *pauses
	fresh          *fresh
	now            func() time.Time

	// written is condition Provisioned as the status had it before this pass.
	written *metav1.Condition
	// base is the status as it is at the API server.
	base *v1alpha1.ProxyStatus
	// latched says that what is said of a permanent error is repeated from there.
	latched bool
	// raced says that others have changed the object's metadata under this pass.
	raced bool
	// told is the reason of the Event about this pass, where it is not the condition's.
	told string
	// reveals is what this pass tells the fleet when the status is written.
	reveals reveals
}

// reveals is what a pass has found out about what clients of an instance need; nil
// where it has not.
type reveals struct {
	instance    string
	credentials *fleet.Credentials
	authorities *fleet.Authorities
}

// run brings p one step further and writes its status if that changed.
func (s *pass) run(ctx context.Context, p *v1alpha1.Proxy) (ctrl.Result, error) {
	if hub := p.Annotations[v1alpha1.AnnotationHub]; hub != "" && hub != s.hubID {
		log.FromContext(ctx).V(1).Info("Proxy is marked by another hub and left alone", "hub", hub)
		return ctrl.Result{}, nil
	}
	external := p.Spec.Mode == v1alpha1.ModeExternal
	deleting := !p.DeletionTimestamp.IsZero()
	if deleting && !external && !controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer) {
		return ctrl.Result{}, nil
	}
	known := external || s.provider != nil
	var want wanted
	var unread error
	if !deleting && known {
		want, unread = s.read(ctx, p)
		if err := s.claim(ctx, p, want.hash); err != nil {
			return conflictLater(err)
		}
	}

	base := p.DeepCopy()
	s.base = &base.Status
	s.written = meta.FindStatusCondition(base.Status.Conditions, v1alpha1.ConditionProvisioned)
	var res ctrl.Result
	var err error
	gone := false
	switch {
	case !known:
		s.unknown(p)
	case external:
		res, err = s.external(p, want, unread)
	default:
		if res, gone, err = s.managed(ctx, p, want); err == nil && !errors.Is(unread, provider.ErrLasting) {
			err = unread
		}
	}
	if gone {
		return res, nil
	}
	if patchErr := s.patchStatus(ctx, base, p); patchErr != nil {
		if err != nil {
			return ctrl.Result{}, errors.Join(err, patchErr)
		}
		return conflictLater(patchErr)
	}
	s.reveal(p)
	if s.raced {
		// What others have changed under this pass is for the next to look at.
		res.RequeueAfter = spread(retrySoon)
	}
	return res, err
}

// read reads what the spec refers to. An error may go by itself.
func (s *pass) read(ctx context.Context, p *v1alpha1.Proxy) (want wanted, unread error) {
	if p.Spec.Mode == v1alpha1.ModeExternal {
		unread = s.readExternal(ctx, p, &want)
	} else {
		want, unread = s.want(ctx, p)
	}
	unread = cmp.Or(unread, s.readAuthorities(ctx, p, &want))
	return want, unread
}

// reveal tells the fleet what clients of the instance need.
func (s *pass) reveal(p *v1alpha1.Proxy) {
	if s.reveals.credentials != nil {
		s.fleet.SetCredentials(s.key(p), s.reveals.instance, s.reveals.credentials)
	}
	if s.reveals.authorities != nil {
		s.fleet.SetAuthorities(s.key(p), s.reveals.instance, s.reveals.authorities)
	}
}

// unknown is about a Proxy of a provider that this hub does not have, as one of a
// newer version may. Nothing is asked for, and nothing let go: there may be an
// instance.
func (s *pass) unknown(p *v1alpha1.Proxy) {
	setProvisioned(p, false, v1alpha1.ReasonPermanentError, fmt.Sprintf(
		"this version of the hub has no provider %q: run one that has it, or delete this Proxy there", p.Spec.Provider))
	finishStatus(p, s.seen(p), p.Status.ProviderID)
}

// readExternal reads the credentials of a proxy that somebody else runs.
func (s *pass) readExternal(ctx context.Context, p *v1alpha1.Proxy, want *wanted) error {
	credentials, err := readCredentials(ctx, s.secrets, p)
	var content *contentError
	if errors.As(err, &content) {
		want.blocked = trouble{content.reason, content.message, pollDrift}
		return nil
	}
	want.credentials = credentials
	return err
}

// readAuthorities reads who signs the proxy's certificate. Without them an instance
// comes up all the same, and is not probed.
func (s *pass) readAuthorities(ctx context.Context, p *v1alpha1.Proxy, want *wanted) error {
	var err error
	var content *contentError
	if want.authorities, err = readAuthorities(ctx, s.secrets, p); errors.As(err, &content) {
		want.unverified = content.message
		return nil
	}
	if err != nil {
		want.unverified = "the Secret with the authorities cannot be read, which will be tried again"
	}
	return err
}

// external has nothing to bring up: the endpoint is in the spec. What stands in
// the way of its credentials is told, and takes no proxy out of service that has
// some.
func (s *pass) external(p *v1alpha1.Proxy, want wanted, unread error) (ctrl.Result, error) {
	if p.Spec.Endpoint == nil { // the CRD of its cluster does not ask for one
		setProvisioned(p, false, v1alpha1.ReasonPermanentError, "spec.endpoint is missing: give the proxy's host and port")
		finishStatus(p, s.seen(p), "")
		return ctrl.Result{}, nil
	}
	endpoint := net.JoinHostPort(p.Spec.Endpoint.Host, strconv.Itoa(int(p.Spec.Endpoint.Port)))
	p.Status.IP, p.Status.Endpoint = p.Spec.Endpoint.Host, endpoint
	const sentence = "the endpoint is in the spec"
	var res ctrl.Result
	switch {
	case unread != nil:
		s.setTrouble(p, true, v1alpha1.ReasonExternalEndpoint, "the Secrets that it refers to cannot be read, which will be tried again", unread)
		if errors.Is(unread, provider.ErrLasting) {
			unread, res.RequeueAfter = nil, spread(pollDrift)
		}
	case want.blocked != trouble{} || want.unverified != "":
		s.told, res.RequeueAfter = v1alpha1.ReasonTransientError, spread(pollDrift)
		setProvisioned(p, true, v1alpha1.ReasonExternalEndpoint, withDetail(withDetail(sentence, want.blocked.message), want.unverified))
	default:
		setProvisioned(p, true, v1alpha1.ReasonExternalEndpoint, sentence)
	}
	s.reveals = reveals{endpoint, want.credentials, want.authorities}
	finishStatus(p, s.seen(p), endpoint)
	return res, unread
}

func (s *pass) key(p *v1alpha1.Proxy) fleet.Key {
	return fleet.Key{Cluster: s.name, Namespace: p.Namespace, Name: p.Name}
}

// seen is the fleet's view, nil where it has none. What this pass is about to tell
// it counts as known.
func (s *pass) seen(p *v1alpha1.Proxy) *fleet.Proxy {
	seen := s.fleet.Get(s.key(p))
	if seen == nil {
		return nil
	}
	knowing := *seen
	if s.reveals.credentials != nil {
		knowing.Credentials = s.reveals.credentials
	}
	if s.reveals.authorities != nil {
		knowing.Authorities = s.reveals.authorities
	}
	return &knowing
}

func conflictLater(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: spread(retrySoon)}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err) // it has gone meanwhile
}

// spread moves a wait by up to ±20%, so that a fleet does not march in step.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
