// Package process starts the real programs that the demo and the end-to-end tests are made of.
//
// A Process is one program with a name, a log file and a PID. It can be polled until it is
// ready, stopped gracefully, and its end is noticed and told without ending anything else:
// killing one of them is what fault tests do.
//
// Whatever happens to the starting program, nothing stays behind: on Linux every child is
// started with a parent-death signal, so that it goes even when the parent is killed with
// SIGKILL. That signal follows the thread that forked, not the process (golang/go#27505), so
// all children are forked from one OS thread that lives as long as the program (Thread).
//
// ReservePort keeps a kernel-chosen port for servers that are stopped and started again.
//
// Traded away: portability. On other systems children outlive a parent that was killed.
package process
