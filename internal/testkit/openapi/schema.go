package openapi

import (
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The keywords that a schema may have, by what is inside them. JSON Schema ignores a keyword
// that it does not know, and a misspelt one would then hold nobody to anything.
var (
	plainKeywords = strings.Fields(`$ref $comment title description default deprecated readOnly writeOnly examples
		example externalDocs type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength
		minLength pattern maxItems minItems uniqueItems maxContains minContains maxProperties minProperties required
		dependentRequired format contentEncoding contentMediaType`)
	schemaKeywords = strings.Fields(`additionalProperties propertyNames unevaluatedProperties unevaluatedItems items
		contains not if then else`)
	schemasKeywords = strings.Fields(`properties patternProperties dependentSchemas $defs allOf anyOf oneOf prefixItems`)
)

// schema compiles a schema and checks what is inside. It returns nil, and notes the problem,
// when it cannot be compiled.
func (d *document) schema(n node) *jsonschema.Schema {
	compiled, err := d.compiler.Compile(n.fragment())
	if err != nil {
		d.wrong(n, "%w", err)
		return nil
	}
	d.inside(n)
	return compiled
}

// inside checks keywords and examples of a schema and of those within.
func (d *document) inside(n node) {
	if d.checked[n.pointer] {
		return
	}
	d.checked[n.pointer] = true
	if _, isObject := n.value.(map[string]any); !isObject {
		return // true or false
	}
	for _, keyword := range n.children() {
		switch name := keyword.name(); {
		case slices.Contains(schemaKeywords, name):
			d.inside(keyword)
		case slices.Contains(schemasKeywords, name):
			for _, sub := range keyword.children() {
				d.inside(sub)
			}
		case !slices.Contains(plainKeywords, name) && !strings.HasPrefix(name, "x-"):
			d.wrong(keyword, "this is no keyword that a schema here may have")
		}
	}
	examples := n.child("examples").children()
	for _, key := range []string{"default", "example"} {
		if one := n.child(key); n.has(key) {
			examples = append(examples, one)
		}
	}
	if len(examples) == 0 {
		return
	}
	compiled, err := d.compiler.Compile(n.fragment())
	if err != nil {
		d.wrong(n, "%w", err)
		return
	}
	for _, example := range examples {
		d.example(example, compiled)
	}
}

// has says that the member is there, null included.
func (n node) has(key string) bool {
	object, _ := n.value.(map[string]any)
	_, ok := object[key]
	return ok
}

func (d *document) example(example node, schema *jsonschema.Schema) {
	if schema == nil {
		return // already a problem
	}
	if err := schema.Validate(example.value); err != nil {
		d.wrong(example, "the example is not as its schema says: %w", err)
	}
}

// described compiles the schema of a parameter, a header or a media type, and checks the
// examples beside it.
func (d *document) described(n node) *jsonschema.Schema {
	if !n.has("schema") {
		d.wrong(n, "it needs a schema")
		return nil
	}
	schema := d.schema(n.child("schema"))
	if n.has("example") {
		d.example(n.child("example"), schema)
	}
	for _, one := range n.child("examples").children() {
		one = d.resolve(one)
		if !one.has("value") {
			d.wrong(one, "it needs a value")
			continue
		}
		d.example(one.child("value"), schema)
	}
	return schema
}

// codes are the values that the schema leaves to the member error of an object; nil when it
// does not list them.
func (d *document) codes(n node) []string {
	var codes []string
	narrow := func(more []string) {
		switch {
		case more == nil:
		case codes == nil:
			codes = more
		default:
			codes = slices.DeleteFunc(slices.Clone(codes), func(code string) bool { return !slices.Contains(more, code) })
		}
	}
	if n.has("$ref") {
		narrow(d.codes(d.resolve(n)))
	}
	for _, part := range n.child("allOf").children() {
		narrow(d.codes(part))
	}
	member := d.resolve(n.child("properties").child("error"))
	values := member.child("enum").children()
	if member.has("const") {
		values = append(values, member.child("const"))
	}
	var listed []string
	for _, value := range values {
		if code, ok := value.value.(string); ok {
			listed = append(listed, code)
		}
	}
	narrow(listed)
	return codes
}
