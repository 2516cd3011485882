package process

import (
	"context"
	"testing"
	"time"
)

// StartForTest starts a program that ends with the test, and returns once it is of use.
func StartForTest(tb testing.TB, spec Spec, ready func(context.Context) error) *Process {
	tb.Helper()
	p, err := Start(spec)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Stop(); err != nil {
			tb.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	if err := p.WaitReady(ctx, ready); err != nil {
		tb.Fatal(err)
	}
	return p
}
