package process

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// Port is a TCP port on an IPv4 loopback address, kept for somebody else to listen on.
type Port struct {
	Host   string
	Number int
	holder *os.File
}

// ReservePort has the kernel choose a free port on host ("" means 127.0.0.1) and keeps it until
// Release: nobody else is given it, before a server listens there nor while that server is
// down, and dialling it meanwhile is refused.
//
// The port is held by a socket that is bound with SO_REUSEADDR and never listens. A server that
// sets SO_REUSEADDR too (every Go program does) may bind beside it, while the kernel passes
// over it when it chooses ports itself. Asking for a free port and closing it again, the usual
// way, loses the port now and then to a parallel test.
func ReservePort(host string) (*Port, error) {
	if host == "" {
		host = "127.0.0.1"
	}
	ip := net.ParseIP(host).To4()
	if ip == nil {
		return nil, fmt.Errorf("reserve port: %q is not an IPv4 address", host)
	}
	// The fork lock keeps the descriptor from a child that is forked before it is marked
	// close-on-exec.
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reserve port: %w", os.NewSyscallError("socket", err))
	}
	port := &Port{Host: host, holder: os.NewFile(uintptr(fd), "port-holder")}
	number, err := bindAny(fd, [4]byte(ip))
	if err != nil {
		port.Release()
		return nil, fmt.Errorf("reserve port on %s: %w", host, err)
	}
	port.Number = number
	return port, nil
}

func bindAny(fd int, ip [4]byte) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: ip}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	return name.(*syscall.SockaddrInet4).Port, nil
}

// Address is host:port.
func (p *Port) Address() string {
	return net.JoinHostPort(p.Host, strconv.Itoa(p.Number))
}

// Release gives the port back. It may be called on nil and more than once.
func (p *Port) Release() {
	if p != nil && p.holder != nil {
		_ = p.holder.Close()
		p.holder = nil
	}
}
