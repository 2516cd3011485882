package rest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// action is what an event does.
type action string

const (
	acquires action = "acquire"
	gets     action = "get"
	renews   action = "renew"
	releases action = "release"
	reports  action = "report"
	flips    action = "flip" // a verdict, in the fleet
	rings    action = "ring" // by itself
)

// event is a call with its answer, or something else that changes what is answered. It
// took effect between from and to, as time since the history began.
type event struct {
	what     action
	from, to time.Duration
	id       string // the lease that the call is about; of an acquire: that it was granted
	key      int    // stands for an Idempotency-Key; zero: none
	ask      ask
	status   int
	told     told
	health   health // of a flip
	proxy    int    // in the pool: the answer's, or that of a flip

	// The following is worked out by replay.

	site  int
	grant int16 // the lease's number, -1: none that was granted
	timer int16 // that rings
	// The timers that the event sets: of the end of a lease, of a record, of a cooldown,
	// and of the time in which another of the same reports starts none.
	ends, gone, rest, note int16
	same                   *timers // the notes of the same reports
}

// ask is the body of any call.
type ask struct {
	Tier     *tier  `json:"selector,omitempty"`
	Cluster  string `json:"cluster,omitempty"`
	Target   string `json:"target,omitempty"`
	TTL      int    `json:"ttlSeconds,omitempty"`
	Wait     int    `json:"waitSeconds,omitempty"`
	Result   string `json:"result,omitempty"`
	Cooldown int    `json:"cooldownSeconds,omitempty"`
}

type tier struct {
	Tier string `json:"tier"`
}

// told is the body of any answer.
type told struct {
	ID    string `json:"leaseID"`
	TTL   int    `json:"ttlSeconds"`
	Proxy struct {
		Cluster, Namespace, Name string
		Healthy                  bool
		Latency                  health `json:"latencyMillis"`
		Active                   int    `json:"activeLeases"`
	}
	noMatch
}

// noMatch is why nothing was granted.
type noMatch struct{ Considered, Unhealthy, AtCapacity, InCooldown int }

func (t *told) health() health {
	if !t.Proxy.Healthy {
		return unhealthy
	}
	return t.Proxy.Latency
}

// inPool is the number of the Proxy of an answer.
func (t *told) inPool() int {
	key := fleet.Key{Cluster: t.Proxy.Cluster, Namespace: t.Proxy.Namespace, Name: t.Proxy.Name}
	return slices.IndexFunc(pool[:], func(p fleet.Proxy) bool { return p.Key == key })
}

func (e *event) String() string {
	switch e.what {
	case flips:
		return fmt.Sprintf("%s: %d ms", pool[e.proxy].Key, e.health)
	case rings:
		if e.grant < 0 {
			return fmt.Sprintf("timer %d rings, of a report", e.timer)
		}
		return fmt.Sprintf("timer %d rings, of lease %d", e.timer, e.grant)
	}
	body, _ := json.Marshal(e.ask)
	asked := fmt.Sprintf("%s %s", e.what, body)
	if e.key != 0 {
		asked += fmt.Sprintf(" with key %d", e.key)
	}
	answered := fmt.Sprint(e.status)
	if e.grant >= 0 {
		asked += fmt.Sprintf(" lease %d", e.grant)
	}
	switch e.status {
	case http.StatusOK, http.StatusCreated:
		answered += fmt.Sprintf(" %s/%s %d active, %d ms, %d s", e.told.Proxy.Cluster, e.told.Proxy.Name, e.told.Proxy.Active, e.told.health(), e.told.TTL)
	case http.StatusConflict:
		answered += fmt.Sprintf(" %+v", e.told.noMatch)
	}
	return asked + " -> " + answered
}
