package registry

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// transportError says in words of our own what went wrong on the way to a
// server. The libraries' words quote what they could not read, and a peer may
// have put the request into that, credential and all.
type transportError struct {
	words string
	cause error
}

func (e *transportError) Error() string { return e.words }
func (e *transportError) Unwrap() error { return e.cause }

// Timeout and Temporary make it a net.Error, as what it stands for may be one.
func (e *transportError) Timeout() bool {
	var timeout net.Error
	return errors.As(e.cause, &timeout) && timeout.Timeout()
}
func (e *transportError) Temporary() bool { return e.Timeout() }

// resumable are phrases of the libraries by which client-go knows a connection
// that just ended (util/net of apimachinery): it tries again at once then.
var resumable = []string{
	"http: can't write HTTP request on broken connection", "http2: server sent GOAWAY and closed the connection",
	"http2: client connection lost", "use of closed network connection",
}

// clean puts the error of a transport into words of our own.
func clean(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	}
	for _, phrase := range resumable {
		if strings.Contains(err.Error(), phrase) {
			return &transportError{phrase, err}
		}
	}
	return &transportError{inWords(err), err}
}

func inWords(err error) string {
	var dns *net.DNSError
	var alert tls.AlertError
	var record tls.RecordHeaderError
	var operation *net.OpError
	var number syscall.Errno
	var timeout net.Error
	switch words := certificateInWords(err); {
	case words != "":
		return words
	case errors.As(err, &dns):
		return fmt.Sprintf("the name %s cannot be resolved", dns.Name)
	case errors.As(err, &alert):
		return "the server ends the TLS handshake: " + alert.Error()
	case errors.As(err, &record):
		return "the server does not speak TLS"
	case errors.As(err, &timeout) && timeout.Timeout():
		return inTime
	case errors.As(err, &number) && errors.As(err, &operation) && operation.Addr != nil:
		if number == syscall.ECONNREFUSED {
			return fmt.Sprintf("the connection to %s is refused", operation.Addr)
		}
		return fmt.Sprintf("the connection to %s fails: %s", operation.Addr, number)
	default:
		return noSense
	}
}

const noSense = "the connection ends without an answer that makes sense"

var inTime = fmt.Sprintf("no usable answer comes in time, which is %s", requestTimeout)

// certificateInWords is empty for what is not about a certificate.
func certificateInWords(err error) string {
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return "the server's certificate is not of an authority that the kubeconfig names"
	case errors.As(err, &hostname):
		return fmt.Sprintf("the server's certificate is not for %s", hostname.Host)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the server's certificate is valid from %s to %s only",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &verification), errors.As(err, &invalid):
		return "the server's certificate cannot be verified"
	default:
		return ""
	}
}

// minSecret is the length of what is looked for: less is found in any text.
const minSecret = 8

// leaks says that an answer has the secret in it, as it is or in one of the
// forms that a server which shows the request could give it.
func leaks(body []byte, secret string) bool {
	if len(secret) < minSecret {
		return false
	}
	forms := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret)}
	if has(body, forms) {
		return true
	}
	var said any
	if json.Unmarshal(body, &said) != nil {
		return false
	}
	var plain bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(said) == nil && has(plain.Bytes(), forms) // without the escapes
}

func has(text []byte, forms []string) bool {
	for _, form := range forms {
		if bytes.Contains(text, []byte(form)) {
			return true
		}
	}
	return false
}
