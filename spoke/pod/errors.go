package pod

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// Classified wraps the error class around an API server's answer, which is an
// error.
func Classified(err error) error {
	return fmt.Errorf("%w: %w", classOf(err), err)
}

// refused is Classified for what makes something: what is missing then is the
// namespace, or has gone meanwhile, and is no missing instance.
func refused(err error) error {
	class := classOf(err)
	if errors.Is(class, provider.ErrNotFound) {
		class = provider.ErrTransient
	}
	return fmt.Errorf("%w: %w", class, err)
}

// refusedService is refused for what an instance needs beside itself: what is there
// already is no instance either.
func refusedService(err error) error {
	if class := classOf(err); errors.Is(class, provider.ErrExists) {
		return fmt.Errorf("%w: %w", provider.ErrTransient, err)
	}
	return refused(err)
}

// refusedCorrection is refusedService for a change of a Service that is there. What
// the spec says is valid in a new one: if it is not in this one, that comes from what
// others have written into it, which the hub does not watch.
func refusedCorrection(err error) error {
	if apierrors.IsInvalid(err) && !apierrors.IsUnexpectedServerError(err) {
		return fmt.Errorf("%w: %w", provider.ErrLasting, err)
	}
	return refusedService(err)
}

// spoken are the reasons of an API server's own; a webhook may give any.
var spoken = []metav1.StatusReason{
	metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
	metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout, metav1.StatusReasonTooManyRequests,
	metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable, metav1.StatusReasonConflict,
}

// refusedFiles is refused for a Secret, with no words but the API server's own: a
// webhook may show the object, and what is in it is secret.
func refusedFiles(err error) error {
	class := classOf(err)
	if errors.Is(class, provider.ErrNotFound) {
		class = provider.ErrTransient // its namespace
	}
	if apierrors.IsForbidden(err) && worded(err) != nil {
		return refused(err)
	}
	reason := "that it does not know"
	if given := apierrors.ReasonForError(err); slices.Contains(spoken, given) {
		reason = string(given)
	}
	own := fmt.Errorf("%w: the API server refuses it, for a reason %s", class, reason)
	if apierrors.IsConflict(err) {
		return fmt.Errorf("%w: %w", own, apierrors.NewConflict(corev1.Resource("secrets"), "", errors.New("it has changed")))
	}
	return own
}

var (
	// errNotOurFiles is about a Secret with the name of an instance's files.
	errNotOurFiles = fmt.Errorf("%w: a Secret of this name exists already, and is not what the hub made: remove it", provider.ErrLasting)
	// errFilesGoing is about one that somebody has deleted, and that a finalizer keeps.
	errFilesGoing = fmt.Errorf("%w: the Secret of this name is being deleted", provider.ErrTransient)
	// errNotOurService is about a Service with the name of an instance.
	errNotOurService = fmt.Errorf("%w: a Service of this name exists already, and is not what the hub made: remove it", provider.ErrLasting)
	// errServiceGoing is about one that is deleted, and that a cloud holds until its
	// load balancer is gone.
	errServiceGoing = fmt.Errorf("%w: the Service of this name is being deleted", provider.ErrTransient)
)

func classOf(err error) error {
	switch {
	case apierrors.IsUnexpectedServerError(err):
		return classOfStranger(err)
	case apierrors.IsForbidden(err):
		return classOfForbidden(err)
	case apierrors.IsUnauthorized(err):
		return provider.ErrLasting
	case apierrors.IsNotFound(err):
		return provider.ErrNotFound
	case apierrors.IsAlreadyExists(err):
		return provider.ErrExists
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return provider.ErrPermanent
	default:
		return provider.ErrTransient
	}
}

// classOfStranger is the class of what no API server has worded: what stands
// between it and the hub knows no instances, and judges none.
func classOfStranger(err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return provider.ErrLasting
	}
	return provider.ErrTransient
}

// missing says that an API server knows no such thing.
func missing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// An API server answers 403 for many things, and tells them apart in its text
// alone; nowhere else is a text matched. It is matched from where the server's
// own words begin: a webhook's, a policy's or a user's come later. A test holds
// every phrase against a real API server, but for the last one.
var wordings = []struct {
	phrase *regexp.Regexp
	class  error
}{
	// What its authorizers refuse. Source: k8s.io/apiserver, endpoints/handlers/responsewriters.
	{regexp.MustCompile(`^User "(?:[^"\\]|\\.)*" cannot [a-z]+ resource "`), provider.ErrLasting},
	// What plugin OwnerReferencesPermissionEnforcement refuses for the sake of a
	// right, or of a CRD that it has not heard of yet.
	{regexp.MustCompile(`^cannot set (?:blockOwnerDeletion|an ownerRef) `), provider.ErrLasting},
	{regexp.MustCompile(`^exceeded quota: `), provider.ErrQuotaExceeded},
	// A quota that nobody has counted yet.
	{regexp.MustCompile(`^status unknown for quota: `), provider.ErrTransient},
	// Somebody may be about to make it.
	{regexp.MustCompile(`^error looking up service account `), provider.ErrLasting},
	// A server that has just been started, and whose caches are not filled after
	// ten seconds. From its source only (k8s.io/apiserver, admission/plugin): no
	// test can bring a real one to say it.
	{regexp.MustCompile(`^not yet ready to handle request`), provider.ErrTransient},
}

// forbiddenBy is what comes before those words: the resource, and mostly a name.
var forbiddenBy = regexp.MustCompile(`^[a-z./]+ (?:"[^"]*" )?is forbidden: `)

func classOfForbidden(err error) error {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return provider.ErrTransient // the Proxy goes with its namespace
	}
	if class := worded(err); class != nil {
		return class
	}
	// Pod Security, LimitRange, a quota that asks for limits, a webhook or a
	// policy: admission does not want this pod.
	return provider.ErrPermanent
}

// worded is the class of a refusal in the API server's own words; nil for others.
func worded(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return nil
	}
	text := status.Status().Message
	text = text[len(forbiddenBy.FindString(text)):]
	for _, w := range wordings {
		if w.phrase.MatchString(text) {
			return w.class
		}
	}
	return nil
}
