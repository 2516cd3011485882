package validation

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

const namespace = "crawl"

// api is an API server with the Proxy CRD. What it refused is kept, to be held against the
// rules that there are.
type api struct {
	config *rest.Config
	http   *http.Client
	client client.Client
	crd    *schema

	refusals []string
}

func newAPI(t *testing.T) *api {
	t.Helper()
	plane := controlplane.StartForTest(t, 1)[0]
	if err := plane.Apply(t.Context(), crdFile); err != nil {
		t.Fatal(err)
	}
	a := &api{config: plane.Admin(), crd: readCRD(t)}
	var err error
	if a.http, err = rest.HTTPClientFor(a.config); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(a.config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Strict: a typing error in a table is no field that happens to be refused or pruned.
	a.client = client.WithFieldValidation(c, metav1.FieldValidationStrict)
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	return a
}

// parse reads a spec as a user writes it.
func parse(t *testing.T, spec string) map[string]any {
	t.Helper()
	var parsed map[string]any
	if err := yaml.Unmarshal([]byte(spec), &parsed); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	return parsed
}

func proxy(spec map[string]any) *unstructured.Unstructured {
	p := &unstructured.Unstructured{Object: map[string]any{}}
	if spec != nil {
		p.Object["spec"] = spec
	}
	p.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Proxy"))
	p.SetNamespace(namespace)
	p.SetGenerateName("p-")
	return p
}

// judge asks the API server about a Proxy, which it keeps only if told so, and returns the
// refusal; empty when it accepts.
func (a *api) judge(t *testing.T, p *unstructured.Unstructured, options ...client.CreateOption) string {
	t.Helper()
	return a.verdict(t, a.client.Create(t.Context(), p, options...))
}

func (a *api) verdict(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	if !apierrors.IsInvalid(err) {
		t.Fatalf("not a refusal by the schema: %v", err)
	}
	a.refusals = append(a.refusals, err.Error())
	return err.Error()
}

// expect fails unless the refusal says all of that.
func expect(t *testing.T, refusal string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(refusal, word) {
			t.Errorf("refusal: %q\nwants: %q", refusal, word)
		}
	}
}

// TestProxyCRD has one API server for all.
func TestProxyCRD(t *testing.T) {
	a := newAPI(t)
	t.Run("bad input is refused with what to write instead", a.testRefusals)
	t.Run("good input is accepted", a.testAccepted)
	t.Run("what is absent is filled in", a.testDefaults)
	t.Run("what an instance depends on is edited or not", a.testUpdates)
	t.Run("every bound is the last value that is accepted", a.testBounds)
	t.Run("an unknown word is refused with the known ones", a.testEnums)
	t.Run("what must be given is named", a.testRequired)
	t.Run("kubectl get shows its columns", a.testColumns)
	t.Run("kubectl knows px and crawl", a.testNames)
	t.Run("every rule has refused something", a.testNoRuleForgotten)
}

func (a *api) testNoRuleForgotten(t *testing.T) {
	_, _, _, messages := constraints(a.crd)
	for _, message := range messages {
		if !slices.ContainsFunc(a.refusals, func(r string) bool { return strings.Contains(r, message) }) {
			t.Errorf("no case was refused with: %s", message)
		}
	}
}

// sameTable compares what the CRD has with what a table expects.
func sameTable(t *testing.T, what string, crd, table map[string]string) {
	t.Helper()
	for path := range crd {
		if _, ok := table[path]; !ok {
			t.Errorf("%s %s of the CRD is not in the table: %s", what, path, crd[path])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(table)) {
		if crd[path] != table[path] {
			t.Errorf("%s %s of the CRD is %q, want %q", what, path, crd[path], table[path])
		}
	}
}
