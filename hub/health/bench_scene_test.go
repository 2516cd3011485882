package health

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/metrics"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// scene is what a benchmark probes: our own proxy and a site, each a process of its own,
// so that what they use of the CPU is not taken for the engine's.
type scene struct {
	proxy *process.Port
	site  string // its host:port
	url   string
	roots *x509.CertPool
}

// newScene builds and starts the programs, which end with the benchmark.
func newScene(b *testing.B) *scene {
	b.Helper()
	dir := b.TempDir()
	build := exec.CommandContext(b.Context(), "go", "build", "-o", dir+string(filepath.Separator), "./cmd/forwardproxy", "./test/origin")
	build.Dir = "../.."
	if output, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build the programs: %v\n%s", err, output)
	}
	s := &scene{}
	s.startSite(b, dir)
	s.startProxy(b, dir)
	return s
}

func (s *scene) startSite(b *testing.B, dir string) {
	b.Helper()
	readyFile, caFile := filepath.Join(dir, "ready.json"), filepath.Join(dir, "ca.crt")
	process.StartForTest(b, process.Spec{
		Name: "origin", Path: filepath.Join(dir, "origin"), LogFile: filepath.Join(dir, "origin.log"),
		Args: []string{"--ca-out", caFile, "--ready-file", readyFile},
	}, func(context.Context) error {
		_, err := os.Stat(readyFile)
		return err
	})
	content, err := os.ReadFile(readyFile)
	if err != nil {
		b.Fatal(err)
	}
	var ready struct{ URL string }
	if err := json.Unmarshal(content, &ready); err != nil {
		b.Fatalf("%v in %s", err, content)
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		b.Fatal(err)
	}
	s.roots = x509.NewCertPool()
	s.roots.AppendCertsFromPEM(pem)
	s.site, s.url = strings.TrimPrefix(ready.URL, "https://"), ready.URL+"/generate_204"
}

func (s *scene) startProxy(b *testing.B, dir string) {
	b.Helper()
	port, err := process.ReservePort("")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(port.Release)
	process.StartForTest(b, process.Spec{
		Name: "forwardproxy", Path: filepath.Join(dir, "forwardproxy"), LogFile: filepath.Join(dir, "forwardproxy.log"),
		Env: []string{"PROXY_PORT=" + strconv.Itoa(port.Number), "PROXY_BIND_ADDRESS=" + port.Host, "PROXY_FILES_DIR=" + b.TempDir()},
	}, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", port.Address())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	s.proxy = port
}

// options are those of an engine that probes the scene.
func (s *scene) options(r Recorder) Options {
	return Options{Fleet: fleet.New(fleet.Options{AllowLocal: true}), URL: s.url, Roots: s.roots, AllowLocal: true, Recorder: r}
}

// hubMetrics are what the hub records probes with, limits and all.
func hubMetrics() *metrics.Metrics {
	return metrics.New(prometheus.NewRegistry(), metrics.Options{PerProxyLimit: 2000})
}

// runEngine runs an engine until the benchmark, or what is returned, ends it.
func runEngine(b *testing.B, e *Engine) (end func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Run(ctx) // it returns nothing else than nil
	}()
	end = func() {
		cancel()
		<-done
	}
	b.Cleanup(end)
	return end
}

// externalAt is an External proxy as the hub's defaults have it probed.
func externalAt(spoke, name string, at *process.Port) fleet.Proxy {
	return fleet.Proxy{
		Key: fleet.Key{Cluster: spoke, Namespace: "crawl", Name: name}, UID: "uid-" + name,
		Protocol: "http", Host: at.Host, Port: at.Number, Instance: at.Address(), Provisioned: true,
		Check: fleet.Check{Interval: 30 * time.Second, Timeout: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 3},
	}
}

// judged is closed when n Proxies have a verdict.
func judged(f *fleet.Fleet, n int) <-chan struct{} {
	all := make(chan struct{})
	f.Follow(func(c fleet.Change) { // under the fleet's lock
		before := c.Old != nil && c.Old.Verdict.Health != fleet.Unknown
		if after := c.New != nil && c.New.Verdict.Health != fleet.Unknown; before || !after {
			return
		}
		if n--; n == 0 {
			close(all)
		}
	})
	return all
}

// newHole is an address that swallows packets: the kernel drops who knocks where a
// listener has as many in its backlog as it takes, and nobody ever accepts.
func newHole(b *testing.B) *process.Port {
	b.Helper()
	port, err := process.ReservePort("")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(port.Release)
	fd, err := listenDeaf(port)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = syscall.Close(fd) })
	// Those after the last that is let in show that nobody is any more.
	dialer := net.Dialer{Timeout: 300 * time.Millisecond}
	for hung := 0; hung < 3; {
		conn, err := dialer.DialContext(b.Context(), "tcp", port.Address())
		var timeout net.Error
		switch {
		case err == nil && hung == 0:
			b.Cleanup(func() { _ = conn.Close() })
		case errors.As(err, &timeout) && timeout.Timeout():
			hung++
		default:
			b.Fatalf("%s does not swallow packets: after %d dials that hung, one ended with %v", port.Address(), hung, err)
		}
	}
	return port
}

// listenDeaf listens at a port with the shortest backlog there is.
func listenDeaf(port *process.Port) (int, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	at := &syscall.SockaddrInet4{Port: port.Number, Addr: [4]byte(net.ParseIP(port.Host).To4())}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"setsockopt", func() error { return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) }},
		{"bind", func() error { return syscall.Bind(fd, at) }},
		{"listen", func() error { return syscall.Listen(fd, 0) }},
	} {
		if err := step.do(); err != nil {
			_ = syscall.Close(fd)
			return 0, fmt.Errorf("%s: %w", port.Address(), os.NewSyscallError(step.name, err))
		}
	}
	return fd, nil
}
