// Package e2e is the end-to-end test: everything that users are promised, shown through the real
// programs, real API servers and real processes.
//
// The test builds the programs (with the race detector if it has it itself), starts the demo and
// from then on is a stranger to it: it knows the file env that the demo writes for scripts, talks
// to the API servers as an admin does and to the REST API as a crawler does, with types of its
// own, and breaks things with signals.
//
// There is one fleet and one list of steps, in order, because a fleet takes longer to come up
// than to be tested. The first step that fails is the last one. A second test kills demos.
//
// Traded away: it needs Linux, since it follows processes through /proc, and knows by name what
// few things it cannot find out otherwise (the samples, the node's process://PID).
package e2e
