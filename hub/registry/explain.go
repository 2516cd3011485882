package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/spoke/kubeconfig"
)

// explain says in a condition's words why a spoke does not work.
func explain(err error) (reason, message string) {
	var refusal *kubeconfig.Refusal
	var preflight *preflightError
	var identity *identityError
	var duplicate *duplicateError
	switch {
	case errors.As(err, &refusal) && refusal.Forbidden:
		return v1alpha1.ReasonKubeconfigForbidden, refusal.Error()
	case errors.As(err, &refusal):
		return v1alpha1.ReasonKubeconfigInvalid, refusal.Error()
	case errors.As(err, &identity):
		return v1alpha1.ReasonIdentityChanged, identity.Error()
	case errors.As(err, &duplicate):
		return v1alpha1.ReasonDuplicateCluster, duplicate.Error()
	case errors.As(err, &preflight):
		return preflight.reason, preflight.message
	default:
		return explainRequest(err)
	}
}

// explainRequest names the reason for a request that failed. The ways of not
// being reachable share a reason and differ in the message. What a server says
// is not quoted: it may be anything.
func explainRequest(err error) (reason, message string) {
	var step *stepError
	what, asked := "the request", ""
	if errors.As(err, &step) {
		what, asked = step.what, "; asked to "+step.what
	}
	var transport *transportError
	var status apierrors.APIStatus
	switch {
	case apierrors.IsUnauthorized(err):
		return v1alpha1.ReasonUnauthorized, "the API server does not accept the credential: give the Secret a kubeconfig with a valid one"
	case errors.As(err, &status) && status.Status().Message == notAsKubernetes(int(status.Status().Code)):
		reason = v1alpha1.ReasonUnreachable
		if apierrors.IsForbidden(err) {
			reason = v1alpha1.ReasonForbidden
		}
		return reason, status.Status().Message + asked
	case apierrors.IsForbidden(err):
		return v1alpha1.ReasonForbidden, fmt.Sprintf("the API server refuses with 403 to %s: grant it, as config/rbac/spoke does", what)
	case errors.As(err, &status):
		code := int(status.Status().Code)
		return v1alpha1.ReasonUnreachable, fmt.Sprintf("the API server answers %d %s to: %s", code, http.StatusText(code), what)
	case errors.Is(err, errRedirect):
		return v1alpha1.ReasonUnreachable, errRedirect.Error()
	case errors.Is(err, errTooLong):
		return v1alpha1.ReasonUnreachable, errTooLong.Error() + asked
	case errors.Is(err, errSevered):
		return v1alpha1.ReasonUnreachable, errSevered.Error()
	case errors.As(err, &transport):
		return v1alpha1.ReasonUnreachable, transport.words
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return v1alpha1.ReasonUnreachable, noSense + asked
	case errors.Is(err, context.DeadlineExceeded):
		return v1alpha1.ReasonUnreachable, inTime
	default:
		return v1alpha1.ReasonUnreachable, errNotKubernetes.message + asked
	}
}

// stepError says what was asked for when something went wrong.
type stepError struct {
	what string
	err  error
}

func (e *stepError) Error() string { return e.what + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// asked names what was asked for in an error, if there is one.
func asked(what string, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{what, err}
}
