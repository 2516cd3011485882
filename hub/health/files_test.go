package health

import (
	"context"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// outside runs the rest of a test in a process of its own, and says whether this is it.
func outside(t *testing.T) bool {
	t.Helper()
	const inside = "HEALTH_TEST_INSIDE"
	if os.Getenv(inside) != "" {
		return true
	}
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	self.Env = append(os.Environ(), inside+"=1")
	if output, err := self.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	return false
}

// A hub that can open no more files finds no name and dials nobody. No proxy is to be
// judged for that, whichever of it fails first and in whatever words.
func TestAHubWithoutFilesJudgesNoProxy(t *testing.T) {
	if !outside(t) {
		return
	}
	few := syscall.Rlimit{Cur: 64, Max: 64}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for {
		file, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		files = append(files, file)
	}
	for _, host := range []string{"proxy.test", "127.0.0.1"} {
		for _, resolver := range []*net.Resolver{{PreferGo: true}, {PreferGo: false}} {
			p := prober{dialer: dialer{resolver: resolver, allowLocal: true}}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if r := p.probe(ctx, through{host: host, port: 1}, aim{url: "https://site.test/"}); !r.void {
				t.Errorf("%s, Go's resolver preferred %v: %+v", host, resolver.PreferGo, r)
			}
			cancel()
		}
	}
	for _, file := range files {
		_ = file.Close()
	}
}
