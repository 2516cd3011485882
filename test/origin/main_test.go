package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// What the ready file says is enough to talk to both origins, and the process ends when asked.
func TestReadyFileLeadsToBothOrigins(t *testing.T) {
	dir := t.TempDir()
	readyFile, caFile := filepath.Join(dir, "ready.json"), filepath.Join(dir, "ca.crt")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stderr notifyingBuffer
	stderr.wrote = make(chan struct{}, 1)
	exit := make(chan int, 1)
	go func() { exit <- run(ctx, []string{"--ca-out", caFile, "--ready-file", readyFile}, &stderr) }()
	<-stderr.wrote // the last thing before it waits

	content, err := os.ReadFile(readyFile)
	if err != nil {
		t.Fatal(err)
	}
	var got ready
	if err := json.Unmarshal(content, &got); err != nil {
		t.Fatalf("%v in %s", err, content)
	}
	ca, err := os.ReadFile(got.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	for _, url := range []string{got.URL, got.PlainURL} {
		reply, err := origin.Fetch(t.Context(), client, url+"/x")
		if err != nil {
			t.Fatal(err)
		}
		scheme, host, _ := strings.Cut(url, "://")
		want := origin.Reply{RemoteAddr: "127.0.0.1", Host: host, Path: "/x", TLS: scheme == "https"}
		if reply != want {
			t.Errorf("%s answered %+v, want %+v", url, reply, want)
		}
	}

	stop()
	if code := <-exit; code != 0 {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

func TestBadFlagExitsTwo(t *testing.T) {
	for _, args := range [][]string{{"--nonsense"}, {"extra"}} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("run(%q) = %d with %q on stderr, want 2 and a reason", args, code, stderr.String())
		}
	}
}

// notifyingBuffer tells of its first write.
type notifyingBuffer struct {
	bytes.Buffer
	wrote chan struct{}
}

func (b *notifyingBuffer) Write(p []byte) (int, error) {
	n, err := b.Buffer.Write(p)
	select {
	case b.wrote <- struct{}{}:
	default:
	}
	return n, err
}
