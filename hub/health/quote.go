package health

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
)

// quoter words what came back through a proxy. One that was sent credentials
// may echo them in all that it says: in a status line, a broken header, the name
// on a certificate, and in whatever spelling. Of such a one only that is told
// whose words are our own, since no list of spellings to scrub is complete.
type quoter struct {
	secret bool
	// named says that authorities are named for TLS with the proxy itself.
	named bool
}

// status is an answer's status line without its protocol.
func (q quoter) status(res *http.Response) string {
	if !q.secret {
		return res.Status
	}
	if text := http.StatusText(res.StatusCode); text != "" {
		return fmt.Sprintf("%d %s", res.StatusCode, text)
	}
	return fmt.Sprint(res.StatusCode)
}

// refusal adds to the words for a 407 what to look at.
func (q quoter) refusal(words string) string {
	if q.secret {
		return words + ": it does not take the credentials that authSecretRef names"
	}
	return words + ": name a Secret with its username and password in authSecretRef"
}

// proxyTLS is what is wrong with the certificate of the proxy itself, and what to
// do about it.
func (q quoter) proxyTLS(err error) string {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
	)
	switch {
	case errors.As(err, &authority) && q.named:
		return "its certificate is signed by none of the authorities in tls.caSecretRef"
	case errors.As(err, &authority):
		return "its certificate is signed by an authority that this system does not trust: name it in tls.caSecretRef"
	case errors.As(err, &hostname):
		return "its certificate is for another name than " + hostname.Host + ": give one of its own in tls.serverName"
	default:
		return q.err(err)
	}
}

// err is what broke.
func (q quoter) err(err error) string {
	if !q.secret {
		return err.Error()
	}
	var (
		errno     syscall.Errno
		op        *net.OpError
		record    tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.Is(err, io.EOF):
		return "EOF"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF.Error()
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &op) && op.Op == "remote error": // a TLS alert, which is a number
		return op.Error()
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "what came is not TLS"
	case errors.As(err, &authority):
		return "the certificate is signed by an unknown authority"
	case errors.As(err, &hostname):
		return "the certificate is for another name than " + hostname.Host // which is what was asked for
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate has expired or is not yet valid"
	default:
		return "what came instead is not quoted, since the proxy was sent credentials"
	}
}
