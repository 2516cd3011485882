package health

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
)

// memory is this process's, in MB of 1,000,000 bytes.
type memory struct {
	managed  float64 // heap and stacks in use, garbage that is not collected yet included
	resident float64 // as the kernel counts it
}

func (m memory) orMore(o memory) memory {
	return memory{max(m.managed, o.managed), max(m.resident, o.resident)}
}

func memoryNow(b *testing.B) memory {
	b.Helper()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return memory{float64(stats.HeapInuse+stats.StackInuse) / 1e6, residentNow(b)}
}

// settledMemory is what is left when nothing is that could be given back.
func settledMemory(b *testing.B) memory {
	b.Helper()
	debug.FreeOSMemory()
	return memoryNow(b)
}

func residentNow(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, line, _ := bytes.Cut(status, []byte("\nVmRSS:"))
	var kibibytes float64
	if _, err := fmt.Sscanf(string(line), "%f kB", &kibibytes); err != nil {
		b.Fatalf("no VmRSS in /proc/self/status: %v", err)
	}
	return kibibytes * 1024 / 1e6
}

// raiseFileLimit lets this process open as many files as it may, and has the benchmark
// fail where that is too few: probes that the hub has no files for have no result.
func raiseFileLimit(b *testing.B) {
	b.Helper()
	const needed = 5000 // more than an engine has probes under way by default
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		b.Fatal(os.NewSyscallError("getrlimit", err))
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		b.Fatal(os.NewSyscallError("setrlimit", err))
	}
	if limit.Cur < needed {
		b.Fatalf("this process may open %d files: raise the limit to %d", limit.Cur, needed)
	}
}
