package provider

import (
	"errors"
	"fmt"
)

// The error classes. A provider wraps one of them around every error that it
// returns; what wraps none counts as transient.
var (
	// ErrNotFound: there is no such instance.
	ErrNotFound = errors.New("instance not found")
	// ErrExists: an instance of that name exists already.
	ErrExists = errors.New("instance exists already")
	// ErrQuotaExceeded: there is no room at present. Trying again soon is no use.
	ErrQuotaExceeded = errors.New("quota exceeded")
	// ErrPermanent: with these inputs it will never work.
	ErrPermanent = errors.New("permanent error")
	// ErrTransient: trying again may help.
	ErrTransient = errors.New("transient error")
	// ErrLasting is an ErrTransient that lasts until somebody does something that
	// the hub does not see, such as granting it a right: it is tried again slowly.
	ErrLasting = fmt.Errorf("%w that lasts until its cause is repaired", ErrTransient)
)

// Class is the class of an error in one word, for metrics and logs: ok,
// not_found, exists, quota, permanent or transient.
func Class(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrExists):
		return "exists"
	case errors.Is(err, ErrQuotaExceeded):
		return "quota"
	case errors.Is(err, ErrPermanent):
		return "permanent"
	default:
		return "transient"
	}
}
