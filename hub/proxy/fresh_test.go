package proxy

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func TestAPassIsNotMadeFromWhatWasThereBeforeTheHubsOwnWrite(t *testing.T) {
	now := noon
	f := newFresh()
	f.now = func() time.Time { return now }
	shown := func(version string) *v1alpha1.Proxy {
		p := proxyObject()
		p.ResourceVersion = version
		return p
	}
	behind := func(version string) bool { return f.behind("eu", shown(version)) }
	echo := func(version string) bool { return f.echo("eu", shown(version)) }
	if behind("5") || echo("5") {
		t.Error("behind a write that was never made")
	}
	f.wrote("eu", shown("10"))
	if !behind("9") || behind("10") || behind("11") || behind("not comparable") {
		t.Errorf("behind 10: 9 %v, 10 %v, 11 %v", behind("9"), behind("10"), behind("11"))
	}
	if !echo("9") || !echo("10") || echo("11") || echo("not comparable") {
		t.Errorf("echo of 10: 9 %v, 10 %v, 11 %v: somebody else's change would wake nobody, or the hub itself", echo("9"), echo("10"), echo("11"))
	}
	// A spoke chooses the UIDs and versions that it shows.
	f.wrote("hostile", shown("99999"))
	if echo("11") || behind("11") {
		t.Error("one spoke silences another's Proxies")
	}
	f.released("eu", shown("11"))
	if !behind("123456789012") {
		t.Error("a Proxy that was let go would be let go again")
	}
	now = now.Add(lag + time.Second)
	if behind("1") || echo("1") {
		t.Error("a write of long ago still counts: after a restore from a backup nobody would be heard")
	}
}

func TestWhatWasWrittenLongAgoIsForgotten(t *testing.T) {
	now := noon
	f := newFresh()
	f.now = func() time.Time { return now }
	for i := range 1000 {
		p := proxyObject()
		p.UID = types.UID(rune('a' + i))
		f.wrote("eu", p)
		now = now.Add(time.Second)
	}
	if len(f.written) > 100 {
		t.Errorf("remembers %d", len(f.written))
	}
}
