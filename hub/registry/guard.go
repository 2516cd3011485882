package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxRefusal bounds what is read of an answer that refuses a request.
	maxRefusal = 64 << 10
	// maxPreflight bounds every answer of a preflight or contact: a version, the
	// metadata of one object or another, one Proxy.
	maxPreflight = 2 << 20
	// maxRetryAfter, in seconds, is the longest that a server may have us wait.
	maxRetryAfter = 10
	// maxStream and streamRate, bytes and bytes a second, bound what a list or
	// watch may bring: fifty thousand Proxies at once, and a thousand changes of
	// them every second for as long as it lasts.
	maxStream, streamRate = 256 << 20, 4 << 20
)

var (
	errRedirect = errors.New("the server answers with a redirect, which is not followed: write the API server's own address")
	errSevered  = errors.New("the spoke is not registered any more")
	errTooLong  = errors.New("the server's answer is longer than an API server's would be")
)

// guard stands between client-go and a server that is not trusted yet.
//
// It keeps what a peer says in refusing a request out of errors, logs and
// conditions, unless a Kubernetes API server says it: a gateway may echo the
// request with the credential in it, and client-go copies such a body into its
// error, which then goes everywhere. It follows no redirect, which could lead
// the hub, credential in hand, to any address and over plain http. It bounds the
// answers to a preflight, since a body may never end. It asks which cluster this
// is before every list and watch, since a name can lead to another one by then,
// whose Proxies are not this spoke's. And it lets nothing out of a connection
// that is severed.
type guard struct {
	next http.RoundTripper
	// secret must not come back, whoever answers; empty: none.
	secret string
	conn   *connection
}

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if g.conn.isSevered() {
		return nil, errSevered
	}
	if !isShort(req) && (feedsACache(req) || g.conn.stranger.Load()) {
		if err := g.conn.prove(req.Context()); err != nil {
			return nil, err
		}
	}
	res, err := g.next.RoundTrip(req)
	switch {
	case err != nil:
		return nil, clean(err)
	case res.StatusCode >= http.StatusBadRequest:
		return g.refused(res)
	case res.StatusCode >= http.StatusMultipleChoices:
		_ = res.Body.Close()
		return nil, errRedirect
	case isShort(req):
		res.Body = &bounded{ReadCloser: res.Body, most: maxPreflight}
	default:
		res.Body = &bounded{ReadCloser: res.Body, most: maxStream, rate: streamRate, began: time.Now()}
	}
	return res, nil
}

func (g guard) refused(res *http.Response) (*http.Response, error) {
	// client-go waits for as long as it is told: a watch would be blind for days.
	switch seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); {
	case err != nil:
		res.Header.Del("Retry-After")
	case seconds > maxRetryAfter:
		res.Header.Set("Retry-After", strconv.Itoa(maxRetryAfter))
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	_ = res.Body.Close()
	if err != nil {
		return nil, clean(err)
	}
	if !fromKubernetes(res, body) || leaks(body, g.secret) {
		body = refusal(res.StatusCode)
		res.Header.Set("Content-Type", "application/json")
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res.Header.Del("Content-Length")
	return res, nil
}

// preflightKey marks a context whose requests have short answers.
type preflightKey struct{}

func isShort(req *http.Request) bool { return req.Context().Value(preflightKey{}) != nil }

// feedsACache tells the lists and watches of informers from other requests.
func feedsACache(req *http.Request) bool {
	query := req.URL.Query()
	return req.Method == http.MethodGet && !isShort(req) && (query.Has("watch") || query.Has("limit") || query.Has("resourceVersion"))
}

// short returns a context for one request with a short answer.
func short(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithValue(ctx, preflightKey{}, true), requestTimeout)
}

// bounded fails the reader of a body that is longer than most bytes, and rate
// bytes more for every second since it began.
type bounded struct {
	io.ReadCloser
	most, rate, read int64
	began            time.Time
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	most := b.most
	if b.rate > 0 {
		most += int64(time.Since(b.began).Seconds() * float64(b.rate))
	}
	if b.read > most {
		return 0, errTooLong
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		// In no words at all; and a watch that is cut off is taken up again
		// where it was.
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// WrappedRoundTripper lets client-go find the transport that holds connections.
func (g guard) WrappedRoundTripper() http.RoundTripper { return g.next }

// fromKubernetes says that the body is a Status as an API server writes it.
func fromKubernetes(res *http.Response, body []byte) bool {
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
		return bytes.HasPrefix(body, []byte("k8s\x00"))
	}
	var status metav1.Status
	return json.Unmarshal(body, &status) == nil && status.Kind == "Status"
}

func notAsKubernetes(code int) string {
	return fmt.Sprintf("%d %s, not said as a Kubernetes API server would: something else may answer for it", code, http.StatusText(code))
}

// refusal is a Status that says no more than the code.
func refusal(code int) []byte {
	reasons := map[int]metav1.StatusReason{
		http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusForbidden: metav1.StatusReasonForbidden,
		http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
	}
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code],
		Message: notAsKubernetes(code),
	})
	if err != nil {
		return nil // cannot be: strings and numbers alone
	}
	return body
}
