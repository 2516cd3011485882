// Package agent is a stand-in for kubelet and scheduler: it makes an API server without either
// run pods, as processes of this host. It exists so that the operator can be tested, and shown,
// against pods that really start, listen, crash and end, on any machine, without root.
//
// Pods are watched, never polled. One informer sees all of them: the unscheduled ones are bound
// here, and each of this node's own has a worker, one goroutine. A worker owns all
// that happens to its pod: it compares what the pod asks for with what it observes (its process,
// its probe, the clock), takes the next step, and writes the status that status.go computes from
// the same observation. API calls are made beside the worker, so that a hanging API server stops
// no process from being watched; without one the processes run on.
//
// A pod gets an address in 127.16.0.0-127.254.255.255 for as long as it exists here, and one
// process: its image is a name for an executable on this host. The process is the node's child
// with a parent-death signal, so that nothing survives the node. The node has an address too, in
// 127.8.0.0-127.11.255.255 unless it is given one. While a container runs, the node carries on
// what reaches its own address at one of the container's host ports; a pod that wants a host
// port of another pod stays unscheduled until that is gone.
//
// A Secret that a pod mounts at /etc/proxy-operator becomes files in a directory of the pod's
// own. Processes share the host's file system, so a pod's process cannot find them at that
// path: the environment variable PROXY_FILES_DIR tells it the directory. They are written before
// the pod's first life and go with the pod, and with the node; those of a node that was killed
// go when it is started again.
//
// Traded away: everything else that a kubelet does. One container a pod, no volumes but one of a
// Secret at that one path, no init containers, tcpSocket readiness probes only, restartPolicy
// Always only, host ports of TCP only; a pod that asks for more says so in its status instead
// of running differently. A pod that somebody else has bound here waits for a host port that
// another has, where a kubelet would fail it.
// Files do not follow a Secret that changes, since the operator's are immutable, and a process
// may write to its own. Resource limits and security contexts are ignored. Linux only.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/proxyfleet/proxy-operator/test/node/address"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// Options configure Run. All but Address and Logger are required.
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
	// Address is the node's own, on loopback and nobody else's. By default it is the one of an
	// earlier life, or comes from the name.
	Address netip.Addr
	// Logger defaults to discarding.
	Logger *slog.Logger
}

// node is what the workers share.
type node struct {
	name      string
	given     netip.Addr // the address that the options ask for
	hostIP    string     // set by register
	core      corev1client.CoreV1Interface
	leases    coordinationv1client.LeasesGetter
	images    map[string]string
	logDir    string
	log       *slog.Logger
	own       *address.Pool // holds hostIP
	addresses *address.Pool // of pods
	hostPorts *hostPorts
	files     filesRoot
	thread    *process.Thread
	pods      cache.SharedInformer
	claims    workqueue.TypedRateLimitingInterface[claim]

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
	defer n.releaseAddress()
	if err := n.register(ctx); err != nil {
		return err
	}
	var background sync.WaitGroup
	background.Go(func() { n.keepLease(ctx) })
	background.Go(func() { n.watchPods(ctx) })
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
		name: options.Name, given: options.Address, core: core, leases: leases,
		images: maps.Clone(options.Images), logDir: logDir, log: log,
		own: address.NewPool(address.Nodes), addresses: address.NewPool(address.Pods),
		hostPorts: newHostPorts(), files: newFilesRoot(logDir, options.Name), thread: process.NewThread(),
		pods: newPodInformer(core), claims: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[claim](100*time.Millisecond, 5*time.Second)),
		workers: map[types.UID]*worker{},
	}, nil
}

func newPodInformer(core corev1client.CoreV1Interface) cache.SharedInformer {
	source := cache.NewListWatchFromClient(core.RESTClient(), "pods", corev1.NamespaceAll, fields.Everything())
	informer := cache.NewSharedInformer(source, &corev1.Pod{}, 0)
	// Fails only on an informer that has started.
	_ = informer.SetTransform(func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); ok {
			pod.ManagedFields = nil // half of a pod's memory, and nobody here reads them
		}
		return object, nil
	})
	return informer
}

// watchPods binds the pods that may run here and keeps one worker for each that is bound to this
// node, until ctx ends. One informer sees both, so that no pod can come and go between two.
func (n *node) watchPods(ctx context.Context) {
	seen, err := n.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
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
	if err != nil { // only of an informer that has ended
		n.log.Error("cannot watch pods", "error", err)
		return
	}
	var claiming sync.WaitGroup
	claiming.Go(func() {
		select {
		case <-seen.HasSyncedChecker().Done():
			// Only now it is known which host ports the pods have that are bound here already.
			n.claimPods(ctx)
		case <-ctx.Done():
		}
	})
	n.pods.RunWithContext(ctx)
	n.claims.ShutDown()
	claiming.Wait()
}

// observe takes a pod's newest state.
func (n *node) observe(ctx context.Context, pod *corev1.Pod) {
	switch pod.Spec.NodeName {
	case "":
		n.claims.Add(claimOf(pod))
	case n.name:
		n.employ(ctx, pod)
	default:
		n.freeHostPorts(pod.UID)
	}
}

// employ hands the state of a pod of this node to its worker, starting one for a new pod.
func (n *node) employ(ctx context.Context, pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w, ok := n.workers[pod.UID]; ok {
		w.update(pod)
		return
	}
	if ctx.Err() != nil {
		return
	}
	// Now, before a pod that is yet to be bound can have them; the worker tells if it failed.
	_ = n.hostPorts.take(pod)
	w := newWorker(n, pod)
	n.workers[pod.UID] = w
	n.running.Go(func() { w.run(ctx) })
}

// forget ends the worker of a pod that is no more.
func (n *node) forget(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w, ok := n.workers[uid]; ok {
		close(w.gone) // and it frees the host ports, when it does not listen there any more
		delete(n.workers, uid)
		return
	}
	n.freeHostPorts(uid)
}

// freeHostPorts gives the pods that wait for a host port another try.
func (n *node) freeHostPorts(uid types.UID) {
	for _, waiting := range n.hostPorts.release(uid) {
		n.claims.Add(waiting)
	}
}
