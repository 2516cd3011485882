package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strconv"

	"github.com/elazarl/goproxy"
)

// newHTTPServer is the front for HTTP and HTTPS: of TLS it knows nothing, see tlsListener.
func newHTTPServer(base context.Context, options Options) *http.Server {
	return &http.Server{
		Handler:           gate(guard(options.Credentials, newForwarder(options))),
		ReadHeaderTimeout: options.HeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(options.Logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateActive { // a request's header has been read
				c.(interface{ begin() }).begin()
			}
		},
	}
}

// newForwarder is goproxy set up to forward and nothing else.
func newForwarder(options Options) *goproxy.ProxyHttpServer {
	dial := newDialer(options)
	p := goproxy.NewProxyHttpServer()
	// goproxy warns here of every connection that a peer cuts short; failures that matter
	// are logged below.
	p.Logger = log.New(io.Discard, "", 0)
	// The defaults take an upstream proxy from the environment and do not verify TLS.
	p.ConnectDial = nil
	p.Tr = &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err // not c, which is nil and yet would be a net.Conn
			}
			return c, nil
		},
		IdleConnTimeout: idleTimeout,
		// Bodies pass as the client asked for them.
		DisableCompression: true,
	}
	p.KeepAcceptEncoding = true
	p.ConnectionErrHandler = func(client io.Writer, ctx *goproxy.ProxyCtx, err error) {
		status, reason := unreachable(options.Logger, ctx.Req, err)
		fmt.Fprintf(client, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\n"+
			"Content-Length: %d\r\nConnection: close\r\n\r\n%s", status, http.StatusText(status), len(reason), reason)
	}
	p.OnResponse().DoFunc(func(resp *http.Response, ctx *goproxy.ProxyCtx) *http.Response {
		if resp != nil || ctx.Error == nil {
			return resp
		}
		status, reason := unreachable(options.Logger, ctx.Req, ctx.Error)
		return goproxy.NewResponse(ctx.Req, "text/plain; charset=utf-8", status, reason)
	})
	return p
}

// unreachable logs and words the failure to reach a request's target. Only the host is told:
// paths and queries may hold a client's secrets.
func unreachable(log *slog.Logger, r *http.Request, err error) (status int, reason string) {
	status = http.StatusBadGateway
	if timedOut(err) {
		status = http.StatusGatewayTimeout
	}
	err = cause(err)
	if !errors.Is(err, context.Canceled) {
		log.Warn("target unreachable", "method", r.Method, "target", r.URL.Host, "status", status, "error", err)
	}
	return status, fmt.Sprintf("The proxy cannot reach %s: %v\n", r.URL.Host, err)
}

// gate refuses what a forward proxy cannot serve, saying what to send instead.
func gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		problem := ""
		switch {
		case r.Method == http.MethodConnect:
			if _, port, err := net.SplitHostPort(r.URL.Host); err != nil || !validPort(port) {
				problem = "CONNECT needs a target of the form host:port."
			}
		case !r.URL.IsAbs() || r.URL.Host == "":
			problem = "This is a forward proxy: send CONNECT host:port, or a request for an absolute http:// URL."
		case r.URL.Scheme != "http":
			problem = "Only http:// URLs can be requested in absolute form: use CONNECT for " + r.URL.Scheme + "."
		}
		if problem != "" {
			http.Error(w, problem, http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// looksLikeHTTP tells by the first bytes that a client takes this port for one of plain
// HTTP: neither TLS nor SOCKS begins with two capital letters.
func looksLikeHTTP(start []byte) bool {
	return len(start) >= 2 && isCapital(start[0]) && isCapital(start[1])
}

func isCapital(b byte) bool { return 'A' <= b && b <= 'Z' }

// notHTTP is the answer to such a client, which would otherwise only see its connection end.
func notHTTP(sentence string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"+
		"Content-Length: %d\r\nConnection: close\r\n\r\n%s\n", len(sentence)+1, sentence)
}
