package registry

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func TestExplain(t *testing.T) {
	here, there := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 54321}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 6443}
	for _, tc := range []struct {
		name         string
		err          error
		reason, says string
		never        string
	}{
		{"the hub's own port is another each time", &url.Error{Op: "Get", URL: "https://10.0.0.1", Err: clean(&net.OpError{Op: "read", Net: "tcp", Source: here, Addr: there, Err: os.NewSyscallError("read", syscall.ECONNRESET)})},
			v1alpha1.ReasonUnreachable, "10.0.0.1:6443 fails: connection reset by peer", "54321"},
		{"cut off", &url.Error{Op: "Get", URL: "https://10.0.0.1", Err: clean(io.EOF)}, v1alpha1.ReasonUnreachable, "ends without an answer", "https://"},
		{"cut off in the middle", asked("get /version", io.ErrUnexpectedEOF), v1alpha1.ReasonUnreachable, "ends without an answer", ""},
		{"a name", clean(&net.DNSError{Name: "spoke.example", Err: theToken}), v1alpha1.ReasonUnreachable, "spoke.example cannot be resolved", theToken},
		{"what HTTP cannot read", clean(fmt.Errorf("malformed MIME header: missing colon: %q", theToken)), v1alpha1.ReasonUnreachable, "makes sense", theToken},
		{"a certificate for something else", clean(x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{theToken}}, Host: "10.0.0.1"}), v1alpha1.ReasonUnreachable, "certificate is not for 10.0.0.1", theToken},
		{"an API server that is starting", asked("get /version", apierrors.NewServiceUnavailable(theToken)), v1alpha1.ReasonUnreachable, "503 Service Unavailable to: get /version", theToken},
		{"a right", asked("list x", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New(theToken))), v1alpha1.ReasonForbidden, "list x", theToken},
		{"what a decoder quotes", fmt.Errorf("Object 'Kind' is missing in %q", theToken), v1alpha1.ReasonUnreachable, "does not answer as", theToken},
		{"another cluster", &url.Error{Err: &identityError{"a", "b", ""}}, v1alpha1.ReasonIdentityChanged, v1alpha1.AnnotationAcceptIdentity + "=b", ""},
		{"the end of the registration", &url.Error{Err: errSevered}, v1alpha1.ReasonUnreachable, "not registered any more", ""},
	} {
		reason, message := explain(tc.err)
		if reason != tc.reason || !strings.Contains(message, tc.says) || tc.never != "" && strings.Contains(message, tc.never) {
			t.Errorf("%s: %s, %q", tc.name, reason, message)
		}
	}
}

func TestClientGoStillKnowsWhatItTriesAgain(t *testing.T) {
	timeout := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	for name, tc := range map[string]struct {
		err   error
		known func(error) bool
	}{
		"EOF":            {io.EOF, utilnet.IsProbableEOF},
		"unexpected EOF": {io.ErrUnexpectedEOF, utilnet.IsProbableEOF},
		"GOAWAY":         {errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1, debug=" + theToken), utilnet.IsProbableEOF},
		"closed":         {&net.OpError{Op: "read", Err: net.ErrClosed}, utilnet.IsProbableEOF},
		"lost":           {errors.New("http2: client connection lost"), utilnet.IsHTTP2ConnectionLost},
		"timeout":        {timeout, utilnet.IsTimeout},
		"refused":        {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, utilnet.IsConnectionRefused},
		"reset":          {&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, utilnet.IsConnectionReset},
	} {
		raw := &url.Error{Op: "Get", URL: "https://x", Err: tc.err}
		cleaned := &url.Error{Op: "Get", URL: "https://x", Err: clean(tc.err)}
		if !tc.known(raw) || !tc.known(cleaned) || strings.Contains(cleaned.Error(), theToken) {
			t.Errorf("%s: known %v before, %v after: %v", name, tc.known(raw), tc.known(cleaned), cleaned)
		}
	}
}

func TestErrorEventsAreNotQuoted(t *testing.T) {
	for _, object := range []runtime.Object{
		&metav1.Status{Code: 410, Reason: metav1.StatusReasonExpired, Message: theToken}, &metav1.Status{Code: 400, Reason: theToken, Message: theToken}, &v1alpha1.Proxy{},
	} {
		err := apierrors.FromObject(unquoted(object))
		status, _ := object.(*metav1.Status)
		if strings.Contains(fmt.Sprintf("%+v", err), theToken) || apierrors.IsResourceExpired(err) != (status != nil && status.Reason == metav1.StatusReasonExpired) {
			t.Errorf("%+v", err)
		}
	}
}

func TestLeaks(t *testing.T) {
	escaped := strings.ReplaceAll(theToken, "t", `\\u0074`)
	escaped = strings.ReplaceAll(escaped, `\\`, `\`)
	if !json.Valid([]byte(`"` + escaped + `"`)) {
		t.Fatal(escaped)
	}
	for name, body := range map[string]string{
		"as it is": "you are " + theToken, "escaped": `{"message":"you are ` + escaped + `"}`,
		"base64": "you are " + base64.StdEncoding.EncodeToString([]byte(theToken)),
		"a key":  `{"` + escaped + `":1}`,
	} {
		if !leaks([]byte(body), theToken) {
			t.Errorf("%s: not found in %s", name, body)
		}
	}
	for _, body := range []string{"", "{}", "you are somebody", `{"message":"forbidden"}`} {
		if leaks([]byte(body), theToken) || leaks([]byte(body), "") {
			t.Errorf("found in %s", body)
		}
	}
}

func TestSplitNamespaces(t *testing.T) {
	text := func(s string) *string { return &s }
	for _, tc := range []struct {
		annotation *string
		want       string
		wrong      bool
	}{
		{nil, "[]", false}, {text("a"), "[a]", false}, {text("b, a ,b"), "[a b]", false},
		{text(""), "[]", true}, {text("a,"), "[]", true}, {text("A"), "[]", true}, {text("*"), "[]", true},
		{text(strings.Repeat("n,", 101) + "n"), "[n]", false},
	} {
		got, wrong := splitNamespaces(tc.annotation)
		if fmt.Sprint(got) != tc.want || len(wrong) > 0 != tc.wrong {
			t.Errorf("%v: %v, %v", tc.annotation, got, wrong)
		}
	}
	var many []string
	for i := range maxNamespaces + 1 {
		many = append(many, fmt.Sprintf("n%d", i))
	}
	if _, wrong := splitNamespaces(text(strings.Join(many, ","))); len(wrong) == 0 {
		t.Error("more than can be watched are taken")
	}
}

func TestTheRightsThatAreReviewedAreThoseOfTheRoles(t *testing.T) {
	has := func(namespaces []string, namespace, verb, resource, subresource string) bool {
		for _, r := range rightsFor(namespaces) {
			if r.Namespace == namespace && r.Verb == verb && r.Resource == resource && r.Subresource == subresource {
				return true
			}
		}
		return false
	}
	if !has(nil, "", "patch", "proxies", "status") || !has(nil, "", "create", "pods", "") || !has(nil, "", "get", "namespaces", "") {
		t.Errorf("rights %v", rightsFor(nil))
	}
	if has([]string{"a", "b"}, "", "create", "pods", "") || !has([]string{"a", "b"}, "b", "create", "pods", "") || !has([]string{"a"}, "", "get", "namespaces", "") {
		t.Errorf("rights in namespaces %v", rightsFor([]string{"a", "b"}))
	}
}
