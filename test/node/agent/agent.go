// Package agent is a stand-in for kubelet and scheduler: it makes an API server without either
// run pods, as processes of this host. It exists so that the operator can be tested, and shown,
// against pods that really start, listen, crash and end, on any machine, without root.
//
// Pods are watched, never polled. One informer sees the unscheduled ones and binds them here;
// another sees this node's own and keeps a worker, one goroutine, for each. A worker owns all
// that happens to its pod: it compares what the pod asks for with what it observes (its process,
// its probe, the clock), takes the next step, and writes the status that status.go computes from
// the same observation. API calls are made beside the worker, so that a hanging API server stops
// no process from being watched; without one the processes run on.
//
// A pod gets an address in 127.16.0.0-127.254.255.255 for as long as it exists here, and one
// process: its image is a name for an executable on this host. The process is the node's child
// with a parent-death signal, so that nothing survives the node.
//
// A Secret that a pod mounts at /etc/proxy-operator becomes files in a directory of the pod's
// own. Processes share the host's file system, so a pod's process cannot find them at that
// path: the environment variable PROXY_FILES_DIR tells it the directory. They are written before
// the pod's first life and go with the pod, and with the node; those of a node that was killed
// go when it is started again.
//
// Traded away: everything else that a kubelet does. One container a pod, no volumes but one of a
// Secret at that one path, no init containers, tcpSocket readiness probes only, restartPolicy
// Always only; a pod that asks for more says so in its status instead of running differently.
// Files do not follow a Secret that changes, since the operator's are immutable, and a process
// may write to its own. Resource limits and security contexts are ignored. Linux only.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/proxyfleet/proxy-operator/test/process"
)

// Options configure Run. All but Logger are required.
type Options struct {
	// Name of the Node object.
	Name string
	// Config reaches the API server as a user who may do anything a node and a scheduler do.
	Config *rest.Config
	// Images maps the name of an image to an executable.
	Images map[string]string
	// LogDir is an existing directory; NAMESPACE_NAME_UID.log there takes a pod's output, and
	// NODE.files is there, for nobody else to read, as long as the node runs.
	LogDir string
	// Logger defaults to discarding.
	Logger *slog.Logger
}

// node is what the workers share.
type node struct {
	name      string
	core      corev1client.CoreV1Interface
	leases    coordinationv1client.LeasesGetter
	images    map[string]string
	logDir    string
	log       *slog.Logger
	addresses *addresses
	files     filesRoot
	thread    *process.Thread

	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup
}

// Run is a node until ctx ends; it returns when every process it started has ended. An API
// server that cannot be reached is waited for.
func Run(ctx context.Context, options Options) error {
	n, err := newNode(options)
	if err != nil {
		return err
	}
	// Only when no process is left: the thread's end would kill them.
	defer n.thread.End()
	if err := n.files.make(); err != nil {
		return fmt.Errorf("make a directory for the files of pods: %w", err)
	}
	defer n.files.removeAll()
	if err := n.register(ctx); err != nil {
		return err
	}
	var background sync.WaitGroup
	background.Go(func() { n.keepLease(ctx) })
	background.Go(func() { n.claimPods(ctx) })
	background.Go(func() { n.runPods(ctx) })
	background.Wait()
	n.running.Wait()
	return nil
}

func newNode(options Options) (*node, error) {
	config := rest.CopyConfig(options.Config)
	// A node full of crash-looping pods writes more than the default 5 requests a second.
	config.QPS = -1
	config.UserAgent = "proxy-operator-test-node/" + options.Name
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	leases, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	// Processes do not run in this one's working directory.
	logDir, err := filepath.Abs(options.LogDir)
	if err != nil {
		return nil, err
	}
	log := options.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &node{
		name: options.Name, core: core, leases: leases, images: maps.Clone(options.Images),
		logDir: logDir, log: log, addresses: newAddresses(), files: newFilesRoot(logDir, options.Name),
		thread: process.NewThread(), workers: map[types.UID]*worker{},
	}, nil
}

// runPods keeps one worker for each pod that is bound to this node, until ctx ends.
func (n *node) runPods(ctx context.Context) {
	n.watch(ctx, "spec.nodeName="+n.name, cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { n.observe(ctx, object.(*corev1.Pod)) },
		UpdateFunc: func(before, object any) {
			pod := object.(*corev1.Pod)
			// A deletion and the creation of a namesake may arrive as one update.
			if before := before.(*corev1.Pod); before.UID != pod.UID {
				n.forget(before.UID)
			}
			n.observe(ctx, pod)
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				n.forget(pod.UID)
			}
		},
	})
}

// observe hands a pod's newest state to its worker, starting one for a new pod.
func (n *node) observe(ctx context.Context, pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w, ok := n.workers[pod.UID]; ok {
		w.update(pod)
		return
	}
	if ctx.Err() != nil {
		return
	}
	w := newWorker(n, pod)
	n.workers[pod.UID] = w
	n.running.Go(func() { w.run(ctx) })
}

// forget ends the worker of a pod that is no more.
func (n *node) forget(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w, ok := n.workers[uid]; ok {
		close(w.gone)
		delete(n.workers, uid)
	}
}

// watch runs an informer over the pods that a field selector picks, until ctx ends.
func (n *node) watch(ctx context.Context, selector string, handler cache.ResourceEventHandler) {
	source := cache.NewListWatchFromClient(n.core.RESTClient(), "pods", corev1.NamespaceAll,
		fields.ParseSelectorOrDie(selector))
	informer := cache.NewSharedInformer(source, &corev1.Pod{}, 0)
	// Both fail only on an informer that has started.
	_ = informer.SetTransform(func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); ok {
			pod.ManagedFields = nil // half of a pod's memory, and nobody here reads them
		}
		return object, nil
	})
	_, _ = informer.AddEventHandler(handler)
	informer.RunWithContext(ctx)
}
