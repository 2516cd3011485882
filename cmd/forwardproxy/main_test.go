package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
)

// asMain makes this test binary be the real command, so that a process can be signalled
// without building another binary.
const asMain = "FORWARDPROXY_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// Whoever sets a wrong value reads on one line which and what is right.
func TestBadEnvironmentExitsTwo(t *testing.T) {
	certificate, key := pair(t)
	_, another := pair(t)
	long := strings.Repeat("hush", 64)
	env := func(protocol string, pairs ...string) map[string]string {
		return map[string]string{"PROXY_PORT": "1", "PROXY_PROTOCOL": protocol, "PROXY_FILES_DIR": files(t, pairs...)}
	}
	ended, end := context.WithCancel(t.Context())
	end() // so that what is taken by mistake serves for a moment only
	for _, c := range []struct {
		name string
		env  map[string]string
		want []string
	}{
		{"no port", map[string]string{}, []string{"PROXY_PORT is required"}},
		{"port zero", map[string]string{"PROXY_PORT": "0"}, []string{`PROXY_PORT is "0"`}},
		{"port too large", map[string]string{"PROXY_PORT": "65536"}, []string{`PROXY_PORT is "65536"`}},
		{"no such protocol", map[string]string{"PROXY_PORT": "1", "PROXY_PROTOCOL": "socks4"}, []string{`PROXY_PROTOCOL is "socks4": must be http, https or socks5`}},
		{"bad address", map[string]string{"PROXY_PORT": "1", "PROXY_BIND_ADDRESS": "localhost"}, []string{"must be an IP address"}},
		{"no such directory", map[string]string{"PROXY_PORT": "1", "PROXY_FILES_DIR": "/none"}, []string{`PROXY_FILES_DIR is "/none"`}},
		{"username alone", map[string]string{"PROXY_PORT": "1", "PROXY_FILES_DIR": files(t, "username", "crawler")}, []string{"has a file username and no file password"}},
		{"password alone", map[string]string{"PROXY_PORT": "1", "PROXY_FILES_DIR": files(t, "password", "hush")}, []string{"has a file password and no file username"}},
		{"empty password", map[string]string{"PROXY_PORT": "1", "PROXY_FILES_DIR": files(t, "username", "crawler", "password", "")}, []string{"is empty"}},
		{"colon in username", env("http", "username", "crawl:er", "password", "hush"), []string{"credentials in", "colon", "over http"}},
		{"colon in username, https", env("https", "username", "crawl:er", "password", "hush", "tls.crt", certificate, "tls.key", key), []string{"credentials in", "colon", "over https"}},
		{"long username", env("socks5", "username", long, "password", "hush"), []string{"credentials in", "username has 256 bytes: socks5 can send at most 255"}},
		{"long password", env("socks5", "username", "crawler", "password", long), []string{"credentials in", "password has 256 bytes: socks5 can send at most 255"}},
		{"no certificate", env("https"), []string{"https needs a certificate", "tls.crt and tls.key", "neither is there"}},
		{"no key", env("https", "tls.crt", certificate), []string{"tls.key is missing"}},
		{"certificate of hush", env("https", "tls.crt", "hush", "tls.key", key), []string{"tls.crt has no certificate in PEM"}},
		{"another's key", env("https", "tls.crt", certificate, "tls.key", another), []string{"the private key is not the certificate's"}},
		{"all of the files", env("https", "username", "crawler", "tls.crt", certificate), []string{"no file password", "tls.key is missing"}},
		{"everything", map[string]string{"PROXY_PORT": "x", "PROXY_PROTOCOL": "ftp", "PROXY_BIND_ADDRESS": "y", "PROXY_FILES_DIR": "z"}, []string{"PROXY_PORT", "PROXY_PROTOCOL", "PROXY_BIND_ADDRESS", "PROXY_FILES_DIR"}},
		{"everything with https", map[string]string{"PROXY_PORT": "x", "PROXY_PROTOCOL": "https", "PROXY_BIND_ADDRESS": "y", "PROXY_FILES_DIR": files(t, "password", "hush")}, []string{"PROXY_PORT", "PROXY_BIND_ADDRESS", "no file username", "neither is there"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(ended, func(name string) string { return c.env[name] }, &stderr); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if lines := strings.Count(stderr.String(), "\n"); lines != 1 {
				t.Errorf("%d lines on stderr, want 1: %s", lines, stderr.String())
			}
			for _, want := range c.want {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("stderr is %q, want %q in it", stderr.String(), want)
				}
			}
			if strings.Contains(stderr.String(), "hush") {
				t.Errorf("stderr tells the password: %s", stderr.String())
			}
		})
	}
}

