package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/proxyfleet/proxy-operator/test/process"
)

const (
	// startTimeout and stopTimeout bound the start and the stop of etcd and of kube-apiserver,
	// each. They take seconds; the rest is for machines on which everything starts at once.
	// What has not stopped by then is killed.
	startTimeout = 2 * time.Minute
	stopTimeout  = 20 * time.Second
	readyPoll    = 50 * time.Millisecond
)

// Options of Start; the zero value works.
type Options struct {
	// Name is what messages call this control plane, by default "control plane".
	Name string
	// Dir is the directory for data, certificates and logs. It is made if need be and left
	// alone by Stop; without it there is a temporary one, which Stop removes.
	Dir string
	// LogDir is where etcd.log and kube-apiserver.log go, by default Dir.
	LogDir string
	// APIServerFlags are given to kube-apiserver in addition, or instead of envtest's:
	// {"audit-log-path": {"-"}}.
	APIServerFlags map[string][]string
	// Progress takes the lines of a build, if one is needed (see Assets); nil: none.
	Progress io.Writer
}

// ControlPlane is a running etcd and kube-apiserver: one cluster. Its methods may be called
// concurrently.
type ControlPlane struct {
	name      string
	dir       string
	logDir    string
	temporary bool
	thread    *process.Thread
	ports     []*process.Port
	logs      []*os.File
	admin     *rest.Config

	mu      sync.Mutex // guards plane's state: one start or stop at a time
	plane   *envtest.ControlPlane
	stopped bool
}

// Start starts a control plane and returns when it serves: API server ready, RBAC's default
// roles there, kube-system there. If ctx ends first, everything is stopped again.
func Start(ctx context.Context, options Options) (*ControlPlane, error) {
	assets, err := Assets(ctx, options.Progress)
	if err != nil {
		return nil, err
	}
	if options.Name == "" {
		options.Name = "control plane"
	}
	c := &ControlPlane{name: options.Name, dir: options.Dir, thread: process.NewThread()}
	if err := c.start(ctx, assets, options); err != nil {
		tail := c.logTail()
		return nil, errors.Join(fmt.Errorf("start %s: %w%s", c.name, err, tail), c.Stop())
	}
	return c, nil
}

func (c *ControlPlane) start(ctx context.Context, assets string, options Options) error {
	if err := c.prepare(assets, options); err != nil {
		return err
	}
	// envtest knows no context. What it waits for ends when its processes cannot live.
	stopWatching := context.AfterFunc(ctx, func() { retire(c.dir) })
	defer stopWatching()
	c.mu.Lock()
	err := c.onThread(c.plane.Start)
	c.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	user, err := c.plane.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}},
		// The limits of client-go are for guests of a shared API server.
		&rest.Config{QPS: 1000, Burst: 2000})
	if err != nil {
		return err
	}
	c.admin = user.Config()
	return c.waitReady(ctx)
}

// prepare lays out the directory and tells envtest everything.
func (c *ControlPlane) prepare(assets string, options Options) error {
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "controlplane-")
		if err != nil {
			return err
		}
		c.dir, c.temporary = dir, true
	}
	var err error
	// envtest runs --help and the server from paths relative to the working directory.
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(c.dir, retiredFile)) // of an earlier life of this directory
	if c.logDir = options.LogDir; c.logDir == "" {
		c.logDir = c.dir
	}
	if err := os.MkdirAll(c.logDir, 0o700); err != nil {
		return err
	}
	var launchers [2]string
	for i, component := range []string{"etcd", "kube-apiserver"} {
		if launchers[i], err = c.prepareComponent(component, assets); err != nil {
			return err
		}
	}
	c.plane = c.configure(launchers[0], launchers[1], options.APIServerFlags)
	return nil
}

// prepareComponent makes a component's directory, log, port and launcher.
func (c *ControlPlane) prepareComponent(name, assets string) (launcher string, err error) {
	_ = os.Remove(pidFile(c.dir, name))
	if err := os.MkdirAll(filepath.Join(c.dir, name), 0o700); err != nil {
		return "", err
	}
	log, err := os.OpenFile(c.logFile(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return "", err
	}
	c.logs = append(c.logs, log)
	port, err := process.ReservePort("")
	if err != nil {
		return "", err
	}
	c.ports = append(c.ports, port)
	return writeLauncher(c.dir, filepath.Join(assets, name))
}

func (c *ControlPlane) configure(etcdLauncher, apiserverLauncher string, flags map[string][]string) *envtest.ControlPlane {
	etcd := &envtest.Etcd{
		URL:     &url.URL{Scheme: "http", Host: c.ports[0].Address()},
		Path:    etcdLauncher,
		DataDir: filepath.Join(c.dir, "etcd"),
		Out:     c.logs[0], Err: c.logs[0],
		StartTimeout: startTimeout, StopTimeout: stopTimeout,
	}
	// One member has no peers; its own choice of port cannot be taken by anybody in between.
	etcd.Configure().Set("listen-peer-urls", "http://127.0.0.1:0")
	// What is written here need not outlive the machine, only the process.
	etcd.Configure().Set("unsafe-no-fsync", "true")
	apiserver := &envtest.APIServer{
		Path:    apiserverLauncher,
		CertDir: filepath.Join(c.dir, "kube-apiserver"),
		Out:     c.logs[1], Err: c.logs[1],
		StartTimeout: startTimeout, StopTimeout: stopTimeout,
	}
	apiserver.ListenAddr = envtest.ListenAddr{
		Address: c.ports[1].Host, Port: strconv.Itoa(c.ports[1].Number),
	}
	for flag, values := range flags {
		apiserver.Configure().Set(flag, values...)
	}
	return &envtest.ControlPlane{Etcd: etcd, APIServer: apiserver}
}

// waitReady waits until an admin can work. /readyz covers the roles that RBAC starts with; the
// namespaces come from a loop that it does not cover.
func (c *ControlPlane) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	clients, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	check := func(ctx context.Context) error {
		if err := clients.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return err
		}
		for _, name := range []string{metav1.NamespaceSystem, metav1.NamespaceDefault} {
			if _, err := clients.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		return nil
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("API server not ready: %w (last: %w)", err, last)
	}
	return nil
}

