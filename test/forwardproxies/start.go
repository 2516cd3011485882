package forwardproxies

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/test/process"
)

// startTimeout is for a machine that is busy.
const startTimeout = 60 * time.Second

// Options say what a proxy demands of its clients; the zero value: nothing.
type Options struct {
	// Username and Password are demanded of every request or SOCKS5 connection.
	// tinyproxy's may be made of ASCII letters, digits, '-', '.' and '_' alone.
	Username, Password string
	// DenyConnect refuses each CONNECT by a rule, and no other request. microsocks has
	// no rules.
	DenyConnect bool
}

// Server is a proxy that runs.
type Server struct {
	// Addr is its host:port.
	Addr string

	process *process.Process
	dir     string
}

// Start starts a proxy, which accepts connections when Start returns and ends with the
// test.
func Start(t testing.TB, name string, o Options) *Server {
	t.Helper()
	kind, known := kinds[name]
	if !known {
		t.Fatalf("there is no proxy %q: want one of %v", name, Names())
	}
	path, err := program(name)
	if err != nil {
		t.Fatal(err)
	}
	// Kept until the test ends: no other socket can take it, so there is no race to lose.
	port, err := process.ReservePort("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.Release)
	dir := folder(t)
	args, err := kind.prepare(dir, port.Number, o)
	if err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(process.Spec{
		Name: name, Path: path, Args: args, Dir: dir, LogFile: filepath.Join(dir, "output"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, p) })
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := p.WaitReady(ctx, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", port.Address())
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		t.Fatal(err)
	}
	return &Server{Addr: port.Address(), process: p, dir: dir}
}

// folder is a test's own. Unlike that of t.TempDir it can be read by the user that squid
// becomes when root starts it.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "forwardproxies-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// stop ends a proxy, and with it what is left of its process group.
func stop(t testing.TB, p *process.Process) {
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
}
