package validation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// bounds are of a number, or of the length of a string, list or map.
var bounds = map[string]string{
	"spec.attributes":                     "0..32",
	"spec.attributes.*":                   "1..63",
	"spec.authSecretRef.name":             "1..253",
	"spec.cloudInit.inline":               "1..65536",
	"spec.cloudInit.secretRef.key":        "1..253",
	"spec.cloudInit.secretRef.name":       "1..253",
	"spec.endpoint.host":                  "1..253",
	"spec.endpoint.port":                  "1..65535",
	"spec.healthCheck.expectedStatuses":   "0..16",
	"spec.healthCheck.expectedStatuses.*": "200..599",
	"spec.healthCheck.failureThreshold":   "1..100",
	"spec.healthCheck.intervalSeconds":    "1..86400",
	"spec.healthCheck.successThreshold":   "1..100",
	"spec.healthCheck.timeoutSeconds":     "1..300",
	"spec.healthCheck.url":                "0..2048",
	"spec.kubernetes.args":                "0..256",
	"spec.kubernetes.command":             "0..256",
	"spec.kubernetes.env":                 "0..256",
	"spec.kubernetes.image":               "1..1024",
	"spec.kubernetes.imagePullSecrets":    "0..16",
	"spec.kubernetes.nodeSelector":        "0..64",
	"spec.kubernetes.podAnnotations":      "0..32",
	"spec.kubernetes.podLabels":           "0..32",
	"spec.kubernetes.podLabels.*":         "0..63",
	"spec.kubernetes.serviceAccountName":  "0..253",
	"spec.kubernetes.tolerations":         "0..64",
	"spec.maxLeases":                      "1..1000000",
	"spec.port":                           "1..65535",
	"spec.tls.caSecretRef.key":            "1..253",
	"spec.tls.caSecretRef.name":           "1..253",
	"spec.tls.secretRef.name":             "1..253",
	"spec.tls.serverName":                 "1..253",
}

// baseOf is a good spec that a value at path can be put into.
func baseOf(t *testing.T, path string) map[string]any {
	switch {
	case strings.HasPrefix(path, "spec.endpoint"):
		return parse(t, external)
	case strings.HasPrefix(path, "spec.tls"):
		return parse(t, "{provider: kubernetes, protocol: https, tls: {secretRef: {name: a}, caSecretRef: {name: a}}}")
	case strings.HasPrefix(path, "spec.cloudInit.secretRef"):
		return parse(t, "{provider: kubernetes, cloudInit: {secretRef: {name: a}}}")
	default:
		return parse(t, managed)
	}
}

// sized is a value of that schema which is n, or n long.
func sized(path string, s *schema, n int64) any {
	switch s.Type {
	case "integer":
		return n
	case "array":
		list := []any{}
		for i := range n {
			list = append(list, element(path, int(i)))
		}
		return list
	case "object":
		object := map[string]any{}
		for i := range n {
			object["k"+strconv.Itoa(int(i))] = "v"
		}
		return object
	}
	prefix := ""
	if path == "spec.healthCheck.url" {
		prefix = "http://a/"
	}
	return prefix + strings.Repeat("a", max(0, int(n)-len(prefix)))
}

func element(path string, i int) any {
	switch path {
	case "spec.kubernetes.command", "spec.kubernetes.args":
		return "same"
	case "spec.kubernetes.tolerations":
		return map[string]any{"key": "same"}
	case statuses:
		return int64(200 + i)
	default:
		return map[string]any{"name": fmt.Sprint("n", i)}
	}
}

// statuses is the list whose elements have bounds; the other elements that do are a map's.
const statuses = "spec.healthCheck.expectedStatuses"

// put sets the value at a path; .* is the key k of a map, or all that is in a list.
func put(t *testing.T, spec map[string]any, path string, value any) {
	t.Helper()
	if path == statuses+".*" {
		path, value = statuses, []any{value}
	}
	fields := strings.Split(strings.ReplaceAll(path, "*", "k"), ".")[1:]
	if err := unstructured.SetNestedField(spec, value, fields...); err != nil {
		t.Fatal(err)
	}
}

// shown is how a refusal names what put has set.
func shown(path string) string {
	return strings.ReplaceAll(strings.Replace(path, statuses+".*", statuses+"[0]", 1), "*", "k")
}

func (a *api) testBounds(t *testing.T) {
	have, _, _, _ := constraints(a.crd)
	sameTable(t, "the bound", have, bounds)
	a.crd.walk("", func(path string, s *schema) {
		if _, ok := bounds[path]; !ok {
			return
		}
		lower, upper := s.limits()
		judge := func(n int64) string {
			spec := baseOf(t, path)
			put(t, spec, path, sized(path, s, n))
			return a.judge(t, proxy(spec), client.DryRunAll)
		}
		for _, n := range []int64{lower, upper} {
			if n > 0 {
				if refusal := judge(n); refusal != "" {
					t.Errorf("%s: %d is refused: %s", path, n, refusal)
				}
			}
		}
		for n, bound := range map[int64]int64{lower - 1: lower, upper + 1: upper} {
			if n >= 0 {
				expect(t, judge(n), shown(path)+": ", fmt.Sprint(bound))
			}
		}
	})
}

var enums = map[string]string{
	"spec.kubernetes.expose": "PodIP HostPort LoadBalancer",
	"spec.mode":              "Managed External",
	"spec.protocol":          "http https socks5",
	"spec.provider":          "kubernetes",
}

func (a *api) testEnums(t *testing.T) {
	_, have, _, _ := constraints(a.crd)
	sameTable(t, "the words of", have, enums)
	for path, words := range enums {
		spec := baseOf(t, path)
		put(t, spec, path, "nonsense")
		refusal := a.judge(t, proxy(spec), client.DryRunAll)
		expect(t, refusal, path+`: Unsupported value: "nonsense"`)
		for word := range strings.FieldsSeq(words) {
			expect(t, refusal, strconv.Quote(word))
		}
	}
}

var required = []string{"spec", "spec.authSecretRef.name", "spec.cloudInit.secretRef.name", "spec.endpoint.host", "spec.endpoint.port", "spec.tls.caSecretRef.name", "spec.tls.secretRef.name"}

func (a *api) testRequired(t *testing.T) {
	_, _, have, _ := constraints(a.crd)
	slices.Sort(have)
	if !slices.Equal(have, required) {
		t.Errorf("required are %v, want %v", have, required)
	}
	expect(t, a.judge(t, proxy(nil), client.DryRunAll), "spec: Required value")
	for _, path := range required[1:] {
		spec := parse(t, "{provider: kubernetes, authSecretRef: {name: a}, cloudInit: {secretRef: {name: a}}, protocol: https, tls: {secretRef: {name: a}, caSecretRef: {name: a}}}")
		if strings.HasPrefix(path, "spec.endpoint") {
			spec = parse(t, external)
		}
		unstructured.RemoveNestedField(spec, strings.Split(path, ".")[1:]...)
		expect(t, a.judge(t, proxy(spec), client.DryRunAll), path+": Required value")
	}
}
