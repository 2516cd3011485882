//go:build !race

package e2e_test

// raceEnabled is false: without the race detector the programs need no C compiler either.
const raceEnabled = false
