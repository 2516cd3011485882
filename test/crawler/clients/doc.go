// Package clients uses leases with the clients that crawlers are written with: net/http, curl,
// Python's requests and Node's fetch. Each fetches a page as its users would, by the lease's
// proxy.url as it is, so that what passes here can be promised to all of them.
//
//	for _, client := range clients.ForTest(t, "https") {
//		status, body, err := clients.Fetch(ctx, client, lease, "https://…", siteCA)
//
// net/http runs in this process. curl reads its options, and the scripts python.py and node.mjs
// their lease, from stdin: nothing secret is on a command line or in the environment, and no
// variable that names proxies or CAs gets as far as a client.
//
// How an https proxy is verified, by tls.serverName and tls.ca of the lease, has nothing to do
// with the site and its CA. The clients are told so:
//
//   - go: Transport.DialTLSContext, which net/http uses for the proxy and not for the site in
//     the tunnel.
//   - curl: --proxy-cacert; for the name --resolve NAME:PORT:ADDRESS and the name in the URL.
//   - python: an HTTPAdapter that passes a proxy_ssl_context.
//   - node: proxyTls of undici's ProxyAgent.
//
// What they cannot do, as tried with Go 1.26, curl 7.88, requests 2.28 and 2.34 (urllib3 1.26 and
// 2.7), and undici 6.29 on Node 18 and 20:
//
//   - curl takes a proxy.url with a control character, say a line feed, in user or password for
//     none, and fetches without the proxy and without a word. Here it is not started.
//   - curl, and node before 20, verify no https proxy by an IPv6 address: they need a
//     tls.serverName that is a name.
//   - python sends user and password to http and https proxies in Latin-1: those that are not
//     ASCII are refused (407), or are a UnicodeEncodeError. With socks5 it sends UTF-8.
//   - python and node send no bytes that are not UTF-8.
//   - node takes the answer 407 of a site, not the proxy, for a failure.
//   - None can say for socks5 that a password is wrong but in words, which are what is looked for.
//
// A client's error says what the client said, without the password: proxy.url is refused unless
// every client can read it, since what they cannot read they quote; the scripts tell types of
// errors, and words only of those that do not quote their input; and whatever has the password in
// it all the same is withheld as a whole. So with a password of one or two letters nothing is told.
package clients
