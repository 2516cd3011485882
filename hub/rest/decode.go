package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// fields are the members of a JSON object by name, not yet decoded.
type fields map[string]json.RawMessage

// readFields reads the body as one JSON object with none but the known
// members. An empty body is an empty object: every call's members are
// optional, or missed by name. The Content-Type is not looked at: there is
// nothing but JSON that it could be.
func readFields(r *http.Request, known ...string) (fields, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, bodyError(err)
	}
	return parseFields(body, known...)
}

func parseFields(body []byte, known ...string) (fields, error) {
	if !utf8.Valid(body) {
		return nil, invalid("the body is not UTF-8: send JSON in UTF-8")
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	var whole json.RawMessage
	if err := json.Unmarshal(body, &whole); err != nil {
		return nil, invalid("the body is not one JSON value: %s", syntax(err))
	}
	all, ok, twice := members(whole)
	if !ok {
		return nil, invalid(`the body must be a JSON object: write for example {"ttlSeconds":300}`)
	}
	if len(twice) > 0 {
		return nil, invalid("the body names %s more than once: write each field once", quoted(twice))
	}
	var unknown []string
	for name := range all {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return nil, invalid("unknown field %s: this call takes %s", quoted(unknown), strings.Join(known, ", "))
	}
	return all, nil
}

// syntax says where the JSON breaks off.
func syntax(err error) string {
	var at *json.SyntaxError
	if errors.As(err, &at) {
		return fmt.Sprintf("%s (byte %d)", at.Error(), at.Offset)
	}
	return err.Error()
}

// members takes a valid JSON value apart if it is an object. encoding/json
// alone would take the last of two members with one name, and TTLSECONDS for
// ttlSeconds.
func members(value json.RawMessage) (all fields, ok bool, twice []string) {
	d := json.NewDecoder(bytes.NewReader(value))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, false, nil
	}
	all = fields{}
	for d.More() {
		token, err := d.Token()
		name, isName := token.(string)
		var raw json.RawMessage
		if err != nil || !isName || d.Decode(&raw) != nil {
			return nil, false, nil
		}
		if _, again := all[name]; again {
			twice = append(twice, name)
		}
		all[name] = raw
	}
	return all, true, twice
}

// quoted lists names that came from outside: in order, safe to print, and not
// more of them than anybody wants to read.
func quoted(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	const most = 10
	var b strings.Builder
	for i, name := range names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%.60q", name)
	}
	return b.String()
}

// raw is the member's value, nil when it is absent or null.
func (f fields) raw(name string) json.RawMessage {
	if v := f[name]; string(v) != "null" {
		return v
	}
	return nil
}

// text is a member that is a string; absent: empty.
func (f fields) text(name string) (string, error) {
	raw := f.raw(name)
	if raw == nil {
		return "", nil
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return "", invalid("%s must be a string", name)
	}
	return s, nil
}

// duration is a member that is a whole number of seconds, at least 1; absent:
// zero. What no Duration can hold comes back as the longest there is, for
// whoever knows the limit to refuse.
func (f fields) duration(name string) (time.Duration, error) {
	raw := f.raw(name)
	if raw == nil {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if errors.Is(err, strconv.ErrRange) && raw[0] != '-' {
		n, err = math.MaxInt64, nil
	}
	if err != nil || n < 1 {
		return 0, invalid("%s must be a whole number of seconds, at least 1: leave it out for the default", name)
	}
	if n > math.MaxInt64/int64(time.Second) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * time.Second, nil
}

// pairs is a member that is an object of strings; absent: none.
func (f fields) pairs(name string) (map[string]string, error) {
	raw := f.raw(name)
	if raw == nil {
		return nil, nil
	}
	all, ok, twice := members(raw)
	if !ok {
		return nil, invalid(`%s must be an object of strings: write for example {"region":"eu"}`, name)
	}
	if len(twice) > 0 {
		return nil, invalid("%s names %s more than once: write each key once", name, quoted(twice))
	}
	out := make(map[string]string, len(all))
	for key, value := range all {
		var s *string
		if json.Unmarshal(value, &s) != nil || s == nil {
			return nil, invalid("%s: the value of %.60q must be a string", name, key)
		}
		out[key] = *s
	}
	return out, nil
}
