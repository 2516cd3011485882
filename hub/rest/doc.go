// Package rest is the crawlers' API: JSON over HTTP, one token, leases, and the
// lists of Proxies and of the clusters that they are in. openapi.yaml describes it and
// is served; the tests hold every exchange against it.
//
// A request passes, from the outside in, recovery, the request log, the body
// limit and authentication, and then the router. The router is innermost, so
// that what it refuses itself (404, 405) is logged, authenticated and answered
// in JSON like everything else. Paths are matched as they were sent: nothing is
// cleaned, decoded or redirected, so there is one spelling of every path. All that is
// known of a request on its way is in one exchange, which is also what is written to.
//
// Handlers read the lease store in memory; no request causes a Kubernetes call. They
// return errors, and refusal is the one place that turns an error into a status. Bodies
// and queries are read strictly: what is unknown, said twice or of the wrong type is
// refused by name, since a misspelt field that is ignored is a lease that the client did
// not ask for. A hub that does not lead says so before it looks at any of that.
//
// A request that waits for a Proxy has no deadline but its own while it does. It ends
// at once when its client hangs up, which net/http notices once the body is read to its
// end, and when the server stops. A server that stops goes on answering what comes by
// connections that are kept alive as long as other requests are in flight, and closes
// them one by one with what it answers (drain).
//
// The url of a lease is the one place that shows a Proxy's credentials. An item of the
// list is written without a url, and the log has no bodies.
//
// What it trades away: answers are appended member by member and fields read token by
// token, which is more to write than a struct with tags, for a third of the time
// (docs/decisions/0017-codec.md). A client that sends its next request before it has
// the answer to one that waits is not noticed when it hangs up; its wait runs out. A
// page of the list is made in memory before any of it is sent, up to some two megabytes.
//
// Where the wire format leaves a choice: latencyMillis and maxLeases are left
// out when there is none; attributes is never null; healthy means that a lease
// may be granted as far as the Proxy's state goes, so healthy Proxies are those
// in phase Ready; continue is empty on the last page. Of a cluster that has
// never answered, lastContactTime is left out; the list of clusters has no pages.
package rest
