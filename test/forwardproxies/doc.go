// Package forwardproxies starts forward proxies that others have written, so that what
// talks to proxies is tested on more than our own: tinyproxy and squid, which speak HTTP,
// and microsocks, which speaks SOCKS5. The script install beside this file installs them,
// from Debian.
//
// Each runs for one test, from a configuration of that test's, listens on 127.0.0.1 and
// nowhere else, keeps nothing, and is gone when the test is.
//
// Where one is not installed tests do with the others, unless the environment variable
// FORWARDPROXIES_REQUIRE names it, as CI does.
package forwardproxies
