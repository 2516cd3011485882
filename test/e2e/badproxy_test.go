package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// refusedSpecs are Proxies that the API server must reject, and what its message must say.
var refusedSpecs = []struct {
	name, spec string
	says       []string
}{
	{"Managed without provider", `{attributes: {region: eu}}`, []string{"write provider: kubernetes"}},
	{"an unknown provider", `{provider: azure}`, []string{"spec.provider", `"azure"`, `"kubernetes"`}},
	{"an unknown mode", `{mode: Shared, provider: kubernetes}`, []string{"spec.mode", `"Shared"`, `"Managed"`, `"External"`}},
	{"External without endpoint", `{mode: External}`, []string{"write endpoint: {host: …, port: …}"}},
	{"External with provider", `{mode: External, provider: kubernetes, endpoint: {host: 203.0.113.7, port: 8080}}`,
		[]string{"remove provider, or write mode: Managed"}},
	{"External with port", `{mode: External, port: 3128, endpoint: {host: 203.0.113.7, port: 8080}}`, []string{"endpoint.port"}},
	{"Managed with endpoint", `{provider: kubernetes, endpoint: {host: 203.0.113.7, port: 8080}}`,
		[]string{"remove endpoint, or write mode: External"}},
	{"an endpoint that is a URL", `{mode: External, endpoint: {host: "http://203.0.113.7", port: 8080}}`,
		[]string{"spec.endpoint.host", "without scheme"}},
	{"port 70000", `{provider: kubernetes, port: 70000}`, []string{"spec.port", "70000", "less than or equal to 65535"}},
	{"endpoint port 0", `{mode: External, endpoint: {host: 203.0.113.7, port: 0}}`,
		[]string{"spec.endpoint.port", "greater than or equal to 1"}},
	{"an attribute key that no query can hold", `{provider: kubernetes, attributes: {"Region/1": eu}}`,
		[]string{"spec.attributes", "an attribute key is 1 to 63 of lower-case letters"}},
	{"an attribute value that no query can hold", `{provider: kubernetes, attributes: {region: "e u&x"}}`,
		[]string{"spec.attributes", "an attribute value is 1 to 63 of letters"}},
	{"an empty attribute value", `{provider: kubernetes, attributes: {region: ""}}`, []string{"spec.attributes.region", "at least 1"}},
	{"an ftp health check", `{provider: kubernetes, healthCheck: {url: "ftp://example.com/"}}`,
		[]string{"spec.healthCheck.url", "http:// or https://"}},
	{"maxLeases 0", `{provider: kubernetes, maxLeases: 0}`, []string{"spec.maxLeases", "greater than or equal to 1"}},
	{"a threshold of 0", `{provider: kubernetes, healthCheck: {failureThreshold: 0}}`,
		[]string{"spec.healthCheck.failureThreshold", "greater than or equal to 1"}},
	{"a field with a typing error", `{provider: kubernetes, healthChek: {intervalSeconds: 5}}`, []string{`unknown field "spec.healthChek"`}},
}

// refusedEdits are changes of the samples that the API server must reject.
var refusedEdits = []struct {
	name, proxy, patch string
	says               []string
}{
	{"mode changed", "eu-1", `{"spec":{"mode":"External","provider":null,"endpoint":{"host":"203.0.113.7","port":8080}}}`,
		[]string{"mode cannot be changed: delete this Proxy and create another one"}},
	{"provider removed", "eu-1", `{"spec":{"provider":null}}`,
		[]string{"provider cannot be changed: delete this Proxy and create another one"}},
	{"provider changed", "eu-1", `{"spec":{"provider":"azure"}}`, []string{"spec.provider", `"kubernetes"`}},
}

func badProxies(t *testing.T, w *world) {
	eu := w.spokes[euWest]
	w.wantUnchanged(t, func() {
		for _, bad := range refusedSpecs {
			object := manifest(t, fmt.Sprintf(
				"apiVersion: crawl.proxyfleet.dev/v1alpha1\nkind: Proxy\nmetadata: {name: bad, namespace: crawl}\nspec: %s\n", bad.spec))
			// Strict is how kubectl asks.
			err := eu.Create(t.Context(), object, &client.CreateOptions{FieldValidation: "Strict"})
			wantRefused(t, bad.name, err, bad.says)
		}
		for _, bad := range refusedEdits {
			patch := client.RawPatch(types.MergePatchType, []byte(bad.patch))
			wantRefused(t, bad.name, eu.Patch(t.Context(), eu.proxy(t, bad.proxy), patch), bad.says)
		}
		if err := gone(eu.get(t, "bad", &v1alpha1.Proxy{})); err != nil {
			t.Errorf("a refused Proxy: %v", err)
		}
	})
}

// wantRefused fails unless the object was called invalid with each of the words.
func wantRefused(t *testing.T, name string, err error, says []string) {
	t.Helper()
	if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		t.Errorf("%s is not refused as invalid: %v", name, err)
		return
	}
	for _, words := range says {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%s: the message does not say %q: %v", name, words, err)
		}
	}
}
