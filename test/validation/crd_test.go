package validation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

var crdFile = filepath.Join("..", "..", "config", "crd", "crawl.proxyfleet.dev_proxies.yaml")

// schema is what the tests read of a CRD's schema.
type schema struct {
	Description string
	Type        string
	Default     any
	Required    []string
	Enum        []string
	Properties  map[string]*schema
	Items       *schema
	// Values are those of a map.
	Values *schema                          `json:"additionalProperties"`
	Rules  []struct{ Rule, Message string } `json:"x-kubernetes-validations"`

	Minimum, Maximum             *int64
	MinLength, MaxLength         *int64
	MinItems, MaxItems           *int64
	MinProperties, MaxProperties *int64
	Pattern                      string
}

func readCRD(t *testing.T) *schema {
	t.Helper()
	objects, err := controlplane.Read(crdFile)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := objects[0].MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema *schema }
			}
		}
	}
	if err := json.Unmarshal(raw, &crd); err != nil {
		t.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// walk calls visit for every schema below s, in order, with its path: spec.port, and
// spec.attributes.* for what a map or list consists of.
func (s *schema) walk(path string, visit func(path string, s *schema)) {
	visit(path, s)
	var names []string
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		s.Properties[name].walk(strings.TrimPrefix(path+"."+name, "."), visit)
	}
	for _, element := range []*schema{s.Items, s.Values} {
		if element != nil {
			element.walk(path+".*", visit)
		}
	}
}

// theirs are the types that Kubernetes defines.
var theirs = []string{"apiVersion", "kind", "metadata", "spec.kubernetes.env.*", "spec.kubernetes.imagePullSecrets.*", "spec.kubernetes.resources", "spec.kubernetes.securityContext", "spec.kubernetes.tolerations.*", "status.conditions.*"}

func isTheirs(path string) bool {
	return slices.ContainsFunc(theirs, func(t string) bool { return path == t || strings.HasPrefix(path, t+".") })
}

// limits are the lower and upper bound of a value, or of its length; -1 where there is none.
func (s *schema) limits() (lower, upper int64) {
	of := func(bounds ...*int64) int64 {
		if b := cmp.Or(bounds...); b != nil {
			return *b
		}
		return -1
	}
	return of(s.Minimum, s.MinLength, s.MinItems, s.MinProperties), of(s.Maximum, s.MaxLength, s.MaxItems, s.MaxProperties)
}

// constraints are those of ours in the schema, by path, in the words of the tables.
func constraints(crd *schema) (bounds, enums map[string]string, required, messages []string) {
	bounds, enums = map[string]string{}, map[string]string{}
	crd.walk("", func(path string, s *schema) {
		for _, rule := range s.Rules {
			messages = append(messages, rule.Message)
		}
		if isTheirs(path) || strings.HasPrefix(path, "status") {
			return
		}
		if lower, upper := s.limits(); lower >= 0 || upper >= 0 {
			bounds[path] = fmt.Sprintf("%d..%d", max(lower, 0), upper)
		}
		if s.Enum != nil {
			enums[path] = strings.Join(s.Enum, " ")
		}
		for _, name := range s.Required {
			required = append(required, strings.TrimPrefix(path+"."+name, "."))
		}
	})
	return bounds, enums, required, messages
}

func TestTheCRDIsOfTheSchemaVersionThatTheHubAsksFor(t *testing.T) {
	objects, err := controlplane.Read(crdFile)
	if err != nil {
		t.Fatal(err)
	}
	if have := objects[0].GetAnnotations()[v1alpha1.AnnotationSchemaVersion]; have != strconv.Itoa(v1alpha1.SchemaVersion) {
		t.Errorf("the CRD has schema version %q, the hub asks for %d", have, v1alpha1.SchemaVersion)
	}
}

// explainWidth is what kubectl explain leaves of 80 columns.
const explainWidth = 76

func TestKubectlExplainHasAWordOnEveryField(t *testing.T) {
	readCRD(t).walk("", func(path string, s *schema) {
		isElement := strings.HasSuffix(path, ".*") // explain shows that of the list or map
		if path != "metadata" && !isElement && strings.TrimSpace(s.Description) == "" {
			t.Errorf("%s has no description: write a doc comment", cmp.Or(path, "Proxy"))
		}
		for line := range strings.Lines(s.Description) {
			if !isTheirs(path) && len(strings.TrimSpace(line)) > explainWidth {
				t.Errorf("%s: kubectl explain breaks the line %q: wrap it at %d", path, line, explainWidth)
			}
		}
	})
}

func TestEveryRuleSaysWhatToWrite(t *testing.T) {
	readCRD(t).walk("", func(path string, s *schema) {
		for _, rule := range s.Rules {
			if rule.Message == "" {
				t.Errorf("%s: the rule %s has no message", path, rule.Rule)
			}
		}
		if s.Pattern != "" && !isTheirs(path) {
			t.Errorf("%s has a pattern, whose refusal shows a regular expression: write a rule with a message", path)
		}
	})
}
