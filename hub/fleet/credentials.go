package fleet

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted stands for credentials wherever they would be printed.
const redacted = "[redacted]"

// Credentials are what clients prove themselves to a proxy with. They never
// print, however they are asked to: not as a value, a pointer or a part of
// something else, not into a log, JSON or YAML. Whoever needs them reads the fields.
//
// Hold them as a pointer: fmt asks no method of what is in an unexported field,
// but of a pointer there %v, %+v and %#v print the address alone.
type Credentials struct{ Username, Password string }

// String implements fmt.Stringer.
func (Credentials) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (Credentials) GoString() string { return redacted }

// Format implements fmt.Formatter: String and GoString alone would leave %d, %x
// and the like to print the fields.
func (Credentials) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText implements encoding.TextMarshaler.
func (Credentials) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON implements json.Marshaler.
func (Credentials) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// LogValue implements slog.LogValuer.
func (Credentials) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalLog implements logr.Marshaler.
func (Credentials) MarshalLog() any { return redacted }

// Equal says that both are the same, or that there are none.
func (c *Credentials) Equal(o *Credentials) bool {
	return c == o || c != nil && o != nil && *c == *o
}
