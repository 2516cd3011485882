package openapi

import (
	"strings"
	"testing"
)

// small is a whole description, which each case below breaks in one place.
const small = `
openapi: 3.1.0
info: {title: t, version: v}
security: [{token: []}]
paths:
  /a/{id}:
    parameters:
      - {name: id, in: path, required: true, schema: {type: string}, example: x}
    get:
      operationId: a
      parameters:
        - {name: num, in: query, schema: {type: integer, default: 1}}
        - {name: rest, in: query, schema: {type: object}}
      responses:
        "200":
          description: d
          content: {application/json: {schema: {$ref: "#/components/schemas/Thing"}, examples: {one: {value: {size: 1}}}}}
        "401":
          description: d
          headers: {Retry-After: {required: true, schema: {type: integer}, example: 5}}
          content: {application/json: {schema: {type: object, properties: {error: {const: denied}}}}}
  /a/fixed:
    get:
      operationId: b
      security: []
      responses: {"204": {description: d}}
x-other-paths:
  "404": {description: d}
components:
  securitySchemes: {token: {type: http, scheme: bearer}}
  schemas:
    Thing:
      type: object
      additionalProperties: false
      properties: {size: {type: integer, minimum: 1, examples: [1]}}
`

func TestADescriptionThatIsItselfWrongIsRefused(t *testing.T) {
	if _, err := parse([]byte(small)); err != nil {
		t.Fatalf("the description that the cases start from: %v", err)
	}
	for _, tc := range []struct{ name, old, now, says string }{
		{"no YAML", "info: {", "info: {{", "read YAML"},
		{"a key twice", "info:", "openapi: 3.1.0\ninfo:", "already set"},
		{"another version", "3.1.0", "3.0.3", "not OpenAPI 3.1"},
		{"no title", "title: t, ", "", "missing property 'title'"},
		{"no description of a status", `"204": {description: d}`, `"204": {}`, "missing property 'description'"},
		{"a key that is none", "operationId: b", "operationID: b", "/get/operationID'"},
		{"an optional part of a path", "required: true, schema: {type: string}", "schema: {type: string}", "required"},
		{"a type that is none", "{type: integer, minimum", "{type: int, minimum", "/properties/size/type"},
		{"a keyword that is none", "minimum: 1", "min: 1", "/properties/size/min: this is no keyword"},
		{"a keyword that is none, deep inside", "{const: denied}", "{not: {anyOf: [{konst: denied}]}}", "/konst: this is no keyword"},
		{"a pattern that is none", "{type: string}", `{type: string, pattern: "("}`, "is not valid regex"},
		{"a reference to nowhere", "schemas/Thing", "schemas/Thong", "refers to nothing"},
		{"a reference to elsewhere", "#/components/schemas/Thing", "other.yaml", "refers to nothing"},
		{"a component that nothing uses", "    Thing:", "    Idle: {type: string}\n    Thing:", "schemas/Idle: nothing refers to it"},
		{"a wrong example of a body", "{value: {size: 1}}", "{value: {size: 0}}", "/examples/one/value: the example"},
		{"a wrong example in a schema", "examples: [1]", "examples: [1, 0]", "/examples/1: the example"},
		{"a wrong example of a parameter", "example: x", "example: 1", "/example: the example"},
		{"a wrong example of a header", "example: 5", "example: soon", "/example: the example"},
		{"a wrong default", "default: 1", "default: many", "/default: the example"},
		{"a path parameter that is not described", "/a/fixed", "/a/{other}", "path parameter other is not described"},
		{"a path parameter that is not there", "/a/{id}", "/a/id", "the path has no {id}"},
		{"half a segment", "/a/{id}", "/a/x{id}", "has to be a whole segment"},
		{"a parameter twice", "{name: rest, in: query, schema: {type: object}}", "{name: num, in: query, schema: {type: string}}", "num is described twice"},
		{"two objects in a query", "{name: num, in: query, schema: {type: integer, default: 1}}", "{name: num, in: query, schema: {type: object}}", "only one query parameter"},
		{"a cookie", "name: num, in: query", "name: num, in: cookie", "cookies are not understood"},
		{"a style", "name: rest, in: query", "name: rest, in: query, style: deepObject", "style are not understood"},
		{"a list", "{type: integer, default: 1}", "{type: array}", "lists and objects"},
		{"an operation without a name", "      operationId: b\n", "", "operationId of its own"},
		{"two of one name", "operationId: b", "operationId: a", "operationId of its own"},
		{"a status class", `"204"`, `"2XX"`, "one status from 200 to 599"},
		{"401 where no token is needed", "security: [{token: []}]", "security: []", "can be answered 401: true"},
		{"no 401 where a token is needed", "      security: []\n", "", "can be answered 401: false"},
		{"a scheme that is none", "security: [{token: []}]", "security: [{key: []}]", "security scheme key is not described"},
		{"a wrong answer to other paths", `"404": {description: d}`, `default: {description: d}`, "/x-other-paths/default"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(small, tc.old) {
				t.Fatalf("%q is not in the description", tc.old)
			}
			_, err := parse([]byte(strings.Replace(small, tc.old, tc.now, 1)))
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
}

func TestTheMoreExactOfTwoPathsCounts(t *testing.T) {
	d := Load(t, []byte(small))
	if err := d.Check(Request{Method: "GET", Path: "/a/fixed"}, Answer{Status: 204}); err != nil {
		t.Error(err)
	}
	if err := d.Check(Request{Method: "GET", Path: "/a/other"}, Answer{Status: 204}); err == nil {
		t.Error("an answer of another path is taken")
	}
	if got := strings.Join(d.Unseen(), ", "); got != "GET /a/{id} 200, GET /a/{id} 401 denied" {
		t.Errorf("left are %s", got)
	}
}

func TestACircleOfReferencesEnds(t *testing.T) {
	circle := strings.Replace(small, `"404": {description: d}`, `"404": {$ref: "#/components/responses/A"}`, 1) +
		"  responses: {A: {$ref: \"#/components/responses/B\"}, B: {$ref: \"#/components/responses/A\"}}\n"
	if _, err := parse([]byte(circle)); err == nil || !strings.Contains(err.Error(), "circle") {
		t.Error(err)
	}
}
