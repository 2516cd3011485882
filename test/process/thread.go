package process

import (
	"runtime"
	"sync"
)

// Thread is an OS thread of its own to fork from. What is forked there with a parent-death
// signal lives until it ends by itself, the program ends, or the Thread does.
type Thread struct {
	work chan func()
	end  sync.Once
}

// NewThread starts a thread.
func NewThread() *Thread {
	t := &Thread{work: make(chan func())}
	go func() {
		// Never unlocked, so that the runtime neither runs anything else on this thread nor
		// keeps it when the goroutine returns.
		runtime.LockOSThread()
		for f := range t.work {
			f()
		}
	}()
	return t
}

// Do runs f on the thread and waits for it. One f runs at a time.
func (t *Thread) Do(f func()) {
	done := make(chan struct{})
	t.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// End ends the thread, and with it every child that was forked there and still lives. Do must
// not be called any more; End may be.
func (t *Thread) End() {
	t.end.Do(func() { close(t.work) })
}

// forker is the thread that Start forks from; it lives as long as the program.
var forker = sync.OnceValue(NewThread)
