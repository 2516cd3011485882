package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/test/process"
)

// container is one life of a pod's container: a process.
type container struct {
	cmd     *exec.Cmd
	started metav1.Time
	// exited is closed once the process is reaped; exit may be read then.
	exited chan struct{}
	exit   corev1.ContainerStateTerminated
}

// startContainer forks on the node's thread, see process.Thread.
func startContainer(thread *process.Thread, executable string, args, env []string, logFile string) (*container, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	cmd := &exec.Cmd{
		Path: executable, Args: append([]string{executable}, args...), Env: env, Dir: "/",
		Stdout: log, Stderr: log,
		// In a group of its own a Ctrl-C at the terminal leaves it to the node to stop it.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	thread.Do(func() { err = cmd.Start() })
	if err != nil {
		return nil, err
	}
	c := &container{cmd: cmd, started: metav1.Now().Rfc3339Copy(), exited: make(chan struct{})}
	go func() {
		err := cmd.Wait()
		c.exit = c.terminated(err, metav1.Now().Rfc3339Copy())
		close(c.exited)
	}()
	return c, nil
}

// id is what tests find the process by.
func (c *container) id() string { return fmt.Sprintf("process://%d", c.cmd.Process.Pid) }

// signal does nothing to a process that has ended.
func (c *container) signal(signal syscall.Signal) { _ = c.cmd.Process.Signal(signal) }

// stop ends the process with SIGTERM and, after grace or when hurry is closed, SIGKILL.
func (c *container) stop(grace time.Duration, hurry <-chan struct{}) {
	c.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.exited:
		return
	case <-timer.C:
	case <-hurry:
	}
	c.signal(syscall.SIGKILL)
	<-c.exited
}

func (c *container) terminated(err error, now metav1.Time) corev1.ContainerStateTerminated {
	t := corev1.ContainerStateTerminated{
		Reason: "Completed", StartedAt: c.started, FinishedAt: now, ContainerID: c.id(),
	}
	var failed *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &failed):
		t.Reason, t.ExitCode = "Error", exitCode(failed)
	default:
		t.Reason, t.ExitCode, t.Message = "Error", 255, err.Error()
	}
	return t
}

// exitCode is a shell's and a container runtime's: 128 and the signal for who died of one.
func exitCode(failed *exec.ExitError) int32 {
	if status, ok := failed.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(failed.ExitCode())
}

// logFile is where a pod's output goes, all of its lives in one.
func logFile(dir string, pod *corev1.Pod) string {
	return filepath.Join(dir, fmt.Sprintf("%s_%s_%s.log", pod.Namespace, pod.Name, pod.UID))
}