// Name is the one from Options.
func (c *ControlPlane) Name() string { return c.name }

// Dir holds data and certificates.
func (c *ControlPlane) Dir() string { return c.dir }

// Admin returns a copy of the configuration of a cluster admin: a client certificate.
func (c *ControlPlane) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// UID is the identity of the cluster: the UID of its namespace kube-system.
func (c *ControlPlane) UID(ctx context.Context) (string, error) {
	clients, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return "", err
	}
	var namespace *corev1.Namespace
	if namespace, err = clients.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err != nil {
		return "", fmt.Errorf("read the UID of %s: %w", c.name, err)
	}
	return string(namespace.UID), nil
}

// EtcdPID is the PID of etcd.
func (c *ControlPlane) EtcdPID() int { return readPID(c.dir, "etcd") }

// APIServerPID is the PID of the API server that was started last.
func (c *ControlPlane) APIServerPID() int { return readPID(c.dir, "kube-apiserver") }

// StopAPIServer ends the API server in an orderly way and leaves etcd running. Its port stays
// reserved and refuses connections.
func (c *ControlPlane) StopAPIServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	thaw(c.dir)
	if err := c.onThread(c.plane.APIServer.Stop); err != nil {
		return fmt.Errorf("stop the API server of %s: %w", c.name, err)
	}
	return nil
}

// KillAPIServer ends the API server at once, as a crash would. An orderly stop waits up to a
// minute for the watches of others.
func (c *ControlPlane) KillAPIServer() error {
	pid := c.APIServerPID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the API server of %s: %w", c.name, err)
	}
	if !process.WaitGone(stopTimeout, pid) {
		return fmt.Errorf("kill the API server of %s: it is still there", c.name)
	}
	return nil
}

// StartAPIServer starts the API server again, on the same port, with the same data and
// certificates, and returns when it is ready; that it was stopped or killed is for the caller
// to see to.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	err := c.onThread(c.plane.APIServer.Start)
	c.mu.Unlock()
	if err == nil {
		err = c.waitReady(ctx)
	}
	if err != nil {
		return fmt.Errorf("start the API server of %s again: %w%s", c.name, err, c.logTail())
	}
	return nil
}

// Stop ends both processes, in an orderly way if that works, and removes a temporary directory.
// Calling it again is harmless.
func (c *ControlPlane) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil
	}
	c.stopped = true
	var err error
	if c.plane != nil {
		err = c.stopProcesses()
	}
	c.thread.End()
	for _, port := range c.ports {
		port.Release()
	}
	for _, log := range c.logs {
		_ = log.Close()
	}
	if c.temporary {
		err = errors.Join(err, os.RemoveAll(c.dir))
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", c.name, err)
	}
	return nil
}

func (c *ControlPlane) stopProcesses() error {
	thaw(c.dir)
	if !process.Alive(c.EtcdPID()) {
		// An API server without its etcd takes its time to find out that it cannot say goodbye.
		kill(c.dir, "kube-apiserver")
	}
	// That one of them had to be killed, or had been before, is no error: gone is gone.
	err := c.onThread(c.plane.Stop)
	if err == nil {
		return nil
	}
	kill(c.dir, "etcd", "kube-apiserver")
	if process.WaitGone(stopTimeout, c.EtcdPID(), c.APIServerPID()) {
		return nil
	}
	return err
}

// onThread runs what forks on the thread whose end would end the children, see process.Thread.
func (c *ControlPlane) onThread(f func() error) (err error) {
	c.thread.Do(func() { err = f() })
	return err
}

func (c *ControlPlane) logFile(component string) string {
	return filepath.Join(c.logDir, component+".log")
}

// logTail is the end of both logs, for an error message.
func (c *ControlPlane) logTail() string {
	var text strings.Builder
	for _, component := range []string{"etcd", "kube-apiserver"} {
		if info, err := os.Stat(c.logFile(component)); err == nil && info.Size() > 0 {
			fmt.Fprintf(&text, "\nthe end of %s:\n%s", c.logFile(component), process.Tail(c.logFile(component), 10))
		}
	}
	return text.String()
}
