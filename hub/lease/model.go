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
}

// Lease is the right of one client to use one Proxy until a deadline.
type Lease struct {
	ID, Client string
	// Target is normalised; empty when none was given.
	Target    string
	TTL       time.Duration
	ExpiresAt time.Time
	// Proxy is the Proxy as it was when the lease was granted.
	Proxy *fleet.Proxy
	// Active is how many leases that Proxy then had, this one included.
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

// ErrUnknownLease means that this client has no such lease, or it ended more than a
// cooldown window ago.
var ErrUnknownLease = errors.New("unknown lease")

// ErrInvalidResult means that the report's result is none of the three.
var ErrInvalidResult = errors.New("invalid result")

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
	return fmt.Sprintf("none of the matching Proxies can be leased now: of %d, %d are not healthy, %d are at maxLeases and %d are cooling down for the target",
		e.Considered, e.Unhealthy, e.AtCapacity, e.InCooldown)
}
