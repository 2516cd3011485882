package clients

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"time"
)

// fetchTimeout ends a fetch whose context has no deadline.
const fetchTimeout = 30 * time.Second

// Client is a way to fetch pages through a proxy that crawlers have.
type Client interface {
	// Name is one of Names.
	Name() string
	// Supports says whether this installation can use proxies of a protocol, or why not.
	Supports(protocol string) (ok bool, why string)

	fetch(ctx context.Context, j job) (status int, body []byte, err error)
}

// Names are all clients that there are, in the order of Installed.
func Names() []string { return []string{"go", "curl", "python", "node"} }

// Missing is a client that cannot be used here.
type Missing struct{ Name, Why string }

// String is for people.
func (m Missing) String() string { return m.Name + " is not installed: " + m.Why }

// Installed looks for all clients.
func Installed(ctx context.Context) (found []Client, missing []Missing) {
	found = append(found, goClient{})
	for _, look := range []struct {
		name string
		find func(context.Context) (Client, error)
	}{{"curl", findCurl}, {"python", findPython}, {"node", findNode}} {
		client, err := look.find(ctx)
		if err != nil {
			missing = append(missing, Missing{look.name, err.Error()})
			continue
		}
		found = append(found, client)
	}
	return found, missing
}

// ErrCredentials is what an error of Fetch is (errors.Is) when the proxy refuses the lease's
// credentials, or that there are none.
var ErrCredentials = errors.New("the proxy refuses the credentials")

// Error is a page not fetched.
type Error struct {
	Client string
	// Refused says that the error is ErrCredentials.
	Refused bool
	// Said is what the client said, on one line and without the proxy's password.
	Said string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Refused {
		return fmt.Sprintf("%s: %v: %s", e.Client, ErrCredentials, e.Said)
	}
	return e.Client + ": " + e.Said
}

// Is implements what errors.Is asks.
func (e *Error) Is(target error) bool { return e.Refused && target == ErrCredentials }

// job is one fetch.
type job struct {
	lease Lease
	page  string
	// siteCA is the PEM of who signs the site's certificate, empty for the system's roots.
	siteCA []byte
	// dir is an empty directory for as long as the fetch takes.
	dir string
}

// Fetch gets an https page through a lease's proxy and does not follow redirects. siteCA, in PEM,
// signs the site's certificate; nil: the system's roots do. Without a deadline of ctx it takes at
// most 30 seconds. What the client or the proxy fails at is an *Error.
func Fetch(ctx context.Context, client Client, lease Lease, page string, siteCA []byte) (status int, body []byte, err error) {
	if lease.secrets == nil {
		return 0, nil, errors.New("the lease is empty: it does not come from ParseLease")
	}
	if err := CheckPage(page); err != nil {
		return 0, nil, err
	}
	if len(siteCA) > 0 && !x509.NewCertPool().AppendCertsFromPEM(siteCA) {
		return 0, nil, errors.New("the site's CA has no PEM certificate")
	}
	if ok, why := client.Supports(lease.Protocol); !ok {
		return 0, nil, &Error{Client: client.Name(), Said: why}
	}
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
	}
	dir, err := os.MkdirTemp("", "crawler-*")
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return client.fetch(ctx, job{lease: lease, page: page, siteCA: siteCA, dir: dir})
}

// CheckPage says what is wrong with the URL of a page.
func CheckPage(page string) error {
	u, err := url.Parse(page)
	// What curl's configuration file would have to have escaped is no part of a URL.
	plain := !slices.ContainsFunc([]byte(page), func(c byte) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '\\' })
	if err != nil || !plain || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return errors.New("the URL of the page must be https://HOST/…, percent-encoded and without a user") // who may be a secret
	}
	return nil
}
