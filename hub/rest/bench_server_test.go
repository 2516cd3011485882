package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/metrics"
	"github.com/proxyfleet/proxy-operator/hub/rest"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// A server that is measured is a process of its own, this test binary again, so that its
// memory and its garbage collector are nobody else's.
const (
	serverVariable = "BENCH_LEASE_SERVER"
	benchToken     = "0123456789abcdef0123456789abcdef"
	// serverForgets is how long the API's store keeps what has ended; see settled.
	serverForgets = time.Second
)

// served is what such a process is to be: the API with so many Proxies, or, with none, a
// bare handler.
type served struct {
	Proxies int
	// EveryLine has each request logged. The hub's logger takes a hundred of a kind each
	// second, and of the others one of a hundred.
	EveryLine bool
	// Answer is the file with the answer of the bare handler, as the API wrote it.
	Answer string
	// ReadyFile is written, with the address, when it can be asked.
	ReadyFile string
}

// TestServeForTheBenchmark is no test but such a process; in a run of the tests it does
// nothing.
func TestServeForTheBenchmark(t *testing.T) {
	text := os.Getenv(serverVariable)
	if text == "" {
		return
	}
	var what served
	if err := json.Unmarshal([]byte(text), &what); err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve := what.bare
	if what.Proxies > 0 {
		serve = what.api
	}
	serve(ctx, t, l)
}

// ready tells who started it that it can be asked.
func (what served) ready(t *testing.T, l net.Listener) {
	t.Helper()
	part := what.ReadyFile + ".part"
	if err := os.WriteFile(part, []byte(l.Addr().String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(part, what.ReadyFile); err != nil { // whole or not at all
		t.Fatal(err)
	}
}

// api serves the API as the hub does: with a token, its metrics, and a request log that
// goes to a file, if to one that takes no room.
func (what served) api(ctx context.Context, t *testing.T, l net.Listener) {
	f := benchFleet(what.Proxies)
	store := lease.New(lease.Options{CooldownWindow: serverForgets})
	f.Follow(store.Observe)
	for _, target := range benchTargets {
		cool(t, store, benchSelector, what.Proxies/len(regions)/100, target)
	}
	go func() { _ = store.Run(ctx) }()
	recorder := metrics.New(prometheus.NewRegistry(), metrics.Options{})
	server := rest.New(rest.Options{Token: benchToken, Leases: store, Metrics: recorder, Log: what.log(t)})
	what.ready(t, l)
	if err := server.Serve(ctx, l); err != nil {
		t.Error(err)
	}
}

// log is the hub's logger, or one that leaves out no line.
func (what served) log(t *testing.T) logr.Logger {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a system call a line, unlike io.Discard
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	options := []zap.Opts{zap.WriteTo(null), zap.Level(zapcore.InfoLevel)}
	if what.EveryLine {
		options = append(options, zap.UseDevMode(true), zap.JSONEncoder()) // the one that samples nothing, and the same form
	}
	return zap.New(options...).WithName("api")
}

// bare serves what net/http alone can: it reads the body and writes the same answer each
// time, of the API's size and with its headers. The limits are those of rest.Server.
func (what served) bare(ctx context.Context, t *testing.T, l net.Listener) {
	content, err := os.ReadFile(what.Answer)
	if err != nil {
		t.Fatal(err)
	}
	var a benchAnswer
	if err := json.Unmarshal(content, &a); err != nil {
		t.Fatal(err)
	}
	body := []byte(a.Body)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.Method == http.MethodDelete {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			header := w.Header()
			for name, values := range a.Header {
				header[name] = values
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(body)
		}),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, DisableGeneralOptionsHandler: true,
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	what.ready(t, l)
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// benchAnswer is an answer of the API.
type benchAnswer struct {
	Header http.Header
	Body   string
}

// benchServer is such a process, seen from here.
type benchServer struct {
	name    string
	address string
	pid     int
	proxied bool // it is the API
}

// startServer starts one. It ends with the benchmark.
func startServer(b *testing.B, name string, what served) *benchServer {
	b.Helper()
	dir := b.TempDir()
	what.ReadyFile = filepath.Join(dir, "ready")
	text, err := json.Marshal(what)
	if err != nil {
		b.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	s := &benchServer{name: name, proxied: what.Proxies > 0}
	p := process.StartForTest(b, process.Spec{
		Name: name, Path: self, LogFile: filepath.Join(dir, "log"), Env: []string{serverVariable + "=" + string(text)},
		Args: []string{"-test.run", "^TestServeForTheBenchmark$", "-test.timeout", "0"},
	}, func(context.Context) error {
		address, err := os.ReadFile(what.ReadyFile)
		s.address = string(address)
		return err
	})
	s.pid = p.PID()
	return s
}

// sample is the API's answer to a request, in a file for the bare handler.
func (s *benchServer) sample(b *testing.B) (file string) {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://"+s.address+"/v1/leases", strings.NewReader(benchBody(benchTargets[0])))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+benchToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(response.Body); err != nil {
		b.Fatal(err)
	}
	if response.StatusCode != http.StatusCreated {
		b.Fatalf("the API answered %s: %s", response.Status, body.String())
	}
	response.Header.Del("Date") // net/http writes it itself
	text, err := json.Marshal(benchAnswer{response.Header, body.String()})
	if err != nil {
		b.Fatal(err)
	}
	file = filepath.Join(b.TempDir(), "answer.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		b.Fatal(err)
	}
	return file
}

var benchSelector = map[string]string{"region": "eu"}

// benchTargets are asked for in turn; from each a few of the Proxies rest.
var benchTargets = func() (all []string) {
	for i := range 10 {
		all = append(all, fmt.Sprintf("shop-%d.example.com", i))
	}
	return all
}()

// benchBody is that of a request.
func benchBody(target string) string {
	return fmt.Sprintf(`{"selector":{"region":%q},"target":%q,"ttlSeconds":300}`, benchSelector["region"], target)
}
