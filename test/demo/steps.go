package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

const (
	startTimeout    = 2 * time.Minute
	registerTimeout = time.Minute
	fleetTimeout    = 3 * time.Minute
	statePoll       = 500 * time.Millisecond
)

// step is one thing that must hold. Its name completes the sentence "Now: …".
type step struct {
	name string
	run  func(*demo, context.Context) error
}

// steps is the demo.
var steps = []step{
	{"check binaries and manifests", (*demo).checkBinaries},
	{"start control planes, origin and external proxy", (*demo).startInfrastructure},
	{"prepare the clusters: CRDs, namespaces, least rights", (*demo).prepareClusters},
	{"start the nodes and the hub", (*demo).startOperator},
	{"register the spokes", (*demo).registerSpokes},
	{"apply the samples", (*demo).applySamples},
	{"wait until every Proxy is Ready", (*demo).waitForFleet},
	{"lease a Proxy", (*demo).takeLease},
	{"fetch a page from the TLS origin through it", (*demo).fetchPage},
	{"report and release", (*demo).giveBack},
	{"write the file for scripts", (*demo).writeEnv},
}

// runSteps runs them in order and ends with the first that fails, or when ctx does.
func (d *demo) runSteps(ctx context.Context) error {
	for i, s := range steps {
		d.out.line("[%d/%d] %s", i+1, len(steps), s.name)
		if err := s.run(d, ctx); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, s.name, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// poll calls check until it says that it is done. What check finds pending is printed when it
// changes, and is the error when time is up. The end of the hub ends it early.
func (d *demo) poll(ctx context.Context, limit time.Duration, check func(context.Context) (pending string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(statePoll)
	defer ticker.Stop()
	last := ""
	for {
		pending, err := check(ctx)
		if ctx.Err() == nil {
			if err != nil {
				pending = err.Error()
			}
			if pending == "" {
				return nil
			}
			if pending != last {
				d.out.line("  %s", pending)
			}
			last = pending
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return fmt.Errorf("not within %s: %s", limit, last)
			}
			return context.Cause(ctx)
		case <-d.hub.Done():
			return fmt.Errorf("the hub has ended: %s", d.hub.Exit())
		case <-ticker.C:
		}
	}
}

func (d *demo) waitForFleet(ctx context.Context) error {
	err := d.poll(ctx, fleetTimeout, func(ctx context.Context) (string, error) {
		listed, err := d.api.proxies(ctx)
		if err != nil {
			return "", err
		}
		return pendingProxies(d.expected, listed), nil
	})
	if err != nil {
		return err
	}
	listed, err := d.api.proxies(ctx)
	if err != nil {
		return err
	}
	d.out.plain("\n%s\n", table(listed))
	return nil
}

// pendingProxies says what each expected Proxy that is not Ready is waiting for; empty when
// all are.
func pendingProxies(expected []proxyKey, listed []proxy) string {
	var waiting []string
	for _, key := range expected {
		i := slices.IndexFunc(listed, func(p proxy) bool { return p.proxyKey == key })
		switch {
		case i < 0:
			waiting = append(waiting, key.String()+" (not in the fleet yet)")
		case listed[i].Phase == "Ready" && listed[i].Healthy:
		case listed[i].Phase == "Ready":
			waiting = append(waiting, key.String()+" (Ready, but not healthy)")
		case listed[i].Phase == "":
			waiting = append(waiting, key.String()+" (new)")
		default:
			waiting = append(waiting, fmt.Sprintf("%s (%s)", key, listed[i].Phase))
		}
	}
	if len(waiting) == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d Ready, waiting for %s", len(expected)-len(waiting), len(expected), strings.Join(waiting, ", "))
}

func (d *demo) takeLease(ctx context.Context) error {
	origin, err := url.Parse(d.origin.URL)
	if err != nil {
		return err
	}
	request := map[string]any{"target": origin.Hostname()}
	var answer json.RawMessage
	if err := d.api.call(ctx, http.MethodPost, "/v1/leases", request, http.StatusCreated, &answer); err != nil {
		return err
	}
	if err := json.Unmarshal(answer, &d.lease); err != nil {
		return err
	}
	if d.crawls, err = clients.ParseLease(answer); err != nil {
		return err
	}
	if err := d.wantLeases(ctx, 1); err != nil {
		return err
	}
	d.out.line("  leased %s until %s", d.lease.Proxy.proxyKey, d.lease.ExpiresAt.Local().Format(time.TimeOnly))
	return nil
}

// fetchPage does what a crawler does, and believes nothing that it is not shown: the origin's
// certificate must verify, and the caller that the origin saw must be the proxy.
func (d *demo) fetchPage(ctx context.Context) error {
	ca, err := os.ReadFile(d.origin.CAFile)
	if err != nil {
		return err
	}
	page := d.origin.URL + "/a-page"
	status, body, err := clients.Fetch(ctx, clients.Go(), d.crawls, page, ca)
	if err != nil {
		return err
	}
	var seen origin.Reply
	if err := json.Unmarshal(body, &seen); err != nil || status != http.StatusOK {
		return fmt.Errorf("the origin answered %d (%w)", status, err)
	}
	if seen.RemoteAddr != d.lease.Proxy.Host {
		return fmt.Errorf("the origin was called by %s, not by the leased proxy's %s", seen.RemoteAddr, d.lease.Proxy.Host)
	}
	d.out.line("  %s answers; it was called by %s, which is the proxy", page, seen.RemoteAddr)
	return nil
}

func (d *demo) giveBack(ctx context.Context) error {
	path := "/v1/leases/" + url.PathEscape(d.lease.LeaseID)
	report := map[string]any{"result": "ok"}
	if err := d.api.call(ctx, http.MethodPost, path+"/report", report, http.StatusNoContent, nil); err != nil {
		return err
	}
	if err := d.api.call(ctx, http.MethodDelete, path, nil, http.StatusNoContent, nil); err != nil {
		return err
	}
	if err := d.wantLeases(ctx, 0); err != nil {
		return err
	}
	d.out.line("  reported ok, released")
	return nil
}

// wantLeases checks the number of leases that the list shows for the leased Proxy, of which
// the demo's is the only one.
func (d *demo) wantLeases(ctx context.Context, want int) error {
	listed, err := d.api.proxies(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(listed, func(p proxy) bool { return p.proxyKey == d.lease.Proxy.proxyKey })
	if i < 0 {
		return fmt.Errorf("%s is leased but not listed", d.lease.Proxy.proxyKey)
	}
	if got := listed[i].ActiveLeases; got != want {
		return fmt.Errorf("%s is listed with %d active leases, want %d", d.lease.Proxy.proxyKey, got, want)
	}
	return nil
}
