package pod

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/test/process"
)

// misleading are words of an API server's own in the mouth of somebody else.
const misleading = `pods "proxy-u-1" is forbidden: exceeded quota: gold`

// here selects the bench's namespace alone.
func (b *bench) here() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": b.namespace}}
}

// made is the creation of pods, or services.
func made(resource string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}
}

// makeForTest makes what is in no namespace and would outlive the test.
func (b *bench) makeForTest(o client.Object) {
	b.t.Helper()
	b.make(o)
	b.t.Cleanup(func() {
		if err := b.admin.Delete(context.WithoutCancel(b.t.Context()), o); err != nil {
			b.t.Error(err)
		}
	})
}

// policy denies every pod, or service, of the namespace.
func (b *bench) policy(resource string, reason *metav1.StatusReason) {
	b.t.Helper()
	b.makeForTest(&admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: b.namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: made(resource)}}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "false", Message: misleading, Reason: reason}},
		},
	})
	b.makeForTest(&admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: b.namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        b.namespace,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources:    &admissionregistrationv1.MatchResources{NamespaceSelector: b.here()},
		},
	})
}

func TestAPolicyThatDeniesThePodDeniesItForGood(t *testing.T) {
	for name, reason := range map[string]*metav1.StatusReason{
		"as invalid": nil, "as forbidden": ptr.To(metav1.StatusReasonForbidden), "as too large": ptr.To(metav1.StatusReasonRequestEntityTooLarge),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.policy("pods", reason)
			isOf(t, b.refused(b.request()), "permanent", "ValidatingAdmissionPolicy '"+b.namespace+"'", misleading)
		})
	}
}

// webhook has the API server ask url about every pod, or service, of the namespace.
func (b *bench) webhook(resource, url string, authority []byte) {
	b.t.Helper()
	b.makeForTest(&admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: b.namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:         resource + ".example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: authority},
			Rules:        []admissionregistrationv1.RuleWithOperations{made(resource)}, NamespaceSelector: b.here(),
			FailurePolicy: ptr.To(admissionregistrationv1.Fail), SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds: ptr.To[int32](1), AdmissionReviewVersions: []string{"v1"},
		}},
	})
}

// denying answers every review with this result.
func denying(result *metav1.Status) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: result}
		_ = json.NewEncoder(w).Encode(review)
	}
}

func TestAWebhookThatDeniesThePodDeniesItForGood(t *testing.T) {
	for name, result := range map[string]*metav1.Status{
		"403":              {Code: http.StatusForbidden, Message: misleading},
		"403 and a reason": {Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: misleading},
		"400":              {Code: http.StatusBadRequest, Message: misleading},
		"422":              {Code: http.StatusUnprocessableEntity, Message: misleading},
		"no code":          {Message: misleading},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			hook := httptest.NewTLSServer(denying(result))
			defer hook.Close()
			b.webhook("pods", hook.URL, authorityOf(hook))
			isOf(t, b.refused(b.request()), "permanent", `admission webhook "pods.example.com" denied the request`, misleading)
		})
	}
}

// Nothing in a Service is secret: what is said about it is told in full.
func TestWhatDeniesAServiceIsQuoted(t *testing.T) {
	const words = "load balancers cost money"
	t.Run("policy", func(t *testing.T) {
		b := newBench(t)
		b.policy("services", ptr.To(metav1.StatusReasonForbidden))
		isOf(t, b.refused(b.request(byBalancer)), "permanent", "create service", "ValidatingAdmissionPolicy '"+b.namespace+"'", misleading)
		b.mustCreate(b.request(byPodIP))
	})
	for name, result := range map[string]*metav1.Status{
		"403": {Code: http.StatusForbidden, Message: words}, "422": {Code: http.StatusUnprocessableEntity, Message: words},
	} {
		t.Run("webhook, "+name, func(t *testing.T) { isOf(t, deniedService(t, result), "permanent", "create service", words) })
	}
	// Reasons that speak of an instance in the mouth of others are about none.
	for _, reason := range []metav1.StatusReason{metav1.StatusReasonAlreadyExists, metav1.StatusReasonNotFound} {
		t.Run("webhook, "+string(reason), func(t *testing.T) {
			result := &metav1.Status{Code: http.StatusConflict, Reason: reason, Message: words}
			isOf(t, deniedService(t, result), "transient", "create service", words)
		})
	}
}

// deniedService is the refusal of a Service that a webhook answers so about.
func deniedService(t *testing.T, result *metav1.Status) error {
	t.Helper()
	b := newBench(t)
	hook := httptest.NewTLSServer(denying(result))
	defer hook.Close()
	b.webhook("services", hook.URL, authorityOf(hook))
	return b.refused(b.request(byBalancer))
}

func TestAWebhookThatIsNotThereIsAskedAgain(t *testing.T) {
	broken := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "forbidden", http.StatusForbidden) }
	hanging := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or it is not told that the other end is gone
		<-r.Context().Done()
	}
	for name, handler := range map[string]http.HandlerFunc{"broken": broken, "hanging": hanging} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			hook := httptest.NewTLSServer(handler)
			defer hook.Close()
			b.webhook("pods", hook.URL, authorityOf(hook))
			isOf(t, b.refused(b.request()), "transient", `failed calling webhook "pods.example.com"`)
		})
	}
	t.Run("down", func(t *testing.T) {
		b := newBench(t)
		port, err := process.ReservePort("")
		if err != nil {
			t.Fatal(err)
		}
		defer port.Release()
		b.webhook("pods", fmt.Sprint("https://", port.Address()), nil)
		isOf(t, b.refused(b.request()), "transient", `failed calling webhook "pods.example.com"`, "connection refused")
	})
}

// authorityOf is what vouches for the server.
func authorityOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}
