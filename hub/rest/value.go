package rest

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// value is the one that follows in a body. Its methods read it to its end, also when
// they refuse it, and name it as the client does.
type value struct{ tokens jsontext.Decoder }

// is says whether the value is of a kind; null is of none, and is passed over.
// Otherwise it is passed over, and the error is wrong, or what is the matter with it.
func (v *value) is(kind jsontext.Kind, wrong func() error) (bool, error) {
	switch found := v.tokens.PeekKind(); found {
	case kind:
		return true, nil
	case jsontext.KindNull:
		return false, v.tokens.SkipValue()
	default:
		if err := v.tokens.SkipValue(); err != nil {
			return false, err
		}
		return false, wrong()
	}
}

// text is a string; null: empty.
func (v *value) text(field string) (string, error) {
	is, err := v.is(jsontext.KindString, func() error { return invalid("%s must be a string", field) })
	if !is {
		return "", err
	}
	token, err := v.tokens.ReadToken()
	if err != nil {
		return "", err
	}
	return token.String(), nil
}

// seconds is a whole number of them, at least 1; null: zero.
func (v *value) seconds(field string) (time.Duration, error) {
	wrong := func() error {
		return invalid("%s must be a whole number of seconds, at least 1: leave it out for the default", field)
	}
	n, ok, err := v.whole(wrong)
	if err != nil || !ok {
		return 0, err
	}
	if n < 1 {
		return 0, wrong()
	}
	return seconds(n), nil
}

// wait is a whole number of seconds up to the longest wait; null: zero.
func (v *value) wait(field string) (time.Duration, error) {
	wrong := func() error {
		return invalid("%s must be a whole number from 0 to %d", field, int64(lease.MaxWait/time.Second))
	}
	n, ok, err := v.whole(wrong)
	if err != nil || !ok {
		return 0, err
	}
	if n < 0 || n > int64(lease.MaxWait/time.Second) {
		return 0, wrong()
	}
	return seconds(n), nil
}

// whole is a whole number, however it is written: some languages write 300 as 300.0. What
// is too large comes back as the largest there is, for whoever knows the limit to refuse.
func (v *value) whole(wrong func() error) (n int64, ok bool, err error) {
	if is, err := v.is(jsontext.KindNumber, wrong); !is {
		return 0, false, err
	}
	raw, err := v.tokens.ReadValue()
	if err != nil {
		return 0, false, err
	}
	n, err = strconv.ParseInt(string(raw), 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return n, true, nil // out of range: the largest or the smallest
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case f >= math.MaxInt64: // infinity, too
		return math.MaxInt64, true, nil
	case f <= math.MinInt64:
		return math.MinInt64, true, nil
	case err != nil || f != math.Trunc(f):
		return 0, false, wrong()
	}
	return int64(f), true, nil
}

// seconds is n of them, or the longest Duration if that cannot hold them.
func seconds(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}

// pairs is an object of strings; null: none.
func (v *value) pairs(field string) (map[string]string, error) {
	is, err := v.is(jsontext.KindBeginObject, func() error {
		return invalid(`%s must be an object of strings: write for example {"region":"eu"}`, field)
	})
	if !is {
		return nil, err
	}
	if _, err := v.tokens.ReadToken(); err != nil {
		return nil, err
	}
	pairs := map[string]string{}
	var wrong error
	for v.tokens.PeekKind() != jsontext.KindEndObject {
		name, err := v.tokens.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String()
		if v.tokens.PeekKind() == jsontext.KindString {
			token, err := v.tokens.ReadToken()
			if err != nil {
				return nil, err
			}
			pairs[key] = token.String()
			continue
		}
		if err := v.tokens.SkipValue(); err != nil {
			return nil, err
		}
		if wrong == nil {
			wrong = invalid("%s: the value of %.60q must be a string", field, key)
		}
	}
	if _, err := v.tokens.ReadToken(); err != nil {
		return nil, err
	}
	return pairs, wrong
}
