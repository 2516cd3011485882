// Command demo shows the main job of the proxy operator end to end, on one machine and with
// nothing pretended: the control planes of a hub and of two spokes, a node in each spoke that
// runs pods as processes, a TLS origin, an external proxy and the real hub binary. It registers
// the spokes with the least rights that the hub needs, applies the samples, waits until all
// Proxies are Ready, leases one over the REST API, fetches a page through it, reports and
// releases. Then it stays up, so that people can look around and scripts can break things.
//
//	demo [--once] [--dir .demo] [--bin DIR] [--config config]
//
// The demo is a list of named steps (steps.go). The first one that fails ends it with its
// reason, and the logs are kept.
//
// For scripts there is a file env in the state directory, one KEY=VALUE a line, written when
// every step has held. It can be sourced by a shell or split at the first "="; HUB_COMMAND
// is the path of a script that starts the hub again with the same flags, environment and ports.
//
// Everything runs in processes of its own, in loopback on ports that the kernel chose, so that
// demos in several directories can run at once. A process that is killed is reported and
// ends nothing else.
//
// SIGINT, SIGTERM, SIGHUP and the end of the parent stop and remove everything that was
// started. A second signal leaves at once: the processes die all the same (package process),
// but files stay until the next run in that directory.
//
// Exit codes: 0 with --once when every step held; 1 when one did not, or the parent ended; 2
// for a bad command line; 128 plus the signal's number after a signal (130 for Ctrl-C).
package main
