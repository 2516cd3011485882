package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/test/relay"
)

const (
	minBackoff   = time.Second
	maxBackoff   = 30 * time.Second
	backoffReset = time.Minute
)

// worker runs one pod. Everything but update and gone belongs to the goroutine of run.
type worker struct {
	*node
	log     *slog.Logger
	updates chan *corev1.Pod // the newest state, if run has not seen it yet
	gone    chan struct{}    // closed when the pod is no more

	pod       *corev1.Pod
	seen      observation
	preferred string         // the address of an earlier life of this node
	mounted   string         // the directory that stands for filesPath, once it is filled
	proc      *container     // nil while none runs
	relays    []*relay.Relay // of proc's host ports
	ready     *readiness     // of proc
	probes    chan bool      // results for ready
	startAt   time.Time      // when to start the next life
	backoff   time.Duration
	termAt    time.Time // when SIGTERM was sent
	killed    bool
	refused   bool // the pod is not to be started as it is
	api       apiWriter
	reported  corev1.PodStatus // the status at the API server, as far as we know
}

func newWorker(n *node, pod *corev1.Pod) *worker {
	seen := previousLife(pod.Status, metav1.Now().Rfc3339Copy())
	seen.hostIP = n.hostIP
	return &worker{
		node: n, log: n.log.With("namespace", pod.Namespace, "pod", pod.Name),
		updates: make(chan *corev1.Pod, 1), gone: make(chan struct{}),
		pod: pod, reported: pod.Status, preferred: pod.Status.PodIP,
		seen: seen, api: newAPIWriter(n.core.Pods(pod.Namespace), pod),
	}
}

// update leaves the pod's newest state for run, in place of one not seen yet. One caller at a time.
func (w *worker) update(pod *corev1.Pod) {
	select {
	case <-w.updates:
	default:
	}
	w.updates <- pod
}

// run lives as long as the pod, or until ctx ends. Whenever anything happens it takes every
// step that is due and sleeps until the next event or time.
func (w *worker) run(ctx context.Context) {
	defer func() {
		w.unexpose()
		w.freeHostPorts(w.pod.UID)
		if address, err := netip.ParseAddr(w.seen.podIP); err == nil {
			w.addresses.Release(address)
		}
		w.files.remove(w.pod.UID)
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		w.advance(ctx, now)
		timer.Reset(time.Until(w.nextStep(now)))
		var exited <-chan struct{}
		if w.proc != nil {
			exited = w.proc.exited
		}
		select {
		case <-ctx.Done():
			if w.proc != nil {
				w.proc.stop(gracePeriod(w.pod), w.gone)
			}
			return
		case <-w.gone:
			if w.proc != nil {
				w.proc.stop(0, w.gone)
			}
			return
		case pod := <-w.updates:
			w.changed(pod)
		case <-exited:
			w.ended(time.Now())
		case ok := <-w.probes:
			w.ready.record(ok, time.Now())
		case result := <-w.api.results:
			w.written(result, time.Now())
		case <-timer.C:
		}
	}
}

// changed takes the pod's newest state. A new spec is worth a new attempt at once.
func (w *worker) changed(pod *corev1.Pod) {
	if pod.Generation != w.pod.Generation {
		w.refused, w.startAt, w.backoff = false, time.Time{}, 0
	}
	w.pod = pod
}

// advance takes every step that is due.
func (w *worker) advance(ctx context.Context, now time.Time) {
	if w.pod.DeletionTimestamp != nil {
		w.terminate(ctx, now)
	} else if w.proc == nil && !w.refused && !now.Before(w.startAt) {
		w.start(ctx, now)
	}
	w.seen.ready = w.proc != nil && w.ready.ready
	if w.proc != nil {
		if due := w.ready.due(); !due.IsZero() && !now.Before(due) {
			w.ready.start(ctx, w.probes)
		}
	}
	w.report(ctx, now)
}

// nextStep is when advance, called at now, has something to do again if nothing happens before.
func (w *worker) nextStep(now time.Time) time.Time {
	next := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	deleting := w.pod.DeletionTimestamp != nil
	if w.proc == nil && !w.refused && !deleting {
		sooner(w.startAt)
	}
	if w.proc != nil {
		sooner(w.ready.due())
		if !w.termAt.IsZero() && !w.killed {
			sooner(w.termAt.Add(gracePeriod(w.pod)))
		}
	}
	// Once that has passed and nothing was left to tell, it is of no interest any more.
	if w.api.retryAt.After(now) {
		sooner(w.api.retryAt)
	}
	return next
}

