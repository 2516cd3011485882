package health

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
)

// How much is read of what a peer sends. The verdict needs little of it, and any of it
// may never end.
const (
	// maxBody is of an answer's body.
	maxBody = 64 << 10
	// maxHeader is of an answer's header, those before it included: of short lines it
	// takes sixteen times that in memory.
	maxHeader = 32 << 10
	// maxHandshake is of a TLS handshake, as it is on the wire. Chains of certificates
	// have some 5 KiB; one of nothing but names takes fifty times its size in memory.
	maxHandshake = 32 << 10
	// maxRaw is of a whole probe, as it is on the wire: padding and empty records of TLS
	// never come out of it.
	maxRaw = 512 << 10
)

// measured is a connection of which no more is read than is left.
type measured struct {
	net.Conn
	left int
}

func (m *measured) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, errTooMuch
	}
	n, err := m.Conn.Read(p[:min(len(p), m.left)])
	m.left -= n
	return n, err
}

// meter reads no more than is left.
type meter struct {
	from io.Reader
	left int
	// broke is why there is no more, the end of what comes apart.
	broke error
}

// errTooMuch is more than is read.
var errTooMuch = errors.New("there is more than is read")

func (m *meter) Read(p []byte) (int, error) {
	if m.left <= 0 {
		return 0, errTooMuch
	}
	n, err := m.from.Read(p[:min(len(p), m.left)])
	m.left -= n
	if err != nil && err != io.EOF {
		m.broke = err
	}
	return n, err
}

// answer reads the header of an answer, and of those that only say that it is to come.
func (m *meter) answer(from *bufio.Reader, to *http.Request) (*http.Response, error) {
	for m.left = maxHeader; ; {
		res, err := http.ReadResponse(from, to)
		switch { // whatever became of a line that was cut off
		case err != nil && m.left <= 0:
			return nil, errTooMuch
		case err != nil && m.broke != nil:
			return nil, m.broke
		}
		if err != nil || res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			return res, err
		}
	}
}
