package controlplane

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// StartForTest starts n control planes side by side for a test, named cluster-0 and so on, and
// stops them when the test ends. The test fails at once when one does not start.
func StartForTest(t testing.TB, n int) []*ControlPlane {
	t.Helper()
	planes, errs := make([]*ControlPlane, n), make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() {
			// A first build's progress is of use only while it lasts; t.Log would keep it.
			planes[i], errs[i] = Start(t.Context(), Options{Name: fmt.Sprintf("cluster-%d", i), Progress: os.Stderr})
		})
	}
	starting.Wait()
	t.Cleanup(func() { stopAll(t, planes) })
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return planes
}

func stopAll(t testing.TB, planes []*ControlPlane) {
	var stopping sync.WaitGroup
	for _, plane := range planes {
		if plane == nil {
			continue
		}
		stopping.Go(func() {
			if err := plane.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	stopping.Wait()
}