// A pod whose Proxy has credentials must not serve whoever finds it, one whose Proxy has none
// or only cloud-init must serve as before.
func TestFilesOfCredentialsCloseTheProxy(t *testing.T) {
	for _, c := range []struct {
		name, dir string
		status    int
	}{
		{"credentials", files(t, "username", "crawler", "password", "hush", "user-data", "#cloud-config"), http.StatusProxyAuthRequired},
		{"cloud-init alone", files(t, "user-data", "#cloud-config"), http.StatusOK},
		{"nothing", t.TempDir(), http.StatusOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, address, _ := startProcess(t, "PROXY_FILES_DIR="+c.dir)
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", listen(t, "127.0.0.1:0").Addr())
			resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != c.status {
				t.Errorf("got %s, want %d", resp.Status, c.status)
			}
		})
	}
}

// A pod serves what its Proxy says, with the certificate of its files, and takes no notice of
// one that its protocol has no use for.
func TestEachProtocolIsServed(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page") }))
	t.Cleanup(site.Close)
	certificate, key := pair(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(certificate))
	for _, c := range []struct{ protocol, username, certificate, key string }{
		{"http", "crawler", "of no use", ""},
		{"https", "crawler", certificate, key},
		{"socks5", "craw:ler", certificate, "of no use"},
	} {
		t.Run(c.protocol, func(t *testing.T) {
			dir := files(t, "username", c.username, "password", "hush", "tls.crt", c.certificate, "tls.key", c.key)
			cmd, address, logs := startProcess(t, "PROXY_PROTOCOL="+c.protocol, "PROXY_FILES_DIR="+dir)
			through := &url.URL{Scheme: c.protocol, Host: address, User: url.UserPassword(c.username, "hush")}
			transport := &http.Transport{Proxy: http.ProxyURL(through), TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName}, DisableKeepAlives: true}
			resp, err := (&http.Client{Transport: transport}).Get(site.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if page, err := io.ReadAll(resp.Body); err != nil || string(page) != "the page" {
				t.Errorf("got %q, %v", page, err)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			waitForLine(t, logs, "msg=stopped")
			if err := cmd.Wait(); err != nil {
				t.Errorf("exit: %v", err)
			}
		})
	}
}

const serverName = "proxy.example"

// pair is a new key with a certificate for serverName, in PEM.
func pair(t *testing.T) (certificate, key string) {
	t.Helper()
	ca, err := certs.NewAuthority("forwardproxy")
	if err != nil {
		t.Fatal(err)
	}
	issued, err := ca.Issue(serverName)
	if err != nil {
		t.Fatal(err)
	}
	return string(issued.Certificate), string(issued.Key)
}

// files is a directory with these files, given as names and contents in turn.
func files(t *testing.T, pairs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(pairs); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, pairs[i]), []byte(pairs[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A port that is taken is an error that the node shows, not a silent hang.
func TestTakenPortExitsOne(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	env := map[string]string{"PROXY_PORT": port, "PROXY_BIND_ADDRESS": host}
	var stderr bytes.Buffer
	if code := run(context.Background(), func(name string) string { return env[name] }, &stderr); code != exitFailed {
		t.Errorf("exit code %d, want %d: %s", code, exitFailed, stderr.String())
	}
}

// A pod that is deleted lets a crawler finish its page, then ends cleanly.
func TestSIGTERMDrainsAnOpenTunnel(t *testing.T) {
	cmd, address, logs := startProcess(t)
	site := listen(t, "127.0.0.1:0")
	var dialer net.Dialer
	near, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	fmt.Fprintf(near, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", site.Addr())
	far, err := site.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	resp, err := http.ReadResponse(bufio.NewReader(near), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT: %s %v", resp.Status, err)
	}

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitForLine(t, logs, "msg=draining")
	fmt.Fprint(near, "the rest of the page")
	_ = near.Close()
	got, err := io.ReadAll(far)
	if err != nil || string(got) != "the rest of the page" {
		t.Errorf("through the draining proxy came %q, %v", got, err)
	}
	_ = far.Close()
	if line := waitForLine(t, logs, "msg=stopped"); !strings.Contains(line, "cut=0") {
		t.Errorf("last line is %q, want no tunnel cut", line)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
}

// startProcess runs the command on a free port, with more environment if given, and returns
// once it listens.
func startProcess(t *testing.T, env ...string) (*exec.Cmd, string, *bufio.Reader) {
	t.Helper()
	listener := listen(t, "127.8.8.8:0")
	address := listener.Addr().String()
	host, port, _ := net.SplitHostPort(address)
	_ = listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append([]string{asMain + "=1", "PROXY_PORT=" + port, "PROXY_BIND_ADDRESS=" + host}, env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	logs := bufio.NewReader(stderr)
	waitForLine(t, logs, "msg=listening")
	return cmd, address, logs
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func waitForLine(t *testing.T, logs *bufio.Reader, want string) string {
	t.Helper()
	for {
		line, err := logs.ReadString('\n')
		if err != nil {
			t.Fatalf("process ended before it logged %q: %v", want, err)
		}
		if strings.Contains(line, want) {
			return line
		}
	}
}
