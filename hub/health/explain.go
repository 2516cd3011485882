package health

import (
	"context"
	"errors"
	"net/http"
	"os"
	"syscall"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// exhausted says that the hub's own machine has run out of something: no fault
// of the proxy's.
func exhausted(err error) bool {
	var dial *dialError
	if errors.As(err, &dial) && dial.beyond() {
		return false
	}
	for _, own := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

// stage is how far a probe got.
type stage int32

const (
	nowhere   stage = iota
	located         // the proxy's addresses are known
	dialled         // the proxy accepted the connection
	tunnelled       // it opened the tunnel
	secured         // the site was verified through the tunnel, or is plain HTTP there
)

// explain says what failed, so that an admin can act.
func explain(err error, at stage, advise advice) result {
	var (
		forbidden *forbiddenError
		unknown   *lookupError
		undialled *dialError
		refused   *connectError
		socks     *socksError
		insecure  *proxyTLSError
	)
	switch {
	case exhausted(err):
		return result{void: true, message: err.Error()}
	case errors.As(err, &forbidden):
		r := failure(v1alpha1.ReasonEndpointForbidden, forbidden.Error())
		r.final, r.own = true, true
		return r
	case errors.As(err, &refused) && refused.code == http.StatusProxyAuthRequired:
		return authRequired(advise.refusal(refused.Error()))
	case errors.As(err, &refused):
		return failure(v1alpha1.ReasonConnectRefused, advise.connect(refused))
	case errors.Is(err, errSOCKSAuth):
		return authRequired(advise.refusal(errSOCKSAuth.message))
	case errors.As(err, &socks):
		return failure(socks.reason, socks.message)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return failure(v1alpha1.ReasonTimeout, map[stage]string{
			nowhere:   "the lookup of the proxy's name does not end in time",
			located:   "the proxy does not accept a connection in time",
			dialled:   "the proxy accepted the connection, but no answer came in time",
			tunnelled: "the tunnel is open, but no answer to the TLS handshake came in time",
			secured:   "the probe's URL did not answer in time",
		}[at])
	case errors.As(err, &unknown):
		return failure(v1alpha1.ReasonDialFailed, unknown.Error())
	case errors.As(err, &undialled):
		return failure(v1alpha1.ReasonDialFailed, undialled.Error())
	case at < dialled:
		return failure(v1alpha1.ReasonDialFailed, "the probe did not get as far as the proxy")
	case errors.As(err, &insecure):
		return failure(v1alpha1.ReasonTLSFailed, "TLS with the proxy itself: "+advise.proxyTLS(insecure.error))
	case at == dialled:
		return failure(v1alpha1.ReasonConnectRefused, "the connection broke before an answer: "+cause(err))
	case at == tunnelled:
		return failure(v1alpha1.ReasonTLSFailed, "TLS with the probed site: "+cause(err))
	default:
		return failure(v1alpha1.ReasonUnexpectedStatus, "the answer of the probe's URL broke off: "+cause(err))
	}
}

// authRequired is a proxy that wants other credentials, which it is itself that says.
func authRequired(message string) result {
	r := failure(v1alpha1.ReasonProxyAuthRequired, message)
	r.own = true
	return r
}
