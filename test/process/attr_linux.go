package process

import "syscall"

// attributes puts a child into a process group of its own, so that Ctrl-C on a terminal
// reaches the parent alone, which then stops its children in order; and has the kernel kill
// it when the forking thread ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
