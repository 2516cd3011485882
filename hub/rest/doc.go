// Package rest is the crawlers' API: JSON over HTTP, one token, leases, and the
// lists of Proxies and of the clusters that they are in.
//
// A request passes, from the outside in, recovery, the request log, the body
// limit and authentication, and then the router. The router is innermost, so
// that what it refuses itself (404, 405) is logged, authenticated and answered
// in JSON like everything else. Paths are matched as they were sent: nothing is
// cleaned, decoded or redirected, so there is one spelling of every path.
//
// Handlers read the fleet and the lease store in memory; no request causes a
// Kubernetes call. They return errors, and fail is the one place that turns an
// error into a status. Bodies and queries are read strictly: what is unknown,
// said twice or of the wrong type is refused by name, since a misspelt field
// that is ignored is a lease that the client did not ask for.
//
// The url of a lease is the one place that shows a Proxy's credentials. The view
// of a Proxy has no field for them, and the log has no bodies.
//
// What it trades away: decoding goes through a map of raw fields, which costs
// a few microseconds more than a struct would and buys errors that name the
// field in the client's words. Listing copies nothing but visits every Proxy
// after the page's start until the page is full.
//
// Where the wire format leaves a choice: latencyMillis and maxLeases are left
// out when there is none; attributes is never null; healthy means that a lease
// may be granted as far as the Proxy's state goes, so healthy Proxies are those
// in phase Ready; continue is empty on the last page. Of a cluster that has
// never answered, lastContactTime is left out; the list of clusters has no pages.
package rest
