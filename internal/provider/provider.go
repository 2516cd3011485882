// Package provider is what the reconciler needs from whatever runs instances:
// a pod in the Proxy's cluster today, a cloud's machines later. It holds the
// interface, the error classes, the names and the marks of ownership, so that
// every provider spells them alike.
//
// The interface is poll-based on purpose: a cloud has no watch, and one path
// for all of them is one path to get right. A provider that can tell of changes
// does so beside it, and only hastens the next look.
package provider

import (
	"context"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// Provider runs instances. Implementations are safe for concurrent use, honour
// the context's deadline, and return errors of the classes of this package.
type Provider interface {
	// Create asks for an instance and returns without waiting for it to run.
	// What it needs is made before it, and what earlier instances of the same
	// Proxy needed is removed. An instance of that name that exists already gives
	// ErrExists, whoever owns it: the caller looks at it with Get. It never gives
	// ErrNotFound.
	Create(ctx context.Context, req CreateRequest) (Instance, error)
	// Get returns the instance of that name, or ErrNotFound. It returns an
	// instance of somebody else's as well: see Instance.Owner.
	Get(ctx context.Context, ref Ref) (Instance, error)
	// Files returns the files that the instance with this hash was given; none
	// is no error. They are secret.
	Files(ctx context.Context, ref Ref, specHash string) (map[string][]byte, error)
	// Repair puts right what an instance needs beside itself, see Instance.Lacks. It
	// touches no instance.
	Repair(ctx context.Context, req CreateRequest) error
	// Delete starts the deletion of the instance with this name and immutable
	// id. A namesake with another id is left alone. Gone already is success.
	// Forced, it does not wait for whatever should confirm that the instance has
	// stopped.
	Delete(ctx context.Context, ref Ref, id string, forced bool) error
	// Clear removes what was made for the Proxy beside its instance, which is
	// gone. Nothing there is success.
	Clear(ctx context.Context, ref Ref, owner Owner) error
	// Abandon takes the marks of ownership off the instance with this id and what
	// it needs, so that nobody collects them once its Proxy is gone. Gone
	// already is success, and an instance with another id or owner is left alone.
	Abandon(ctx context.Context, ref Ref, owner Owner, id string) error
	// ListByTag lists the instances that carry this hub's id. What could be read
	// is returned, and with it the scopes that did not answer; an error is for
	// when none did.
	ListByTag(ctx context.Context, hub string) (Listing, error)
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

// Names of CreateRequest.Files.
const (
	FileUserData = "user-data"
	FileUsername = "username"
	FilePassword = "password"
	// The certificate and the key that clients verify an instance by, as PEM.
	FileCertificate = "tls.crt"
	FileKey         = "tls.key"
)

// MaxFiles is the largest size of all files of an instance together, in bytes.
const MaxFiles = 64 << 10

// CreateRequest is what an instance is made of.
type CreateRequest struct {
	Ref      Ref
	Owner    Owner
	SpecHash string
	// Spoke and ProxyName are for people who look at the instance.
	Spoke, ProxyName string
	// Spec is the Proxy's, as the user wrote it.
	Spec *v1alpha1.ProxySpec
	// Files are the contents that the instance is told, by name. They are secret.
	Files map[string][]byte
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
	// Host is what clients dial, an IP address or a DNS name; empty while there is
	// no address.
	Host string
	// Port is where it listens; 0 where that does not show.
	Port int32
	// Access is how clients reach it, as it was made, and whose address Host is; nil
	// where that does not show, and then Host is one of the pod network.
	Access *v1alpha1.Access
	// Lacks says what the instance needs beside itself and does not have, in words
	// for a person; empty for nothing. Repair makes it.
	Lacks     string
	CreatedAt time.Time
	// GoneBy is when an instance in StateDeleting should be gone; zero where the
	// provider says nothing about it.
	GoneBy time.Time
	// Forced says that nobody waits any more for an instance in StateDeleting to
	// stop: what keeps it is something else.
	Forced bool
	// Message says in the provider's own words why the instance does not run, or
	// does not go; empty when there is nothing to say.
	Message string
}

// Listing is what ListByTag found.
type Listing struct {
	Instances []Instance
	// Unanswered are the scopes (a namespace, a zone) that could not be read: that
	// an instance there is not listed says nothing.
	Unanswered []string
}

// NameFromUID is the instance's name. It comes from the Proxy's UID alone, so
// that creating twice is harmless. The result is a DNS-1123 label.
func NameFromUID(uid string) string { return "proxy-" + uid }
