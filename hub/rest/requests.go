package rest

import (
	"time"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

// acquireRequest is the body of POST /v1/leases.
type acquireRequest struct {
	Selector        map[string]string
	Cluster, Target string
	TTL, Wait       time.Duration
}

func (*acquireRequest) fields() []string { return acquireFields }

var acquireFields = []string{"selector", "cluster", "target", "ttlSeconds", "waitSeconds"}

func (a *acquireRequest) read(v *value, field string) (err error) {
	switch field {
	case "selector":
		a.Selector, err = v.pairs(field)
	case "cluster":
		a.Cluster, err = v.text(field)
	case "target":
		a.Target, err = v.text(field)
	case "ttlSeconds":
		a.TTL, err = v.seconds(field)
	case "waitSeconds":
		a.Wait, err = v.wait(field)
	}
	return err
}

// renewRequest is the body of POST /v1/leases/{id}/renew.
type renewRequest struct {
	TTL time.Duration
}

func (*renewRequest) fields() []string { return renewFields }

var renewFields = []string{"ttlSeconds"}

func (r *renewRequest) read(v *value, field string) (err error) {
	r.TTL, err = v.seconds(field)
	return err
}

// reportRequest is the body of POST /v1/leases/{id}/report.
type reportRequest struct {
	lease.Report
}

func (*reportRequest) fields() []string { return reportFields }

var reportFields = []string{"result", "target", "cooldownSeconds"}

func (r *reportRequest) read(v *value, field string) (err error) {
	switch field {
	case "result":
		var result string
		if result, err = v.text(field); err != nil {
			err = errInvalidResult // another type is as wrong as another name
		}
		r.Result = lease.Result(result)
	case "target":
		r.Target, err = v.text(field)
	case "cooldownSeconds":
		r.Cooldown, err = v.seconds(field)
	}
	return err
}

// readAcquire is what POST /v1/leases asks of the store.
func readAcquire(x *exchange) (lease.Request, error) {
	key, err := idempotencyKey(x.request.Header["Idempotency-Key"])
	if err != nil {
		return lease.Request{}, err
	}
	var body acquireRequest
	if err := decode(x.request, &body); err != nil {
		return lease.Request{}, err
	}
	return lease.Request{
		Selector: body.Selector, Cluster: body.Cluster, Target: body.Target, TTL: body.TTL, Wait: body.Wait, Key: key,
	}, nil
}

// idempotencyKey is the header's value; empty: there is none.
func idempotencyKey(values []string) (string, error) {
	if len(values) == 0 {
		return "", nil
	}
	const most = 255
	key := values[0]
	good := len(values) == 1 && key != "" && len(key) <= most
	for i := 0; good && i < len(key); i++ {
		good = key[i] > ' ' && key[i] <= '~'
	}
	if !good {
		return "", invalid("Idempotency-Key must be given once, as 1 to %d visible ASCII characters: write for example a UUID", most)
	}
	return key, nil
}
