package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"syscall"
	"time"

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
// being reachable share a reason and differ in the message.
func explainRequest(err error) (reason, message string) {
	switch {
	case apierrors.IsUnauthorized(err):
		return v1alpha1.ReasonUnauthorized, "the API server does not accept the credential: give the Secret a kubeconfig with a valid one"
	case apierrors.IsForbidden(err):
		return v1alpha1.ReasonForbidden, "the hub lacks a right in the cluster (apply config/rbac/spoke to it): " + err.Error()
	}
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var timeout net.Error
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		// The library's words have the present time in them.
		return v1alpha1.ReasonUnreachable, fmt.Sprintf("the server's certificate is valid from %s to %s only",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &verification), errors.As(err, &authority), errors.As(err, &hostname):
		return v1alpha1.ReasonUnreachable, "the server's certificate does not fit the kubeconfig: " + inner(err)
	case errors.Is(err, errRedirect), errors.Is(err, errTooLong), errors.Is(err, errSevered):
		return v1alpha1.ReasonUnreachable, inner(err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return v1alpha1.ReasonUnreachable, "the connection is refused: " + inner(err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return v1alpha1.ReasonUnreachable, fmt.Sprintf("no usable answer comes in time, which is %s", requestTimeout)
	case isOfTheConnection(err), errors.As(err, new(apierrors.APIStatus)):
		return v1alpha1.ReasonUnreachable, inner(err)
	default:
		// An answer that makes no sense: the library's words would quote it.
		return v1alpha1.ReasonUnreachable, errNotKubernetes.message
	}
}

// isOfTheConnection tells what happened under way from what was answered.
func isOfTheConnection(err error) bool {
	var request *url.Error
	var operation *net.OpError
	return errors.As(err, &request) || errors.As(err, &operation) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// inner leaves the verb and URL out, which the Spoke shows already, and the
// hub's own address with its port, which is another at each attempt.
func inner(err error) string {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var operation *net.OpError
	if errors.As(err, &operation) && operation.Source != nil {
		there := *operation
		there.Source = nil
		err = &there
	}
	return err.Error()
}
