package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxRefusal bounds what is read of an answer that refuses a request.
const maxRefusal = 64 << 10

// plainAnswers keeps what a peer says in refusing a request out of errors,
// logs and conditions, unless a Kubernetes API server says it. A gateway may
// echo the request with the credential in it, and client-go copies such a body
// into its error, which then goes everywhere.
type plainAnswers struct {
	next http.RoundTripper
	// secret must not come back, whoever answers; empty: none.
	secret string
}

// RoundTrip implements http.RoundTripper.
func (p plainAnswers) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := p.next.RoundTrip(req)
	if err != nil || res.StatusCode < http.StatusBadRequest {
		return res, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	_ = res.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the answer %s: %w", res.Status, err)
	}
	if !fromKubernetes(res, body) || p.secret != "" && bytes.Contains(body, []byte(p.secret)) {
		body = refusal(res.StatusCode)
		res.Header.Set("Content-Type", "application/json")
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res.Header.Del("Content-Length")
	return res, nil
}

// WrappedRoundTripper lets client-go find the transport that holds connections.
func (p plainAnswers) WrappedRoundTripper() http.RoundTripper { return p.next }

// fromKubernetes says that the body is a Status as an API server writes it.
func fromKubernetes(res *http.Response, body []byte) bool {
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
		return bytes.HasPrefix(body, []byte("k8s\x00"))
	}
	var status metav1.Status
	return json.Unmarshal(body, &status) == nil && status.Kind == "Status"
}

// refusal is a Status that says no more than the code.
func refusal(code int) []byte {
	reasons := map[int]metav1.StatusReason{
		http.StatusUnauthorized: metav1.StatusReasonUnauthorized, http.StatusForbidden: metav1.StatusReasonForbidden,
		http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
	}
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code],
		Message: fmt.Sprintf("%d %s, not said as a Kubernetes API server would: something else may answer for it", code, http.StatusText(code)),
	})
	if err != nil {
		return nil // cannot be: strings and numbers alone
	}
	return body
}
