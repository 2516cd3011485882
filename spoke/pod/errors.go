package pod

import (
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

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

// refusedFiles is refused for a Secret, with no words but the API server's own: a
// webhook may show the object, and what is in it is secret.
func refusedFiles(err error) error {
	class := classOf(err)
	if known := errors.Is(class, provider.ErrLasting) || errors.Is(class, provider.ErrQuotaExceeded) || apierrors.IsForbidden(err) && !errors.Is(class, provider.ErrPermanent); known || missing(err) {
		return refused(err)
	}
	if errors.Is(class, provider.ErrPermanent) {
		return fmt.Errorf("%w: the API server refuses it, for reason %s", class, apierrors.ReasonForError(err))
	}
	return fmt.Errorf("%w: the API server does not make it, for reason %q", provider.ErrTransient, apierrors.ReasonForError(err))
}

var (
	// errNotOurFiles is about a Secret with the name of an instance's files.
	errNotOurFiles = fmt.Errorf("%w: a Secret of this name exists already, and is not what the hub made: remove it", provider.ErrLasting)
	// errFilesGoing is about one that somebody has deleted, and that a finalizer keeps.
	errFilesGoing = fmt.Errorf("%w: the Secret of this name is being deleted", provider.ErrTransient)
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
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		text := status.Status().Message
		text = text[len(forbiddenBy.FindString(text)):]
		for _, w := range wordings {
			if w.phrase.MatchString(text) {
				return w.class
			}
		}
	}
	// Pod Security, LimitRange, a quota that asks for limits, a webhook or a
	// policy: admission does not want this pod.
	return provider.ErrPermanent
}
