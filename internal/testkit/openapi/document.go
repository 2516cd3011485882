package openapi

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

//go:embed openapi-3.1.schema.json
var metaSchemaJSON []byte

// metaSchema is compiled once: it is large, and does not change.
var metaSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(metaSchemaJSON))
	if err != nil {
		return nil, fmt.Errorf("read the meta-schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("meta:openapi", doc); err != nil {
		return nil, fmt.Errorf("add the meta-schema: %w", err)
	}
	return c.Compile("meta:openapi")
})

// location names the document in the messages of the schema compiler.
const location = "openapi:description"

// document is a description while it is being read.
type document struct {
	root     any
	compiler *jsonschema.Compiler
	problems []error
	// checked are the schemas whose inside has been looked at, by pointer.
	checked map[string]bool
}

// node is a value of the document and the JSON pointer to it.
type node struct {
	pointer string
	value   any
}

func parse(text []byte) (*Description, error) {
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read YAML as JSON: %w", err)
	}
	meta, err := metaSchema()
	if err != nil {
		return nil, err
	}
	if err := meta.Validate(root); err != nil {
		return nil, fmt.Errorf("not OpenAPI 3.1: %w", err)
	}
	d := &document{root: root, compiler: jsonschema.NewCompiler(), checked: map[string]bool{}}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource(location, root); err != nil {
		return nil, fmt.Errorf("add the document: %w", err)
	}
	d.references()
	if len(d.problems) > 0 { // what follows goes along references
		return nil, errors.Join(d.problems...)
	}
	read := &Description{seen: map[string]bool{}}
	d.components()
	read.operations = d.operations()
	read.others = d.responses(d.top("x-other-paths"))
	return read, errors.Join(d.problems...)
}

func (d *document) wrong(n node, format string, args ...any) {
	d.problems = append(d.problems, fmt.Errorf("%s: %w", n.pointer, fmt.Errorf(format, args...)))
}

func (d *document) top(key string) node { return node{"", d.root}.child(key) }

// child is the member; its value is nil when there is none.
func (n node) child(key string) node {
	object, _ := n.value.(map[string]any)
	return node{n.pointer + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key), object[key]}
}

// children are the members of an object by name, or the items of an array, in order.
func (n node) children() []node {
	var all []node
	switch value := n.value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			all = append(all, n.child(key))
		}
	case []any:
		for i, item := range value {
			all = append(all, node{n.pointer + "/" + strconv.Itoa(i), item})
		}
	}
	return all
}

// name is the last part of the pointer.
func (n node) name() string {
	last := n.pointer[strings.LastIndexByte(n.pointer, '/')+1:]
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(last)
}

func (n node) text(key string) string {
	text, _ := n.child(key).value.(string)
	return text
}

func (n node) flag(key string) bool {
	flag, _ := n.child(key).value.(bool)
	return flag
}

// lookup follows a pointer from the root.
func (d *document) lookup(pointer string) (node, bool) {
	at := node{"", d.root}
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		found := false
		for _, child := range at.children() {
			if child.pointer == at.pointer+"/"+part {
				at, found = child, true
				break
			}
		}
		if !found {
			return node{}, false
		}
	}
	return at, true
}

// resolve follows references to where the thing itself is.
func (d *document) resolve(n node) node {
	for range 100 { // more is a circle
		ref := n.text("$ref")
		if ref == "" {
			return n
		}
		n, _ = d.lookup(strings.TrimPrefix(ref, "#"))
	}
	d.wrong(n, "its references run in a circle")
	return node{n.pointer, nil}
}

// references checks that every reference leads somewhere, and that every component is used:
// one that is not describes nothing, however right it is.
func (d *document) references() {
	used := map[string]bool{}
	var walk func(n node)
	walk = func(n node) {
		if ref, ok := n.child("$ref").value.(string); ok {
			pointer, local := strings.CutPrefix(ref, "#")
			if _, found := d.lookup(pointer); !local || !found {
				d.wrong(n, "%s refers to nothing in this document", ref)
			}
			used[pointer] = true
		}
		for _, child := range n.children() {
			walk(child)
		}
	}
	walk(node{"", d.root})
	for _, kind := range d.top("components").children() {
		for _, component := range kind.children() {
			if kind.name() != "securitySchemes" && !used[component.pointer] {
				d.wrong(component, "nothing refers to it")
			}
		}
	}
}

// fragment is the pointer as the schema compiler wants it: inside a URL.
func (n node) fragment() string {
	parts := strings.Split(n.pointer, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return location + "#" + strings.Join(parts, "/")
}
