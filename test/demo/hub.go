package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/proxyfleet/proxy-operator/test/controlplane"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// proxyImage is the name by which hub and nodes agree on our own forward proxy.
const proxyImage = "proxyfleet.dev/forwardproxy:demo"

const strangerGrace = 15 * time.Second

// startHub starts the hub through the script that HUB_COMMAND names, so that starting it again
// is the same thing.
func (d *demo) startHub(ctx context.Context) error {
	addresses := make([]string, 3)
	for i := range addresses {
		port, err := process.ReservePort("")
		if err != nil {
			return err
		}
		d.ports = append(d.ports, port)
		addresses[i] = port.Address()
	}
	api, metrics, health := addresses[0], addresses[1], addresses[2]
	config, err := d.planes[hubName].ServiceAccount(ctx, operatorNamespace, "hub")
	if err != nil {
		return err
	}
	kubeconfig, err := d.writeKubeconfig("hub-serviceaccount.kubeconfig", controlplane.Context{Name: hubName, Config: config})
	if err != nil {
		return err
	}
	token := rand.Text()
	d.command, err = d.writeHubCommand(token, []string{
		"--kubeconfig=" + kubeconfig,
		"--namespace=" + operatorNamespace,
		"--api-bind-address=" + api,
		"--metrics-bind-address=" + metrics,
		"--health-probe-bind-address=" + health,
		"--health-url=" + d.origin.URL + "/generate_204",
		"--health-ca-file=" + d.origin.CAFile,
		"--default-proxy-image=" + proxyImage,
		"--allow-local-endpoints", // all of the demo is on loopback
	})
	if err != nil {
		return err
	}
	d.api = newAPIClient("http://"+api, token)
	d.metrics = "http://" + metrics + "/metrics"
	hub, err := d.start(process.Spec{Name: hubName, Path: d.command})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = hub.WaitReady(ctx, func(ctx context.Context) error {
		return errors.Join(isOK(ctx, "http://"+health+"/readyz"), isOK(ctx, d.api.base+"/healthz"))
	})
	if err == nil {
		d.hub = hub
		d.out.line("  hub at %s", d.api.base)
	}
	return err
}

// writeHubCommand writes the script that becomes the hub. It leaves its PID, so that a hub that
// somebody has started again can be stopped with the rest.
func (d *demo) writeHubCommand(token string, flags []string) (string, error) {
	var script strings.Builder
	fmt.Fprintf(&script, "#!/bin/sh\n# Starts the hub of this demo again, with the same ports, and with more flags if given.\n")
	fmt.Fprintf(&script, "echo $$ > %s\n", quote(d.hubPIDFile()))
	fmt.Fprintf(&script, "DISCOVERY_TOKEN=%s\nexport DISCOVERY_TOKEN\n", quote(token))
	fmt.Fprintf(&script, "exec %s", quote(d.hubBinary()))
	for _, flag := range flags {
		fmt.Fprintf(&script, " \\\n\t%s", quote(flag))
	}
	script.WriteString(" \\\n\t\"$@\"\n")
	// Nothing may be forked while a file that is to be executed is open for writing.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return d.state.write([]byte(script.String()), 0o700, "run", "hub-command")
}

func (d *demo) hubPIDFile() string { return d.state.path("run", "hub.pid") }
func (d *demo) hubBinary() string  { return filepath.Join(d.bin, hubName) }

// stopRestartedHub stops a hub that was started by HUB_COMMAND and is not our child.
func (d *demo) stopRestartedHub() error {
	pid, found := d.restartedHub()
	if !found {
		return nil
	}
	d.out.line("stopping the hub that was started again, PID %d", pid)
	return stopStranger(pid)
}

// restartedHub reads the PID that the hub's command has left, and makes sure that it is not
// somebody else's by now.
func (d *demo) restartedHub() (pid int, found bool) {
	content, _ := os.ReadFile(d.hubPIDFile()) // none: no hub was ever started
	pid, _ = strconv.Atoi(strings.TrimSpace(string(content)))
	if pid <= 0 || slices.ContainsFunc(d.processes, func(p *process.Process) bool { return p.PID() == pid }) {
		return 0, false
	}
	commandLine, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return pid, strings.HasPrefix(string(commandLine), d.hubBinary()+"\x00") && strings.Contains(string(commandLine), d.state.dir)
}

// stopStranger stops a process that is not our child: there is nothing to wait on but its
// disappearance.
func stopStranger(pid int) error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		_ = syscall.Kill(pid, signal)
		if process.WaitGone(strangerGrace, pid) {
			return nil
		}
	}
	return fmt.Errorf("the hub that was started again, PID %d, does not end", pid)
}

func isOK(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := direct.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		return fmt.Errorf("%s answers %s: %s", url, response.Status, body)
	}
	return nil
}
