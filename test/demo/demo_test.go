package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// watcherEnv makes the test binary play a demo that watches its parent.
const watcherEnv = "DEMO_TEST_WATCH_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(watcherEnv) != "" {
		parent := os.Getppid()
		fmt.Println("watching")
		ctx, cancel := context.WithCancelCause(context.Background())
		watchParent(ctx, parent, cancel)
		fmt.Println(context.Cause(ctx))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestEndOfTheParentIsNoticed(t *testing.T) {
	// A shell between us and the demo, as make is.
	parent := exec.CommandContext(t.Context(), "/bin/sh", "-c", `"$0" & wait`, os.Args[0])
	parent.Env = append(os.Environ(), watcherEnv+"=yes")
	reader, writer := io.Pipe()
	parent.Stdout = writer
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	// Wait returns when the grandchild has closed its output too.
	ended := make(chan struct{})
	go func() {
		_ = parent.Wait()
		_ = writer.Close()
		close(ended)
	}()
	lines := bufio.NewScanner(reader)
	if !lines.Scan() || lines.Text() != "watching" {
		t.Fatalf("the demo says %q", lines.Text())
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || lines.Text() != errParentEnded.Error() {
		t.Errorf("after its parent's end the demo says %q", lines.Text())
	}
	<-ended
}

func TestEnvFileReadsTheSameInBothWays(t *testing.T) {
	dir := t.TempDir()
	command := filepath.Join(dir, "hub-command")
	if err := os.WriteFile(command, []byte("#!/bin/sh\necho started\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "env")
	content := formatEnv([]variable{
		{"API_URL", "http://127.0.0.1:1"}, {"HUB_COMMAND", command}, {variableName("node-eu-west"), "17"},
	})
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	sourced, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `. "$0"; echo "$API_URL $PID_NODE_EU_WEST $(sh -c "$HUB_COMMAND")"`, file).CombinedOutput()
	if want := "http://127.0.0.1:1 17 started\n"; err != nil || string(sourced) != want {
		t.Errorf("sourced: %q, %v; want %q", sourced, err, want)
	}
	for line := range strings.Lines(string(content)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name == "HUB_COMMAND" {
			if split, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", value).CombinedOutput(); err != nil || string(split) != "started\n" {
				t.Errorf("split: %q, %v", split, err)
			}
		}
	}
}

func TestEnvValuesSurviveTheShell(t *testing.T) {
	for _, value := range []string{"", "plain/path.d:1@x,y=%+", "a b", `it's "$HOME" \n`, "$(echo x)`y`;z&", "~"} {
		file := filepath.Join(t.TempDir(), "env")
		if err := os.WriteFile(file, formatEnv([]variable{{"V", value}}), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `. "$0"; printf %s "$V"`, file).CombinedOutput()
		if err != nil || string(got) != value {
			t.Errorf("%q comes back as %q, %v", value, got, err)
		}
	}
}

func TestDirectoryOfSomethingElseIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "thesis.tex")
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(dir); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("error is %v, want one that names the file", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
}

func TestTwoDemosDoNotShareADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "demo")
	first, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openState(dir); err == nil || !strings.Contains(err.Error(), "another demo") {
		t.Errorf("the second one gets %v", err)
	}
	if err := first.close(false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
	second, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.close(false); err != nil {
		t.Error(err)
	}
}

func TestOnlyBinariesAndLogsOfAFailureAreLeft(t *testing.T) {
	for _, failed := range []bool{false, true} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		// What a demo that was killed has left.
		if err := os.WriteFile(filepath.Join(dir, "env"), []byte("PID_HUB=1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := openState(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(s.path("env")); !os.IsNotExist(err) {
			t.Errorf("the old env is still there: %v", err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("mode is %v, %v", info.Mode(), err)
		}
		if _, err := s.write([]byte("secret"), 0o600, "run", "token"); err != nil {
			t.Fatal(err)
		}
		if err := s.close(failed); err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if failed {
			want = 2
		}
		if len(left) != want {
			t.Errorf("failed %v: left are %v", failed, left)
		}
	}
}

func TestWaitingTellsWhatFor(t *testing.T) {
	key := func(name string) proxyKey { return proxyKey{"eu-west", "crawl", name} }
	expected := []proxyKey{key("a"), key("b"), key("c"), key("d")}
	listed := []proxy{
		{proxyKey: key("a"), Phase: "Ready", Healthy: true},
		{proxyKey: key("b"), Phase: "Probing"},
		{proxyKey: key("c"), Phase: "Ready"}, // lost a moment ago
	}
	const want = "1 of 4 Ready, waiting for eu-west/crawl/b (Probing), eu-west/crawl/c (Ready, but not healthy), eu-west/crawl/d (not in the fleet yet)"
	if got := pendingProxies(expected, listed); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := pendingProxies(expected[:1], listed); got != "" {
		t.Errorf("all Ready reads as %q", got)
	}
	spoke := func(name string, status, reason string) unstructured.Unstructured {
		ready := map[string]any{"type": "Ready", "status": status, "reason": reason}
		return unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": name},
			"status":   map[string]any{"conditions": []any{ready}},
		}}
	}
	spokes := []unstructured.Unstructured{spoke("eu-west", "True", "Connected"), spoke("us-east", "False", "Forbidden")}
	if got := pendingSpokes([]string{"eu-west", "us-east", "third"}, spokes); got != "waiting for us-east (Forbidden), third (not known yet)" {
		t.Errorf("spokes: %q", got)
	}
}
