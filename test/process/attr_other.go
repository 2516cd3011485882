//go:build !linux

package process

import "syscall"

// attributes puts a child into a process group of its own, so that Ctrl-C on a terminal
// reaches the parent alone. There is no parent-death signal on this system.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
