package rest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// request is what a body is decoded into.
type request interface {
	// fields are the members that it takes.
	fields() []string
	// read takes one of them. It reads the value to its end, also when it is refused.
	read(v *value, field string) error
}

// body is what it takes to read one.
type body struct {
	limited io.LimitedReader
	data    bytes.Buffer
	value   value
}

var bodies = sync.Pool{New: func() any { return new(body) }}

// decode reads the query, of which there must be none, and the body, as one JSON
// object with none but the fields that the request takes. An empty body is an empty
// object: every call's fields are optional, or missed by name. The Content-Type is not
// looked at: there is nothing but JSON that it could be.
func decode(r *http.Request, into request) error {
	if err := noQuery(r.URL.RawQuery); err != nil {
		return err
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	b := bodies.Get().(*body)
	defer b.free()
	// One byte more, to see that it is too many. To the end in any case: only then does
	// net/http see a client hang up.
	b.limited = io.LimitedReader{R: r.Body, N: maxBody + 1}
	if _, err := b.data.ReadFrom(&b.limited); err != nil {
		return bodyError(err)
	}
	if b.data.Len() > maxBody {
		return errTooLarge
	}
	return b.decode(into)
}

func (b *body) free() {
	b.limited.R = nil
	b.data.Reset()
	if b.data.Cap() <= maxKept {
		bodies.Put(b)
	}
}

func (b *body) decode(into request) error {
	data := b.data.Bytes()
	tokens := &b.value.tokens
	tokens.Reset(&b.data)
	start, err := tokens.ReadToken()
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return malformed(data, err, into.fields())
	case start.Kind() != jsontext.KindBeginObject:
		return invalid(`the body must be a JSON object: write for example {"ttlSeconds":300}`)
	}
	var unknown []string
	var wrong error
	for tokens.PeekKind() != jsontext.KindEndObject {
		name, err := tokens.ReadToken()
		if err != nil {
			return malformed(data, err, into.fields())
		}
		if i := slices.Index(into.fields(), name.String()); i >= 0 {
			err = into.read(&b.value, into.fields()[i])
		} else {
			unknown = append(unknown, name.String())
			err = tokens.SkipValue()
		}
		switch {
		case err == nil:
		case isMalformed(err):
			return malformed(data, err, into.fields())
		case wrong == nil:
			wrong = err
		}
	}
	if _, err := tokens.ReadToken(); err != nil {
		return malformed(data, err, into.fields())
	}
	if rest := bytes.TrimLeft(tokens.UnreadBuffer(), " \t\r\n"); len(rest) > 0 {
		return invalid("the body is not one JSON value: there is more after byte %d", tokens.InputOffset())
	}
	if len(unknown) > 0 {
		return invalid("unknown field %s: this call takes %s", quoted(unknown), strings.Join(into.fields(), ", "))
	}
	return wrong
}

func isMalformed(err error) bool {
	var syntax *jsontext.SyntacticError
	return errors.As(err, &syntax)
}

// malformed says where the JSON breaks off, in the client's words.
func malformed(data []byte, err error, known []string) error {
	var at *jsontext.SyntacticError
	if !errors.As(err, &at) {
		return invalid("the body is not one JSON value: it breaks off")
	}
	field := "" // that it is in, if it is a known one
	for name := range at.JSONPointer.Tokens() {
		if slices.Contains(known, name) {
			field = name
		}
		break
	}
	if errors.Is(err, jsontext.ErrDuplicateName) {
		where, names := "the body", at.JSONPointer
		if field != "" && names.Parent() != "" {
			where = field
		}
		return invalid("%s names %s more than once: write each one once", where, quoted([]string{names.LastToken()}))
	}
	in := ""
	if field != "" {
		in = "in " + field + ", "
	}
	if !utf8.Valid(data) {
		return invalid("the body is not UTF-8 (%safter byte %d): send JSON in UTF-8", in, at.ByteOffset)
	}
	what := at.Err.Error()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		what = "it ends too early"
	}
	return invalid("the body is not one JSON value: %s (%safter byte %d)", what, in, at.ByteOffset)
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
