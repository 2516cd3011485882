package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// runServer is a pod's process that tells each client who it is and what it was given, and says
// goodbye when it is told to end.
func runServer(ctx context.Context) int {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(os.Getenv("PROXY_BIND_ADDRESS"), os.Getenv("PROXY_PORT")))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	greeting := strings.Join(append([]string{os.Getenv("HOSTNAME"), os.Getenv("PROXY_PROTOCOL")}, givenFiles()...), " ")
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return 0
		}
		clients.Go(func() {
			defer conn.Close()
			fmt.Fprintln(conn, greeting)
			<-ctx.Done()
			fmt.Fprintln(conn, "goodbye")
		})
	}
}

// givenFiles are the files of the pod's volume, as NAME=CONTENT.
func givenFiles() []string {
	files := map[string]string{}
	dir := os.Getenv("PROXY_FILES_DIR")
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		content, _ := os.ReadFile(filepath.Join(dir, entry.Name()))
		files[entry.Name()] = string(content)
	}
	var given []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		given = append(given, name+"="+files[name])
	}
	return given
}

// serverPod is proxyPod with runServer for a process.
func serverPod(name string, modify ...func(*corev1.Pod)) *corev1.Pod {
	return proxyPod(name, append([]func(*corev1.Pod){env(corev1.EnvVar{Name: asVariable, Value: "server"})}, modify...)...)
}

// client is a connection to a server.
type client struct {
	net.Conn
	heard *bufio.Reader
}

// call connects to a server until that tells who it is, and returns what it tells.
func call(t *testing.T, host string, port int) (client, string) {
	t.Helper()
	var conn client
	var greeting string
	var last error
	untilNot(t, fmt.Sprintf("nobody answers at %s:%d", host, port), func() bool {
		conn, last = dial(host, port)
		if last == nil {
			greeting, last = conn.heard.ReadString('\n')
		}
		return last != nil
	})
	t.Cleanup(func() { conn.Close() })
	return conn, strings.TrimSpace(greeting)
}

func dial(host string, port int) (client, error) {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), patience)
	if err != nil {
		return client{}, err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	return client{conn, bufio.NewReader(conn)}, nil
}

// rest is all that a server still says.
func (c client) rest(t *testing.T) string {
	t.Helper()
	content, err := io.ReadAll(c.heard)
	if err != nil {
		t.Errorf("read to the end: %v", err)
	}
	return string(content)
}

// untilRefused waits until nobody listens.
func untilRefused(t *testing.T, host string, port int) {
	t.Helper()
	untilNot(t, fmt.Sprintf("somebody listens at %s:%d", host, port), func() bool {
		conn, err := dial(host, port)
		if err == nil {
			conn.Close()
		}
		return !errors.Is(err, syscall.ECONNREFUSED)
	})
}
