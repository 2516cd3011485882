package openapi

import (
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const jsonType = "application/json"

// components checks the components, whether or not an operation uses them.
func (d *document) components() {
	components := d.top("components")
	for _, n := range components.child("schemas").children() {
		d.schema(n)
	}
	for _, n := range components.child("parameters").children() {
		d.parameter(n)
	}
	for _, n := range components.child("headers").children() {
		d.header(n)
	}
	for _, n := range components.child("responses").children() {
		d.response(n)
	}
}

func (d *document) operations() []*operation {
	var all []*operation
	ids := map[string]bool{}
	for _, path := range d.top("paths").children() {
		if path.has("$ref") {
			d.wrong(path, "a path that is a reference is not understood")
			continue
		}
		for _, n := range path.children() {
			switch name := n.name(); name {
			case "parameters", "summary", "description":
			case "get", "put", "post", "delete", "options", "head", "patch", "trace":
				all = append(all, d.operation(path, n))
				if id := n.text("operationId"); id == "" || ids[id] {
					d.wrong(n, "it needs an operationId of its own")
				}
				ids[n.text("operationId")] = true
			default:
				d.wrong(n, "this is not understood in a path")
			}
		}
	}
	return all
}

func (d *document) operation(path, n node) *operation {
	o := &operation{method: strings.ToUpper(n.name()), path: path.name()}
	o.segments = strings.Split(strings.TrimPrefix(o.path, "/"), "/")
	for _, each := range append(path.child("parameters").children(), n.child("parameters").children()...) {
		o.parameters = append(o.parameters, d.parameter(each))
	}
	d.named(n, o)
	if n.has("requestBody") {
		o.body = d.body(d.resolve(n.child("requestBody")))
	}
	o.responses = d.responses(n.child("responses"))
	d.secured(n, o)
	return o
}

// named checks that the parameters of the path are those that are described, and that no
// parameter is described twice.
func (d *document) named(n node, o *operation) {
	described := map[string]bool{}
	frees := 0
	for _, p := range o.parameters {
		key := p.in + " " + strings.ToLower(p.name)
		if described[key] {
			d.wrong(n, "%s parameter %s is described twice", p.in, p.name)
		}
		described[key] = true
		if p.free {
			frees++
		}
		if p.in == "path" && !slices.Contains(o.segments, "{"+p.name+"}") {
			d.wrong(n, "the path has no {%s}", p.name)
		}
	}
	if frees > 1 {
		d.wrong(n, "only one query parameter can be an object")
	}
	for _, segment := range o.segments {
		name := strings.Trim(segment, "{}")
		switch {
		case !strings.ContainsAny(segment, "{}"):
		case !isTemplate(segment):
			d.wrong(n, "%s: a parameter has to be a whole segment", segment)
		case !described["path "+strings.ToLower(name)]:
			d.wrong(n, "path parameter %s is not described", name)
		}
	}
}

// secured checks that exactly the operations that ask for authentication can be answered 401.
func (d *document) secured(n node, o *operation) {
	security := n.child("security")
	if !n.has("security") {
		security = d.top("security")
	}
	asks := false
	for _, requirement := range security.children() {
		for _, scheme := range requirement.children() {
			asks = true
			if !d.top("components").child("securitySchemes").has(scheme.name()) {
				d.wrong(n, "security scheme %s is not described", scheme.name())
			}
		}
	}
	if refuses := o.responses[http.StatusUnauthorized] != nil; refuses != asks {
		d.wrong(n, "it asks for authentication: %t; it can be answered 401: %t", asks, refuses)
	}
}

func (d *document) parameter(n node) *parameter {
	n = d.resolve(n)
	p := &parameter{name: n.text("name"), in: n.text("in"), required: n.flag("required"), schema: d.described(n)}
	schema := d.resolve(n.child("schema"))
	p.free = p.in == "query" && schema.text("type") == "object"
	usual := "simple"
	if p.in == "query" {
		usual = "form"
	}
	switch {
	case p.in == "cookie":
		d.wrong(n, "parameters in cookies are not understood")
	case n.has("style") && n.text("style") != usual, n.has("explode") && !n.flag("explode") && p.free:
		d.wrong(n, "parameters of this style are not understood")
	case schema.text("type") == "array", schema.text("type") == "object" && !p.free:
		d.wrong(n, "lists and objects are not understood here")
	}
	return p
}

// body reads a request's. It is checked as JSON whatever its Content-Type.
func (d *document) body(n node) *body {
	content := n.child("content")
	if len(content.children()) != 1 || !content.has(jsonType) {
		d.wrong(n, "a body has to be %s alone", jsonType)
		return nil
	}
	return &body{required: n.flag("required"), schema: d.described(content.child(jsonType))}
}

func (d *document) responses(n node) map[int]*response {
	all := map[int]*response{}
	for _, each := range n.children() {
		status, err := strconv.Atoi(each.name())
		if err != nil || status < 200 || status > 599 {
			d.wrong(each, "an answer has to have one status from 200 to 599")
			continue
		}
		all[status] = d.response(each)
	}
	return all
}

func (d *document) response(n node) *response {
	n = d.resolve(n)
	r := &response{content: map[string]*jsonschema.Schema{}}
	for _, each := range n.child("headers").children() {
		h := d.header(each)
		h.name = textproto.CanonicalMIMEHeaderKey(each.name())
		r.headers = append(r.headers, h)
	}
	for _, media := range n.child("content").children() {
		r.content[media.name()] = d.described(media)
		if media.name() == jsonType {
			r.codes = d.codes(media.child("schema"))
		}
	}
	return r
}

func (d *document) header(n node) *header {
	n = d.resolve(n)
	return &header{required: n.flag("required"), schema: d.described(n)}
}
