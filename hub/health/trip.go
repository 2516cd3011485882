package health

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// headerBuffer is how much is read ahead of an answer: most headers are shorter.
const headerBuffer = 1 << 10

// userAgent says to proxies and sites who asks.
const userAgent = "proxy-operator-probe"

// trip is one way to a site and back. Unlike net/http's transport it keeps nothing, runs
// on one goroutine, and knows how far it has come.
type trip struct {
	*prober
	via      through
	to       site
	insecure bool

	at   stage
	conn *measured   // nil before it is dialled
	stop func() bool // has the end of the context not end the connection any more
	in   *meter
}

// fetch goes to the site through the proxy and returns its answer, of which the body is
// not read yet, or what kept it from coming. The caller ends the trip in either case.
func (t *trip) fetch(ctx context.Context) (*http.Response, error) {
	conn, err := t.open(ctx, t.via.host, t.via.port)
	if err != nil {
		return nil, err
	}
	if t.via.Protocol == string(v1alpha1.ProtocolHTTPS) {
		if conn, err = t.secure(conn); err != nil {
			return nil, err
		}
	}
	switch {
	case t.via.Protocol == string(v1alpha1.ProtocolSOCKS5):
		err = t.socks(conn)
	case t.to.url.Scheme == "https":
		conn, err = t.connect(conn)
	default:
		return t.askProxy(conn)
	}
	if err != nil {
		return nil, err
	}
	t.at = tunnelled
	return t.visit(conn)
}

