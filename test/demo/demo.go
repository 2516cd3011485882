package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/proxyfleet/proxy-operator/test/controlplane"
	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
	"github.com/proxyfleet/proxy-operator/test/process"
)

const (
	hubName = "hub"
	// operatorNamespace is where config/rbac puts the operator in every cluster.
	operatorNamespace = "proxy-operator-system"
	lossPoll          = 500 * time.Millisecond
)

var spokeNames = []string{"eu-west", "us-east"}

// demo is everything that runs and what the steps have learnt on the way.
type demo struct {
	settings
	state *state
	out   *output

	mu        sync.Mutex // guards planes and processes while steps start things side by side
	planes    map[string]*controlplane.ControlPlane
	processes []*process.Process

	ports    []*process.Port // of the hub, kept for its restarts
	origin   originInfo
	external *process.Port
	api      *apiClient
	hub      *process.Process
	metrics  string
	command  string
	expected []proxyKey
	lease    lease
	crawls   clients.Lease // the same as clients read it
}

func newDemo(s settings, state *state, out *output) *demo {
	return &demo{settings: s, state: state, out: out, planes: map[string]*controlplane.ControlPlane{}}
}

// start starts a program and remembers it for stop.
func (d *demo) start(spec process.Spec) (*process.Process, error) {
	spec.LogFile = d.state.log(spec.Name)
	p, err := process.Start(spec)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes = append(d.processes, p)
	return p, nil
}

// sideBySide runs functions at once and waits for all of them.
func sideBySide(functions ...func() error) error {
	errs := make([]error, len(functions))
	var running sync.WaitGroup
	for i, f := range functions {
		running.Go(func() { errs[i] = f() })
	}
	running.Wait()
	return errors.Join(errs...)
}

// pids lists every process by the name that the file env has for it.
func (d *demo) pids() []variable {
	list := []variable{{"PID_DEMO", fmt.Sprint(os.Getpid())}}
	for _, cluster := range append([]string{hubName}, spokeNames...) {
		plane := d.planes[cluster]
		list = append(list,
			variable{variableName("etcd-" + cluster), fmt.Sprint(plane.EtcdPID())},
			variable{variableName("apiserver-" + cluster), fmt.Sprint(plane.APIServerPID())})
	}
	for _, p := range d.processes {
		list = append(list, variable{variableName(p.Name()), fmt.Sprint(p.PID())})
	}
	return list
}

// stayUp waits for the end and tells what is lost meanwhile.
func (d *demo) stayUp(ctx context.Context) {
	type watched struct {
		name string
		pid  int
	}
	var components []watched
	for name, plane := range d.planes {
		components = append(components, watched{"etcd-" + name, plane.EtcdPID()}, watched{"apiserver-" + name, plane.APIServerPID()})
	}
	running := slices.Clone(d.processes)
	ticker := time.NewTicker(lossPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		running = slices.DeleteFunc(running, func(p *process.Process) bool {
			if !p.Running() {
				d.out.line("lost %s, PID %d: %s", p.Name(), p.PID(), p.Exit())
			}
			return !p.Running()
		})
		components = slices.DeleteFunc(components, func(c watched) bool {
			alive := process.Alive(c.pid)
			if !alive {
				d.out.line("lost %s, PID %d", c.name, c.pid)
			}
			return !alive
		})
	}
}

// stop ends everything: first the hub, which would only complain about the loss of the rest,
// then what needs an API server to say goodbye, then those.
func (d *demo) stop() error {
	var errs []error
	errs = append(errs, d.stopRestartedHub())
	var hubs, others []func() error
	for _, p := range d.processes {
		if p.Name() == hubName {
			hubs = append(hubs, p.Stop)
		} else {
			others = append(others, p.Stop)
		}
	}
	errs = append(errs, sideBySide(hubs...), sideBySide(others...))
	var planes []func() error
	for _, plane := range d.planes {
		planes = append(planes, plane.Stop)
	}
	errs = append(errs, sideBySide(planes...))
	for _, port := range append(d.ports, d.external) {
		port.Release()
	}
	return errors.Join(errs...)
}

// printFailure tells all that helps to see why a step failed, before it is stopped.
func (d *demo) printFailure(ctx context.Context, err error) {
	d.out.plain("\n")
	d.out.line("FAILED: %v", err)
	if d.hub == nil {
		return
	}
	// An interrupt from now on is for the stopping that follows.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if listed, err := d.api.proxies(ctx); err == nil {
		d.out.plain("\nthe fleet:\n%s", table(listed))
	}
	d.out.plain("%s", d.troubles(ctx))
	d.out.plain("\nthe end of %s:\n%s\n\n", d.hub.LogFile(), indent(d.hub.LogTail(25)))
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }
