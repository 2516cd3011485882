package app_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// what a user does while the hub is down.
type meanwhile string

const (
	nothing meanwhile = "nothing"
	edits   meanwhile = "an edit"
	deletes meanwhile = "a deletion"
)

// crashes lets the hub die at every write of a Proxy's life, once before and
// once after the API server has it, and start again. In the end there must be
// one instance, which runs the present spec, and after a deletion nothing.
func crashes(t *testing.T, l *lives) {
	l.secret(l.eu, "crash", map[string]string{"user-data": "x"})
	deaths := 0
	for n := 1; ; n++ {
		reached := false
		for i, after := range []bool{false, true} {
			// What happens meanwhile takes turns, so that each phase sees each.
			c := &crash{lives: l, n: n, after: after, meanwhile: []meanwhile{nothing, edits, deletes}[(n+i)%3]}
			if c.run() {
				reached = true
				deaths++
			}
		}
		if !reached {
			t.Logf("the hub died %d times, at each of %d writes of a life", deaths, n-1)
			if n < 15 {
				t.Errorf("a life of %d writes is not a whole one", n-1)
			}
			return
		}
	}
}

// crash is one life with one death of the hub in it.
type crash struct {
	*lives
	n         int
	after     bool
	meanwhile meanwhile

	p       *v1alpha1.Proxy
	dead    <-chan struct{}
	edited  bool // the spec asks for the second image
	deleted bool
}

var errDied = errors.New("the hub died")

// run lives the life: apply, edit, delete. It says whether the hub died in it.
func (c *crash) run() (died bool) {
	c.p = c.proxy(fmt.Sprintf("crash-%02d-%v", c.n, c.after), initFrom("crash"), func(p *v1alpha1.Proxy) { pod(p).Image = "one" })
	c.dead = c.gate.arm(c.n, c.after)
	c.create(c.eu, c.p)
	for _, stage := range []struct{ begin func() }{{func() {}}, {c.edit}, {c.delete}} {
		stage.begin()
		err := c.settle()
		if err == nil && !c.gate.fired() {
			continue
		}
		if err != nil && !errors.Is(err, errDied) {
			c.t.Fatal(err)
		}
		<-c.dead
		died = true
		began := time.Now()
		c.stopHub()
		switch c.meanwhile {
		case edits:
			c.edit()
		case deletes:
			c.delete()
		}
		c.dead = nil
		c.gate.shut(false)
		c.startHub()
		if err := c.settle(); err != nil {
			c.t.Fatal(err)
		}
		c.t.Logf("write %d, after it: %v, meanwhile %s: settled after %s", c.n, c.after, c.meanwhile, time.Since(began).Round(time.Millisecond))
		// The rest of this life has been lived by others.
		c.delete()
		if err := c.settle(); err != nil {
			c.t.Fatal(err)
		}
		return died
	}
	return died
}

func (c *crash) edit() {
	if c.edited || c.deleted {
		return
	}
	c.edited = true
	c.change(c.eu, c.p, func(p *v1alpha1.Proxy) { pod(p).Image = "two" })
}

func (c *crash) delete() {
	if c.deleted {
		return
	}
	c.deleted = true
	c.remove(c.eu, c.p)
}

// settle waits until the cluster holds what it should, or the hub has died.
func (c *crash) settle() error {
	c.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		wrong := c.wrong()
		if wrong == nil {
			return nil
		}
		select {
		case <-c.dead:
			return errDied
		case <-deadline:
			return fmt.Errorf("write %d, after it: %v, meanwhile %s: not settled: %w", c.n, c.after, c.meanwhile, wrong)
		case <-tick.C:
		}
	}
}

// wrong says what the cluster should not hold, or what it should.
func (c *crash) wrong() error {
	err := c.get(c.eu, c.p)
	pods, secrets, listErr := c.instancesOf(c.eu, c.p)
	switch {
	case listErr != nil:
		return listErr
	case c.deleted && apierrors.IsNotFound(err) && len(pods)+len(secrets) > 0:
		c.t.Fatalf("write %d: the Proxy is gone, and %d pods and %d Secrets are left", c.n, len(pods), len(secrets))
	case c.deleted && apierrors.IsNotFound(err):
		return nil
	case c.deleted || err != nil:
		return fmt.Errorf("the Proxy is there, or cannot be read (%w)", err)
	case len(pods) > 1:
		c.t.Fatalf("write %d: %d instances at once", c.n, len(pods))
	}
	image := "one"
	if c.edited {
		image = "two"
	}
	if len(pods) != 1 || len(secrets) != 1 || pods[0].DeletionTimestamp != nil || pods[0].Spec.Containers[0].Image != image {
		return fmt.Errorf("%d pods, %d Secrets, and not the one that runs %s", len(pods), len(secrets), image)
	}
	if c.p.Status.Phase != v1alpha1.PhaseReady || !strings.Contains(c.p.Status.ProviderID, string(pods[0].UID)) ||
		pods[0].Labels[v1alpha1.LabelSpecHash] != c.p.Annotations[v1alpha1.AnnotationSpecHash] {
		return fmt.Errorf("phase %s, providerID %s", c.p.Status.Phase, c.p.Status.ProviderID)
	}
	return nil
}