// fetchDirectly goes to the site without a proxy.
func (t *trip) fetchDirectly(ctx context.Context) (*http.Response, error) {
	host, portText, err := net.SplitHostPort(t.to.address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	conn, err := t.open(ctx, host, int(port))
	if err != nil {
		return nil, err
	}
	t.at = tunnelled // there is nobody in between
	return t.visit(conn)
}

// open connects to what comes first, and has the connection end with ctx.
func (t *trip) open(ctx context.Context, host string, port int) (net.Conn, error) {
	addresses, err := t.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	t.at = located
	conn, err := t.dial(ctx, addresses, port)
	if err != nil {
		return nil, err
	}
	t.at = dialled
	t.conn = &measured{conn, maxRaw}
	t.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return t.conn, nil
}

// end closes what is open.
func (t *trip) end() {
	if t.conn != nil {
		t.stop()
		_ = t.conn.Close()
	}
}

// reach is how the trip fared at the dial.
func (t *trip) reach() reach {
	switch t.at {
	case nowhere:
		return unlocated
	case located:
		return undialled
	default:
		return accepted
	}
}

// proxyTLSError is TLS that a proxy did not bring about.
type proxyTLSError struct{ error }

func (e *proxyTLSError) Unwrap() error { return e.error }

// secure speaks TLS with the proxy at the other end of conn.
func (t *trip) secure(conn net.Conn) (net.Conn, error) {
	config := &tls.Config{ServerName: t.via.ServerName, MinVersion: tls.VersionTLS12}
	if t.via.Authorities != nil {
		config.RootCAs = t.via.Authorities.Pool
	}
	client := tls.Client(conn, config)
	if err := t.handshake(client); err != nil {
		return nil, &proxyTLSError{err}
	}
	return client, nil
}

// handshake ends with the connection's deadline, since a context would cost a goroutine,
// and when the peer has sent more than anybody needs for it.
func (t *trip) handshake(c *tls.Conn) error {
	rest := t.conn.left
	t.conn.left = min(rest, maxHandshake)
	defer func() { t.conn.left += rest - min(rest, maxHandshake) }()
	return c.Handshake() //nolint:noctx // see above
}

// socks has the proxy connect to the site.
func (t *trip) socks(conn net.Conn) error {
	request, err := socksRequest(t.to.address)
	if err != nil {
		return err
	}
	return socksHandshake(conn, request, t.via.Proof)
}

// connectError is what a proxy answered that did not do what it was asked for.
type connectError struct {
	code  int
	text  string // what the proxy calls it, where that is known and not the standard's
	plain bool   // it was not asked to CONNECT
}

func (e *connectError) Error() string {
	words := "the proxy answered CONNECT with "
	if e.plain {
		words = "the proxy answered "
	}
	words += statusLine(e.code)
	if e.text != "" {
		words += " (" + e.text + ")"
	}
	return words
}

// connect has the proxy open a tunnel to the site, and returns it.
func (t *trip) connect(conn net.Conn) (net.Conn, error) {
	request := &http.Request{
		Method: http.MethodConnect, URL: &url.URL{Opaque: t.to.address}, Host: t.to.address,
		Header: http.Header{"User-Agent": {userAgent}},
	}
	prove(request, t.via.Proof)
	if err := send(conn, request, (*http.Request).Write); err != nil {
		return nil, err
	}
	in := &meter{from: conn}
	reader := bufio.NewReaderSize(in, headerBuffer)
	res, err := in.answer(reader, request) //nolint:bodyclose // it ends with the connection
	if err != nil {
		return nil, err
	}
	if res.StatusCode/100 != 2 {
		return nil, &connectError{code: res.StatusCode, text: proxyText(res)}
	}
	if reader.Buffered() == 0 {
		return conn, nil
	}
	early, _ := reader.Peek(reader.Buffered()) // which is the site's by now
	return &readAhead{conn, io.MultiReader(bytes.NewReader(early), conn)}, nil
}

// visit asks the site at the other end of conn.
func (t *trip) visit(conn net.Conn) (*http.Response, error) {
	if t.to.url.Scheme == "https" {
		client := tls.Client(conn, &tls.Config{
			ServerName: t.to.name, RootCAs: t.roots, MinVersion: tls.VersionTLS12,
			InsecureSkipVerify: t.insecure, //nolint:gosec // as the Proxy's healthCheck says
		})
		if err := t.handshake(client); err != nil {
			return nil, err
		}
		conn = client
	}
	t.at = secured
	return t.ask(conn, (*http.Request).Write)
}

// ask sends the request and reads the header of its answer.
func (t *trip) ask(conn net.Conn, write func(*http.Request, io.Writer) error) (*http.Response, error) {
	request := &http.Request{
		Method: http.MethodGet, URL: t.to.url, Host: t.to.url.Host, Close: true,
		Header: http.Header{"User-Agent": {userAgent}},
	}
	if user := t.to.url.User; user != nil {
		password, _ := user.Password()
		request.SetBasicAuth(user.Username(), password)
	}
	if t.at < tunnelled {
		prove(request, t.via.Proof)
	}
	if err := send(conn, request, write); err != nil {
		return nil, err
	}
	t.in = &meter{from: conn}
	return t.in.answer(bufio.NewReaderSize(t.in, headerBuffer), request)
}

// send writes a request at once. What net/http would buffer it in is larger than all
// else that a probe takes.
func send(conn io.Writer, request *http.Request, write func(*http.Request, io.Writer) error) error {
	var words bytes.Buffer
	if err := write(request, &words); err != nil {
		return err
	}
	_, err := conn.Write(words.Bytes())
	return err
}

// drain reads the body, as far as it goes.
func (t *trip) drain(res *http.Response) error {
	t.at = secured
	t.in.left = maxBody
	if _, err := io.Copy(io.Discard, res.Body); !errors.Is(err, errTooMuch) {
		return err
	}
	return nil
}

// askProxy asks the proxy for the site's answer, or for why there is none.
func (t *trip) askProxy(conn net.Conn) (*http.Response, error) {
	res, err := t.ask(conn, (*http.Request).WriteProxy)
	if err == nil && res.StatusCode == http.StatusProxyAuthRequired {
		err = &connectError{code: res.StatusCode, plain: true}
	}
	return res, err
}

// prove shows the proxy who asks.
func prove(request *http.Request, proof *fleet.Credentials) {
	if proof != nil {
		words := base64.StdEncoding.EncodeToString([]byte(proof.Username + ":" + proof.Password))
		request.Header.Set("Proxy-Authorization", "Basic "+words)
	}
}

// readAhead is a connection of which something has been read already.
type readAhead struct {
	net.Conn
	all io.Reader
}

func (r *readAhead) Read(p []byte) (int, error) { return r.all.Read(p) }
