//go:build race

package e2e_test

// raceEnabled says that the test has the race detector, and that the programs get it as well:
// then the build cache holds most of what they need already.
const raceEnabled = true
