package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Nothing that came back through a proxy is quoted. One that was ever sent
// credentials, by this probe or by an earlier one for whoever has the same endpoint,
// may echo them in all that it says: in a status line, a broken header, the name on a
// certificate, and in whatever spelling. So only that is told whose words are our own
// or Go's, since no list of spellings to scrub is complete. Nor are the hub's own
// addresses told, which are none of a Proxy's reader.

// statusLine is a status code, with the words that the standard has for it.
func statusLine(code int) string {
	if text := http.StatusText(code); text != "" {
		return strconv.Itoa(code) + " " + text
	}
	return strconv.Itoa(code)
}

// proxyText is what a proxy calls the status of a refusal, where it is one of those that
// known proxies give and other than the standard's: it tells a rule from a failure.
func proxyText(res *http.Response) string {
	text := strings.TrimPrefix(res.Status, strconv.Itoa(res.StatusCode)+" ")
	if knownTexts[text] && text != http.StatusText(res.StatusCode) {
		return text
	}
	return ""
}

// unquoted is told of what came where nothing better is known.
const unquoted = "what came instead is not quoted: the proxy may have put anything there"

// cause is what broke.
func cause(err error) string {
	var (
		errno syscall.Errno
		op    *net.OpError
		late  net.Error
	)
	switch {
	case errors.Is(err, io.EOF):
		return "EOF"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF.Error()
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"): // a TLS alert, which is a number
		return op.Op + ": " + op.Err.Error()
	case errors.Is(err, context.Canceled):
		return "the probe was called off"
	case errors.As(err, &late) && late.Timeout():
		return "no answer came in time"
	}
	if words := certificateCause(err); words != "" {
		return words
	}
	return protocolCause(err)
}

// certificateCause is why a certificate is not taken, if that is what broke.
func certificateCause(err error) string {
	var (
		unverified *tls.CertificateVerificationError
		authority  x509.UnknownAuthorityError
		hostname   x509.HostnameError
		invalid    x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &authority):
		return "the certificate is signed by an unknown authority"
	case errors.As(err, &hostname):
		return "the certificate is for another name than " + hostname.Host // which is what was asked for
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().Before(invalid.Cert.NotBefore):
		return "the certificate is not yet valid"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate has expired"
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return "the certificate is not for use by servers"
	case errors.As(err, &invalid):
		// Without the detail, which holds names from the certificate.
		bare := x509.CertificateInvalidError{Reason: invalid.Reason}
		return strings.TrimSuffix(bare.Error(), ": ")
	case errors.As(err, &unverified):
		return "the certificate cannot be verified"
	default:
		return ""
	}
}

// worded is what net/http and crypto/tls say in text alone: how it begins, and what
// is told of it. The rest of such a text may be the peer's. The first that fits counts.
var worded = []struct{ begins, told string }{
	{"malformed ", malformed},
	{"bad Content-Length ", malformed},
	{"invalid empty Content-Length ", malformed},
	{"http: message cannot contain multiple Content-Length headers", malformed},
	{"unsupported transfer encoding: ", malformed},
	{"too many transfer encodings: ", malformed},
	{"http chunk ", malformed},
	{"invalid byte in chunk length", malformed},
	{"http: suspiciously long trailer ", malformed},
	{"tls: server selected unsupported protocol version ", "the TLS version that was chosen is not supported: it must be 1.2 or later"},
	{"tls: failed to parse certificate from server", "the certificate is malformed"},
	{"tls: handshake message of length ", "a message of the TLS handshake is too large"},
	{"tls: ", "what came breaks the rules of TLS"},
}

const malformed = "what came is malformed HTTP"

// protocolCause is in what way the peer speaks another protocol than is expected.
func protocolCause(err error) string {
	var (
		record tls.RecordHeaderError
		header textproto.ProtocolError
	)
	switch {
	case errors.Is(err, errTooMuch):
		return "what came is too large"
	case errors.As(err, &record):
		return "what came is not TLS"
	case errors.As(err, &header):
		return malformed
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	text := err.Error()
	// The frame with which HTTP/2 begins is taken for a line, of which this is quoted.
	if strings.HasPrefix(text, `malformed HTTP response "\x00\x00`) || strings.HasPrefix(text, `malformed HTTP version "HTTP/2`) {
		return "what came is HTTP/2 or no HTTP at all: only HTTP/1.1 is spoken"
	}
	for _, w := range worded {
		if strings.HasPrefix(text, w.begins) {
			return w.told
		}
	}
	return unquoted
}

// advice adds to what failed what to do about it.
type advice struct {
	// proven says that the proxy was shown credentials.
	proven bool
	// named says that authorities are named for TLS with the proxy itself.
	named bool
}

// refusal adds to the words for a 407 what to look at.
func (a advice) refusal(words string) string {
	if a.proven {
		return words + ": it does not take the credentials that authSecretRef names"
	}
	return words + ": name a Secret with its username and password in authSecretRef"
}

// connect adds to the words for another refusal what to look at: tinyproxy, for one,
// answers 401 to credentials that it does not take.
func (a advice) connect(refused *connectError) string {
	if a.proven && refused.code == http.StatusUnauthorized {
		return refused.Error() + ": it may not take the credentials that authSecretRef names"
	}
	return refused.Error()
}

// proxyTLS is what is wrong with the certificate of the proxy itself, and what to
// do about it.
func (a advice) proxyTLS(err error) string {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
	)
	switch {
	case errors.As(err, &authority) && a.named:
		return "its certificate is signed by none of the authorities in tls.caSecretRef"
	case errors.As(err, &authority):
		return "its certificate is signed by an authority that this system does not trust: name it in tls.caSecretRef"
	case errors.As(err, &hostname):
		return "its certificate is for another name than " + hostname.Host + ": give one of its own in tls.serverName"
	default:
		return cause(err)
	}
}

// knownTexts are the words that tinyproxy 1.11 has for refusals beside the standard's.
var knownTexts = map[string]bool{
	"Access denied": true, "Filtered": true, "Access violation": true, "Unable to connect": true, "Unknown host": true,
}
