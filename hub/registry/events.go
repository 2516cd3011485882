package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

const (
	// eventsAtOnce requests for Events may be under way to a spoke at a time: all
	// that it is asked goes through one limiter, and what reconciles comes first.
	// eventsWaiting Events may wait for that; more are dropped.
	eventsAtOnce, eventsWaiting = 4, 1000
	// An Event that does not get through is tried eventTries times, first after
	// eventPause, then after twice that, and so on: within a minute.
	eventTries, eventPause = 6, time.Second
	// maxNote is what an API server takes, in bytes.
	maxNote = 1024
)

var (
	eventsResource = eventsv1.Resource("events")
	errCrowded     = &preflightError{v1alpha1.ReasonUnreachable, fmt.Sprintf("more than %d wait to be written", eventsWaiting)}
)

// recorder writes Events to a spoke, each through the connection of its moment.
// It never waits for the spoke.
type recorder struct {
	name string
	conn func() *connection
}

// Eventf implements events.EventRecorder.
func (r *recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	c := r.conn()
	scheme := c.cluster.GetScheme()
	// The library would log the object, which may be a Proxy with its cloud-init.
	about, err := reference.GetReference(scheme, regarding)
	if err != nil {
		c.log.Error(err, "Event without an object", "eventReason", reason)
		return
	}
	broadcaster, err := c.broadcaster()
	if err != nil {
		c.log.Error(err, "Event not written", "eventReason", reason)
		return
	}
	broadcaster.NewRecorder(scheme, r.name).WithLogger(logr.Discard()).Eventf(about, related, kind, reason, action, "%s", shortened(fmt.Sprintf(note, args...)))
}

func shortened(note string) string {
	const more = "…"
	if len(note) <= maxNote {
		return note
	}
	return strings.ToValidUTF8(note[:maxNote-len(more)], "") + more
}

// formerRecorder takes Events as they were before events.k8s.io.
type formerRecorder struct{ events.EventRecorder }

var _ record.EventRecorder = formerRecorder{}

func (r formerRecorder) Event(object runtime.Object, kind, reason, message string) {
	r.EventRecorder.Eventf(object, nil, kind, reason, reason, "%s", message)
}

func (r formerRecorder) Eventf(object runtime.Object, kind, reason, message string, args ...any) {
	r.EventRecorder.Eventf(object, nil, kind, reason, reason, message, args...)
}

func (r formerRecorder) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, message string, args ...any) {
	r.Eventf(object, kind, reason, message, args...)
}

// broadcast starts what takes Events to the spoke; it ends with the connection.
// controller-runtime's would log what a server says in refusing one.
func (c *connection) broadcast() (events.EventBroadcaster, error) {
	client, err := typedeventsv1.NewForConfigAndClient(c.config, c.http)
	if err != nil {
		return nil, fmt.Errorf("build the client: %w", err)
	}
	broadcaster := events.NewBroadcaster(&sink{EventSinkImpl: events.EventSinkImpl{Interface: client}, log: c.log, slots: make(chan struct{}, eventsAtOnce)})
	if err := broadcaster.StartRecordingToSinkWithContext(logr.NewContext(c.ctx, logr.Discard())); err != nil {
		broadcaster.Shutdown()
		return nil, err
	}
	context.AfterFunc(c.ctx, broadcaster.Shutdown)
	return broadcaster, nil
}

// sink writes Events. The library gives it each in a goroutine of its own, tries
// again what comes back as an error, and holds a lock that all new Events need
// while it brings the count of repeated ones up to date. So there are bounds
// here, what the library could only log is no error, and for a count nothing waits.
type sink struct {
	events.EventSinkImpl
	log   logr.Logger
	slots chan struct{}

	mu      sync.Mutex
	waiting int
	failing string // why the last one was not written; empty: it was
}

// Create implements events.EventSink.
func (s *sink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	create := func(ctx context.Context) error {
		_, err := s.EventSinkImpl.Create(ctx, event)
		return err
	}
	write := s.insist
	if event.Series != nil {
		write = s.once
	}
	err := write(ctx, create)
	if apierrors.IsAlreadyExists(err) { // the library tries to count it up then
		return nil, apierrors.NewAlreadyExists(eventsResource, event.Name)
	}
	s.tell(ctx, "create", err)
	return event, nil
}

// Patch implements events.EventSink.
func (s *sink) Patch(ctx context.Context, event *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	err := s.once(ctx, func(ctx context.Context) error {
		_, err := s.EventSinkImpl.Patch(ctx, event, data)
		return err
	})
	if apierrors.IsNotFound(err) { // it has expired: the library makes a new one then
		return nil, apierrors.NewNotFound(eventsResource, event.Name)
	}
	s.tell(ctx, "patch", err)
	return event, nil
}

// insist tries until the spoke has answered.
func (s *sink) insist(ctx context.Context, request func(context.Context) error) error {
	if !s.enter() {
		return errCrowded
	}
	defer s.exit()
	pause := eventPause
	for tries := 1; ; tries++ {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := briefly(ctx, request)
		<-s.slots
		if err == nil || isAnswer(err) || tries == eventTries {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause *= 2
	}
}

// once tries once, if there is room right now: the next count says all that this
// one would have.
func (s *sink) once(ctx context.Context, request func(context.Context) error) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		return briefly(ctx, request)
	default:
		return nil
	}
}

func briefly(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return request(ctx)
}

// isAnswer says that trying again is no use: the API server has made up its mind.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError && status.Status().Code != http.StatusTooManyRequests
}

func (s *sink) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == eventsWaiting {
		return false
	}
	s.waiting++
	return true
}

func (s *sink) exit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
}

// tell logs why an Event was not written, in words of our own, once until one is
// or the reason is another.
func (s *sink) tell(ctx context.Context, verb string, err error) {
	reason, message := "", ""
	if err != nil {
		reason, message = explain(asked(verb+" "+eventsResource.String(), err))
	}
	s.mu.Lock()
	news := message != s.failing && ctx.Err() == nil
	if news {
		s.failing = message
	}
	s.mu.Unlock()
	if news && err != nil {
		s.log.Info("Event not written", "reason", reason, "message", message)
	}
}
