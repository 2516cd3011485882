package openapi

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// steering are headers that clients act on: one that is not described for an answer must not
// be there. Others may come and go.
var steering = []string{"Allow", "Location", "Retry-After", "Www-Authenticate"}

// Check returns what in the exchange is not as described, or nil.
func (d *Description) Check(r Request, a Answer) error {
	path, query, _ := strings.Cut(r.Path, "?")
	o, methods := d.find(r.Method, path)
	expected, found := d.others[a.Status]
	var wrong []error
	if o == nil {
		if err := checkOther(methods, a); err != nil {
			wrong = append(wrong, err)
		}
	} else {
		expected, found = o.responses[a.Status]
	}
	if !found {
		return fmt.Errorf("%s %s %d: this status is not described", r.Method, path, a.Status)
	}
	code, problems := expected.check(a, r.Method == http.MethodHead)
	wrong = append(wrong, problems...)
	if o != nil && a.Status < http.StatusMultipleChoices {
		// The server took it, so the description must.
		wrong = append(wrong, o.checkRequest(r, path, query)...)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s %s %d: %w", r.Method, path, a.Status, errors.Join(wrong...))
	}
	if o != nil && r.Method == o.method {
		d.saw(o.key(a.Status, code))
	}
	return nil
}

// checkOther is for what is not described: a path with the methods that it takes, none when it
// is unknown altogether.
func checkOther(methods []string, a Answer) error {
	switch {
	case len(methods) == 0 && a.Status == http.StatusMethodNotAllowed:
		return errors.New("the path is not described, which is 404")
	case len(methods) > 0 && a.Status == http.StatusNotFound:
		return fmt.Errorf("the path is described, with the methods %v, so another is 405", methods)
	case a.Status != http.StatusMethodNotAllowed:
		return nil
	}
	allow := strings.Split(strings.ReplaceAll(a.Header.Get("Allow"), " ", ""), ",")
	slices.Sort(allow)
	if !slices.Equal(allow, methods) {
		return fmt.Errorf("header Allow is %q, described are %v", a.Header.Get("Allow"), methods)
	}
	return nil
}

// check returns the error code in the body, empty when none is described or there is no body.
func (r *response) check(a Answer, head bool) (code string, wrong []error) {
	wrong = r.checkHeaders(a.Header)
	media, err := r.media(a.Header.Values("Content-Type"))
	if err != nil {
		return "", append(wrong, err)
	}
	if head || media == "" {
		if len(a.Body) > 0 {
			wrong = append(wrong, fmt.Errorf("a body of %d bytes, where there is none", len(a.Body)))
		}
		return "", wrong
	}
	value, err := decode(media, a.Body)
	if err != nil {
		return "", append(wrong, fmt.Errorf("the body is not %s: %w", media, err))
	}
	if err := r.content[media].Validate(value); err != nil {
		return "", append(wrong, fmt.Errorf("the body: %w", err))
	}
	if object, ok := value.(map[string]any); ok && len(r.codes) > 0 {
		code, _ = object["error"].(string)
	}
	return code, wrong
}

func (r *response) checkHeaders(given http.Header) (wrong []error) {
	for _, h := range r.headers {
		values := given.Values(h.name)
		switch {
		case len(values) > 1:
			wrong = append(wrong, fmt.Errorf("header %s is there %d times", h.name, len(values)))
		case len(values) == 1:
			if err := validateText(h.schema, values[0]); err != nil {
				wrong = append(wrong, fmt.Errorf("header %s: %w", h.name, err))
			}
		case h.required:
			wrong = append(wrong, fmt.Errorf("header %s is missing", h.name))
		}
	}
	for name := range given {
		name = textproto.CanonicalMIMEHeaderKey(name)
		described := slices.ContainsFunc(r.headers, func(h *header) bool { return h.name == name })
		if slices.Contains(steering, name) && !described {
			wrong = append(wrong, fmt.Errorf("header %s is not described", name))
		}
	}
	return wrong
}

// media finds the described media type that the Content-Type is, parameters included; empty
// when there is no body.
func (r *response) media(contentType []string) (string, error) {
	if len(r.content) == 0 {
		if len(contentType) > 0 {
			return "", fmt.Errorf("header Content-Type is %q, where there is no body", contentType)
		}
		return "", nil
	}
	if len(contentType) == 1 {
		for described := range r.content {
			if sameMedia(described, contentType[0]) {
				return described, nil
			}
		}
	}
	return "", fmt.Errorf("header Content-Type is %q, described is %q", contentType, slices.Sorted(maps.Keys(r.content)))
}

func sameMedia(a, b string) bool {
	typeA, parametersA, errA := mime.ParseMediaType(a)
	typeB, parametersB, errB := mime.ParseMediaType(b)
	return errA == nil && errB == nil && typeA == typeB && maps.EqualFunc(parametersA, parametersB, strings.EqualFold)
}

// decode makes of a body what its schema is about: a JSON value, or the text itself.
func decode(media string, body []byte) (any, error) {
	switch base, _, _ := strings.Cut(media, ";"); {
	case base == jsonType || strings.HasSuffix(base, "+json"):
		return jsonschema.UnmarshalJSON(bytes.NewReader(body))
	case base == "application/yaml" || strings.HasSuffix(base, "+yaml"):
		data, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil, err
		}
		return jsonschema.UnmarshalJSON(bytes.NewReader(data))
	default:
		return string(body), nil
	}
}