// start begins the next life of the container, or says why it cannot yet.
func (w *worker) start(ctx context.Context, now time.Time) {
	c := &w.pod.Spec.Containers[0]
	if w.seen.podIP == "" {
		if err := w.acquireAddress(ctx, c); err != nil {
			w.wait("CreatePodSandboxError", err.Error(), now)
			return
		}
	}
	if what := unsupported(w.pod); what != "" {
		w.refuse("CreateContainerConfigError", "this stand-in node does not support "+what)
		return
	}
	executable, known := w.images[c.Image]
	if !known {
		w.pullFailed(c.Image, now)
		return
	}
	if err := w.mount(ctx); err != nil {
		w.wait("CreateContainerConfigError", err.Error(), now)
		return
	}
	env, err := w.environment(ctx, w.pod, w.seen.podIP, w.mounted)
	if err != nil {
		w.wait("CreateContainerConfigError", err.Error(), now)
		return
	}
	if err := w.expose(ctx, c); err != nil {
		w.wait("CreatePodSandboxError", err.Error(), now)
		return
	}
	proc, err := startContainer(w.thread, executable, arguments(c), env, logFile(w.logDir, w.pod))
	if err != nil {
		w.unexpose()
		w.wait("RunContainerError", err.Error(), now)
		return
	}
	if w.seen.lastExit != nil {
		w.seen.restarts++
	}
	w.proc, w.killed, w.termAt = proc, false, time.Time{}
	// A probe of an earlier life still has its own channel.
	w.probes = make(chan bool, 1)
	w.ready = newReadiness(c, w.seen.podIP, now)
	w.seen.waiting, w.seen.running = nil, &corev1.ContainerStateRunning{StartedAt: proc.started}
	w.seen.containerID = proc.id()
	w.log.Info("started", "id", proc.id(), "address", w.seen.podIP, "restarts", w.seen.restarts)
}

// acquireAddress gives the pod its address, the one of an earlier life if that can be had.
func (w *worker) acquireAddress(ctx context.Context, c *corev1.Container) error {
	var ports []uint16
	for _, p := range c.Ports {
		ports = append(ports, uint16(p.ContainerPort))
	}
	earlier, _ := netip.ParseAddr(w.preferred) // a new pod has none
	address, err := w.addresses.Acquire(ctx, earlier, string(w.pod.UID), ports...)
	if err != nil {
		return err
	}
	w.seen.podIP = address.String()
	return nil
}

// ended takes note of the process's end and schedules the next life.
func (w *worker) ended(now time.Time) {
	exit := w.proc.exit
	w.log.Info("ended", "id", exit.ContainerID, "exitCode", exit.ExitCode)
	w.unexpose()
	// A probe that is still under way has nobody to report to.
	w.proc, w.ready, w.probes = nil, nil, nil
	w.seen.running, w.seen.lastExit = nil, &exit
	if exit.FinishedAt.Sub(exit.StartedAt.Time) >= backoffReset {
		w.backoff = 0
	}
	c := &w.pod.Spec.Containers[0]
	w.wait("CrashLoopBackOff", "", now)
	w.seen.waiting.Message = fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)",
		w.backoff, c.Name, w.pod.Name, w.pod.Namespace, w.pod.UID)
}

// pullFailed says so once as the failure and from then on as the wait for the next attempt.
func (w *worker) pullFailed(image string, now time.Time) {
	known := slices.Sorted(maps.Keys(w.images))
	message := fmt.Sprintf("image %q is not known to this node, which has: %s", image, strings.Join(known, ", "))
	if w.seen.waiting == nil || !strings.HasSuffix(w.seen.waiting.Message, message) {
		w.wait("ErrImagePull", message, now)
		return
	}
	w.wait("ImagePullBackOff", "Back-off pulling image: "+message, now)
}

// wait says what the container waits for and tries again after a delay that doubles.
func (w *worker) wait(reason, message string, now time.Time) {
	w.backoff = min(max(minBackoff, 2*w.backoff), maxBackoff)
	w.startAt = now.Add(w.backoff)
	w.seen.waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
}

// refuse is wait for what only a changed pod can repair.
func (w *worker) refuse(reason, message string) {
	w.refused = true
	w.seen.waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
}

// terminate takes a deleted pod to its end: SIGTERM, SIGKILL after the grace, and when no
// process is left the deletion that makes the pod go.
func (w *worker) terminate(ctx context.Context, now time.Time) {
	switch {
	case w.proc == nil:
		w.api.delete(ctx, now)
	case w.termAt.IsZero():
		w.termAt = now
		w.proc.signal(syscall.SIGTERM)
	case !w.killed && !now.Before(w.termAt.Add(gracePeriod(w.pod))):
		w.killed = true
		w.proc.signal(syscall.SIGKILL)
	}
}

// report writes the status if it says anything new. One that is going needs none any more.
func (w *worker) report(ctx context.Context, now time.Time) {
	if w.pod.DeletionTimestamp != nil && w.proc == nil {
		return
	}
	// Seconds are all that the API server keeps.
	status := podStatus(w.pod, w.reported, w.seen, metav1.NewTime(now).Rfc3339Copy())
	if !equality.Semantic.DeepEqual(status, w.reported) {
		w.api.writeStatus(ctx, status, now)
	}
}

// written takes the result of an API call.
func (w *worker) written(result apiResult, now time.Time) {
	if err := w.api.finished(result, now); err != nil {
		w.log.Warn("cannot tell the API server, trying again", "operation", result.operation, "error", err)
		return
	}
	if result.status != nil {
		w.reported = *result.status
	}
}
