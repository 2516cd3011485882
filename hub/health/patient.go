package health

import (
	"net"
	"sync"
)

// patient is a connection on which nothing is read before something has been
// written. net/http quotes in the process's log what a peer says unasked, and
// that may be the credentials that the probe before this one sent.
type patient struct {
	net.Conn
	asked chan struct{} // closed by the first Write, or by Close
	once  sync.Once
}

func newPatient(conn net.Conn) *patient { return &patient{Conn: conn, asked: make(chan struct{})} }

func (p *patient) ask() { p.once.Do(func() { close(p.asked) }) }

func (p *patient) Read(b []byte) (int, error) {
	<-p.asked
	return p.Conn.Read(b)
}

func (p *patient) Write(b []byte) (int, error) {
	p.ask()
	return p.Conn.Write(b)
}

// Close also ends a Read that waits.
func (p *patient) Close() error {
	defer p.ask()
	return p.Conn.Close()
}
