package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// Request is what a client asks of Acquire. Its zero value asks for any Proxy.
type Request struct {
	// Selector are attributes that the Proxy must have.
	Selector map[string]string
	// Cluster is the spoke that the Proxy must live in; empty: any.
	Cluster string
	// Target is the site to crawl, as a host name or URL; empty: none in particular.
	Target string
	// TTL is how long the lease lasts; zero: the store's default.
	TTL time.Duration
	// Wait is how long the request waits for a Proxy when there is none; at most
	// MaxWait, zero: not at all.
	Wait time.Duration
	// Key is the client's Idempotency-Key; empty: none. For ten minutes the same
	// client's same request with the same key is answered with the same lease, as
	// long as that is active.
	Key string
}

// MaxWait is the longest Request.Wait.
const MaxWait = 50 * time.Second

// Lease is the right of one client to use one Proxy until a deadline.
type Lease struct {
	ID, Client string
	// Target is normalised; empty when none was given.
	Target    string
	TTL       time.Duration
	ExpiresAt time.Time
	// Proxy says where and how the client reaches its Proxy: as it is now, or, when
	// that cannot be said any more, as it was when it could. It is never nil.
	Proxy *fleet.Proxy
	// Now is the Proxy as it is in the fleet, nil when it has left. It may be unhealthy:
	// a lease that was granted stays valid until it ends.
	Now *fleet.Proxy
	// Active is how many leases the Proxy has, this one included.
	Active int
}

// Result is what a client says about a Proxy that it used.
type Result string

// The results. OK is taken note of; the other two start a cooldown.
const (
	OK          Result = "ok"
	RateLimited Result = "rate_limited"
	Banned      Result = "banned"
)

// Report is what a client tells about one of its leases.
type Report struct {
	Result Result
	// Target is the site it is about; empty: the lease's, and if that has
	// none, every target.
	Target string
	// Cooldown is how long the Proxy rests; zero: the store's CooldownWindow.
	// It means nothing with OK.
	Cooldown time.Duration
}

// MaxCooldown is the longest Report.Cooldown.
const MaxCooldown = 7 * 24 * time.Hour

var (
	// ErrUnknownLease means that this client has no such lease: it was released, it
	// expired more than a cooldown window ago, or it never was, or is another's.
	ErrUnknownLease = errors.New("unknown lease")
	// ErrLeaseExpired means that the lease ended by itself, less than a cooldown
	// window ago.
	ErrLeaseExpired = errors.New("lease expired")
	// ErrInvalidResult means that the report's result is none of the three.
	ErrInvalidResult = errors.New("invalid result")
	// ErrIdempotencyConflict means that the client has used this Request.Key, less
	// than ten minutes ago, for another request.
	ErrIdempotencyConflict = errors.New("idempotency key used for another request")
	// ErrTooManyWaiters means that the request would have to wait, and Options.MaxWaiters
	// others do.
	ErrTooManyWaiters = errors.New("too many requests are waiting")
	// ErrNotLeading means that this hub does not lead, and so has no say about leases.
	ErrNotLeading = errors.New("not leading")
)

// InvalidError is a request that cannot be granted whatever the fleet is like.
type InvalidError struct {
	// Field is named as in the REST API, Message says what to write instead;
	// together they are a sentence.
	Field, Message string
}

func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

// NoMatchError says why no Proxy could be leased now. Each of the considered
// is counted in exactly one of the other three.
type NoMatchError struct {
	// Considered match the request and are not being deleted.
	Considered int
	// Unhealthy are not offerable for any reason.
	Unhealthy int
	// AtCapacity are offerable and have maxLeases active leases.
	AtCapacity int
	// InCooldown have room and rest from the target.
	InCooldown int
	// RetryAfter is the time until the first lease or cooldown that blocks
	// ends; zero when none does.
	RetryAfter time.Duration
}

func (e *NoMatchError) Error() string {
	if e.Considered == 0 {
		return "no Proxy matches the selector and cluster"
	}
	return fmt.Sprintf("none of the matching Proxies can be leased now: of %d, %d are not healthy, %d are at maxLeases and %d are cooling down",
		e.Considered, e.Unhealthy, e.AtCapacity, e.InCooldown)
}
