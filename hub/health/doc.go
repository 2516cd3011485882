// Package health is the only authority on whether a Proxy works. It probes
// every Proxy of every spoke with a fresh request through it, counts passes and
// failures against the Proxy's thresholds, and sets the verdict in the fleet,
// where leasing follows it in the same instant. The reconciler writes it to
// the status later.
//
// The engine (engine.go, run.go) follows the fleet's changes and keeps a heap of due
// times, so a quiet second costs the same whatever the size of the fleet. Every
// probe runs on a goroutine of its own, under a limit that is shared out by spoke and
// by whether a proxy passed last: proxies that hang hold up nobody else.
//
// The decisions are free of goroutines and clocks: what a row of results comes to
// (tracker.go), who may begin (slots.go), whether a spoke can be reached at all
// (path.go), and whether it is the probed URL that is broken (suspicion.go, hold.go). The
// wire is in probe.go and trip.go, with SOCKS5 in socks.go, and what failed is put into
// words in explain.go.
//
// A proxy is spoken to as its clients do: by HTTP, by HTTP in TLS with the proxy
// itself, or by SOCKS5, where it resolves the site's name. Who may sign its
// certificate is the Proxy's to say, and who the site's is the hub's: neither
// vouches for the other. The proxy's own name is looked up once per probe; every
// address is checked before one is dialled, and none is looked up again (dial.go).
//
// A proxy that wants credentials is sent those that the fleet knows of its
// instance; one whose credentials are not known yet is not probed. What such a
// proxy says is not quoted anywhere (quote.go): it may echo them.
//
// A probe's result counts for the instance it was sent to: the fleet refuses a
// verdict about an instance that has been replaced meanwhile. One that was got
// with credentials, or by a protocol or certificate, that have changed meanwhile counts
// for nothing.
package health
