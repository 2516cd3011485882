package proxy

import "testing"

func TestAPassIsNotMadeFromWhatWasThereBeforeTheHubsOwnWrite(t *testing.T) {
	f := newFresh()
	at := func(version string) bool {
		p := proxyObject()
		p.ResourceVersion = version
		return f.behind(p)
	}
	echoes := func(version string) bool {
		p := proxyObject()
		p.ResourceVersion = version
		return f.echo(p)
	}
	if at("5") || echoes("5") {
		t.Error("behind a write that was never made")
	}
	written := proxyObject()
	written.ResourceVersion = "10"
	f.wrote(written)
	if !at("9") || at("10") || at("11") || at("not comparable") {
		t.Errorf("behind 10: 9 %v, 10 %v, 11 %v", at("9"), at("10"), at("11"))
	}
	if !echoes("9") || !echoes("10") || echoes("11") || echoes("not comparable") {
		t.Errorf("echo of 10: 9 %v, 10 %v, 11 %v: somebody else's change would wake nobody, or the hub itself", echoes("9"), echoes("10"), echoes("11"))
	}
	f.released(written)
	if !at("123456789012") {
		t.Error("a Proxy that was let go would be let go again")
	}
	f.forget(written.UID)
	if at("1") || len(f.written) > 0 {
		t.Error("not forgotten")
	}
}
