package rest_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
	"github.com/proxyfleet/proxy-operator/hub/rest"
)

// inBubble runs a test in a bubble's time, with connections that are in memory.
func inBubble(t *testing.T, store lease.Options, change func(*rest.Options), test func(*api), proxies ...fleet.Proxy) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		a := startAPI(t, l, store, change, proxies...)
		transport := &http.Transport{
			DialContext:     func(context.Context, string, string) (net.Conn, error) { return l.dial() },
			MaxConnsPerHost: 0,
		}
		a.addr, a.dial, a.client = "hub", l.dial, &http.Client{Transport: transport}
		t.Cleanup(transport.CloseIdleConnections)
		test(a)
	})
}

// pipes is a listener whose connections live in a bubble's time.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }
func (p *pipes) dial() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// conn is a client's connection, spoken to by hand.
type conn struct {
	net.Conn
	t      *testing.T
	reader *bufio.Reader
}

// connect opens one.
func (a *api) connect() *conn {
	a.t.Helper()
	c, err := a.dial()
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = c.Close() })
	return &conn{c, a.t, bufio.NewReader(c)}
}

// send writes a part of a request on a connection of its own.
func (a *api) send(part string) *conn {
	a.t.Helper()
	c := a.connect()
	c.send(part)
	return c
}

func (c *conn) send(part string) {
	c.t.Helper()
	if _, err := io.WriteString(c, part); err != nil {
		c.t.Fatal(err)
	}
}

// read takes an answer off the connection.
func (c *conn) read() answer {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(data), resp.Close}
}

// rest is all that is still to come, until the server closes the connection.
func (c *conn) rest() string {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
	data, err := io.ReadAll(c.reader)
	if err != nil {
		c.t.Errorf("the server does not close the connection: %v", err)
	}
	return string(data)
}
