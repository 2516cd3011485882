// Package provider is what the reconciler needs from whatever runs instances:
// a pod in the Proxy's cluster today, a cloud's machines later. It holds the
// interface, the error classes, the names and the marks of ownership, so that
// every provider spells them alike.
//
// The interface is poll-based on purpose: a cloud has no watch, and one path
// for all of them is one path to get right.
package provider

import (
	"context"
	"errors"
	"time"
)

// Provider runs instances. Implementations are safe for concurrent use and
// honour the context's deadline.
type Provider interface {
	// Create asks for an instance and returns without waiting for it to run.
	// An instance of that name that exists already gives ErrExists, whoever
	// owns it: the caller looks at it with Get.
	Create(ctx context.Context, req CreateRequest) (Instance, error)
	// Get returns the instance of that name, or ErrNotFound. It returns an
	// instance of somebody else's as well: see Instance.Owner.
	Get(ctx context.Context, ref Ref) (Instance, error)
	// Delete starts the deletion of the instance with this name and immutable
	// id. A namesake with another id is left alone. Gone already is success.
	Delete(ctx context.Context, ref Ref, id string) error
}

// Ref is where an instance is found: a name made by NameFromUID, in the
// namespace of its Proxy for providers that have namespaces.
type Ref struct {
	Namespace, Name string
}

// Owner is whose an instance is. Ownership is all three; see the labels in
// api/v1alpha1.
type Owner struct {
	ProxyUID, Hub, ClusterUID string
}

// CreateRequest is what an instance is made of.
type CreateRequest struct {
	Ref      Ref
	Owner    Owner
	SpecHash string
	// Spoke and ProxyName are for people who look at the instance.
	Spoke, ProxyName string
	Protocol         string
	Port             int32
	// Image is the container image; never empty.
	Image string
}

// State is what an instance is doing.
type State string

// The states. An instance is Running when its containers (or machine) run and
// it has an address.
const (
	StateProvisioning State = "Provisioning"
	StateRunning      State = "Running"
	StateStopped      State = "Stopped"
	StateDeleting     State = "Deleting"
)

// Instance is one instance as its provider shows it.
type Instance struct {
	// ID is the provider's own immutable id: two instances never share one,
	// whatever their names.
	ID string
	// ProviderID is what status.providerID shows; it contains ID.
	ProviderID string
	Owner      Owner
	SpecHash   string
	State      State
	// IP is empty while there is no address.
	IP        string
	CreatedAt time.Time
	// Message says in the provider's own words why the instance does not run;
	// empty when there is nothing to say.
	Message string
}

// NameFromUID is the instance's name. It comes from the Proxy's UID alone, so
// that creating twice is harmless. The result is a DNS-1123 label.
func NameFromUID(uid string) string { return "proxy-" + uid }

// The error classes. A provider wraps one of them around every error that it
// returns; what wraps none counts as transient.
var (
	// ErrNotFound: there is no such instance.
	ErrNotFound = errors.New("instance not found")
	// ErrExists: an instance of that name exists already.
	ErrExists = errors.New("instance exists already")
	// ErrPermanent: with these inputs it will never work.
	ErrPermanent = errors.New("permanent error")
	// ErrTransient: trying again may help.
	ErrTransient = errors.New("transient error")
)

// Class is the class of an error in one word, for metrics and logs: ok,
// not_found, exists, permanent or transient.
func Class(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrExists):
		return "exists"
	case errors.Is(err, ErrPermanent):
		return "permanent"
	default:
		return "transient"
	}
}
