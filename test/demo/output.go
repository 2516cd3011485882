package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// output writes the lines that people follow. Steps that work side by side share it.
type output struct {
	mu    sync.Mutex
	to    io.Writer
	began time.Time
}

func newOutput(to io.Writer) *output { return &output{to: to, began: time.Now()} }

// line writes a line with the seconds since the start before it.
func (o *output) line(format string, args ...any) {
	o.plain("%6.1fs  %s\n", time.Since(o.began).Seconds(), fmt.Sprintf(format, args...))
}

// plain writes text as it is.
func (o *output) plain(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Nobody reading any more is no reason to stop: a reader that has gone is a parent that
	// has gone, and that is noticed elsewhere.
	_, _ = fmt.Fprintf(o.to, format, args...)
}

// lines is a writer that turns each line written to it into a line of the output.
func (o *output) lines() io.Writer { return &lineWriter{output: o} }

type lineWriter struct {
	mu      sync.Mutex
	output  *output
	pending []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending, p...)
	for {
		line, rest, found := bytes.Cut(w.pending, []byte("\n"))
		if !found {
			return len(p), nil
		}
		w.output.line("  %s", line)
		w.pending = rest
	}
}
