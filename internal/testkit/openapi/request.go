package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// checkRequest is for a request that the server took.
func (o *operation) checkRequest(r Request, path, query string) (wrong []error) {
	given := parseQuery(query)
	for _, p := range o.parameters {
		var values []string
		switch {
		case p.free:
			continue // takes what the others leave
		case p.in == "path":
			values = o.segment(p.name, path)
		case p.in == "header":
			for _, value := range r.Header.Values(p.name) {
				values = append(values, strings.Trim(value, " \t")) // as every server reads it
			}
		default:
			values = given[p.name]
			delete(given, p.name)
		}
		if err := p.check(values); err != nil {
			wrong = append(wrong, fmt.Errorf("%s parameter %s: %w", p.in, p.name, err))
		}
	}
	if err := o.checkFree(given); err != nil {
		wrong = append(wrong, err)
	}
	if err := o.checkBody(r.Body); err != nil {
		wrong = append(wrong, fmt.Errorf("the request's body: %w", err))
	}
	return wrong
}

// segment is the value of a parameter in the path.
func (o *operation) segment(name, path string) []string {
	given := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, segment := range o.segments {
		if segment == "{"+name+"}" {
			return []string{unescape(given[i], url.PathUnescape)}
		}
	}
	return nil
}

func (p *parameter) check(values []string) error {
	switch {
	case len(values) > 1:
		return fmt.Errorf("it is given %d times", len(values))
	case len(values) == 1:
		return validateText(p.schema, values[0])
	case p.required:
		return errors.New("it is missing")
	}
	return nil
}

// checkFree is for the query parameters that have no name in the description.
func (o *operation) checkFree(given map[string][]string) error {
	object := make(map[string]any, len(given))
	for name, values := range given {
		if len(values) == 1 {
			object[name] = values[0]
			continue
		}
		list := make([]any, len(values))
		for i, value := range values {
			list[i] = value
		}
		object[name] = list
	}
	for _, p := range o.parameters {
		if !p.free {
			continue
		}
		if err := p.schema.Validate(object); err != nil {
			return fmt.Errorf("query parameters of %s: %w", p.name, err)
		}
		return nil
	}
	for name := range object {
		return fmt.Errorf("query parameter %q is not described", name)
	}
	return nil
}

func (o *operation) checkBody(body []byte) error {
	switch blank := len(bytes.TrimSpace(body)) == 0; {
	case o.body == nil: // none has a meaning, and servers do not read it
		return nil
	case blank && o.body.required:
		return errors.New("it is missing")
	case blank:
		return nil
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return o.body.schema.Validate(value)
}

// parseQuery splits a query as a lenient server would: what cannot be decoded stays as it is,
// for a schema to refuse or to take.
func parseQuery(query string) map[string][]string {
	given := map[string][]string{}
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, value = unescape(name, url.QueryUnescape), unescape(value, url.QueryUnescape)
		given[name] = append(given[name], value)
	}
	return given
}

func unescape(s string, how func(string) (string, error)) string {
	if plain, err := how(s); err == nil {
		return plain
	}
	return s
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)([.][0-9]+)?$`)

// validateText is for what is written without JSON's quotes: the schema decides whether 5 is
// a number or a text.
func validateText(schema *jsonschema.Schema, text string) error {
	err := schema.Validate(text)
	if err == nil {
		return nil
	}
	var other any
	switch {
	case jsonNumber.MatchString(text):
		other = json.Number(text)
	case text == "true" || text == "false":
		other = text == "true"
	default:
		return err
	}
	if typed := schema.Validate(other); typed != nil {
		return fmt.Errorf("%w; as a text: %w", typed, err)
	}
	return nil
}
