package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

// direct uses no proxy of the environment: all that is called with it is on this machine.
var direct = &http.Client{Transport: &http.Transport{}, Timeout: 15 * time.Second}

// api is the REST API as a crawler knows it.
type api struct{ base, token string }

type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) String() string { return fmt.Sprintf("%d %s", r.status, bytes.TrimSpace(r.body)) }

// leasedProxy is a Proxy in the list and in a lease. The latency is left out, so that two lists
// of the same fleet are equal.
type leasedProxy struct {
	Cluster      string            `json:"cluster"`
	Namespace    string            `json:"namespace"`
	Name         string            `json:"name"`
	UID          string            `json:"uid"`
	Protocol     string            `json:"protocol"`
	Host         string            `json:"host"`
	Port         int               `json:"port"`
	URL          string            `json:"url"`
	Attributes   map[string]string `json:"attributes"`
	Healthy      bool              `json:"healthy"`
	Phase        string            `json:"phase"`
	ActiveLeases int               `json:"activeLeases"`
	MaxLeases    int               `json:"maxLeases"`
}

func (p leasedProxy) key() string { return p.Cluster + "/" + p.Namespace + "/" + p.Name }

type lease struct {
	LeaseID    string      `json:"leaseID"`
	Client     string      `json:"client"`
	Target     string      `json:"target"`
	ExpiresAt  time.Time   `json:"expiresAt"`
	TTLSeconds int         `json:"ttlSeconds"`
	Proxy      leasedProxy `json:"proxy"`
	// read is the same as clients read it.
	read clients.Lease
}

// refusal is the body of every error; the counts are those of a 409.
type refusal struct {
	Error      string `json:"error"`
	Message    string `json:"message"`
	Considered int    `json:"considered"`
	Unhealthy  int    `json:"unhealthy"`
	AtCapacity int    `json:"atCapacity"`
	InCooldown int    `json:"inCooldown"`
}

// do makes one request; the error is that of the connection.
func (a api) do(ctx context.Context, method, path, body string) (reply, error) {
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if a.token != "" {
		request.Header.Set("Authorization", "Bearer "+a.token)
	}
	response, err := direct.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, content}, err
}

// call is do for a hub that must be there.
func (a api) call(t *testing.T, method, path, body string) reply {
	t.Helper()
	r, err := a.do(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// decode reads the reply's body, which must be JSON.
func decode[T any](t *testing.T, r reply) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("%v in %s", err, r)
	}
	return v
}

// list is GET /v1/proxies.
func (a api) list(t *testing.T, query string) []leasedProxy {
	t.Helper()
	r := a.call(t, http.MethodGet, "/v1/proxies"+query, "")
	page := decode[struct {
		Proxies []leasedProxy `json:"proxies"`
		Count   int           `json:"count"`
	}](t, r)
	if r.status != http.StatusOK || page.Proxies == nil || page.Count != len(page.Proxies) {
		t.Fatalf("list%s: %s", query, r)
	}
	return page.Proxies
}

// acquire asks for a lease; whoever is content with a refusal looks at the reply.
func (a api) acquire(t *testing.T, body string) (lease, reply) {
	t.Helper()
	r := a.call(t, http.MethodPost, "/v1/leases", body)
	if r.status != http.StatusCreated {
		return lease{}, r
	}
	l := decode[lease](t, r)
	var err error
	if l.read, err = clients.ParseLease(r.body); err != nil || l.read.Host != l.Proxy.Host || int(l.read.Port) != l.Proxy.Port || l.LeaseID == "" || !l.ExpiresAt.After(time.Now()) {
		t.Fatalf("a lease that is of no use: %s (%v)", r, err)
	}
	return l, r
}

// mustAcquire is acquire for what has to be there.
func (a api) mustAcquire(t *testing.T, body string) lease {
	t.Helper()
	l, r := a.acquire(t, body)
	if r.status != http.StatusCreated {
		t.Fatalf("lease %s: %s", body, r)
	}
	return l
}

func (a api) release(t *testing.T, l lease) {
	t.Helper()
	if r := a.call(t, http.MethodDelete, "/v1/leases/"+l.LeaseID, ""); r.status != http.StatusNoContent {
		t.Fatalf("release: %s", r)
	}
}

// fetch gets a page from the TLS origin through the leased proxy. The origin must be the one
// that its CA vouches for, and must have been called by the proxy.
func (w *world) fetch(t *testing.T, l lease) error {
	t.Helper()
	ca, err := os.ReadFile(w.env["ORIGIN_CA_FILE"])
	if err != nil {
		t.Fatal(err)
	}
	status, body, err := clients.Fetch(t.Context(), clients.Go(), l.read, w.env["ORIGIN_URL"]+"/a-page", ca)
	if err != nil {
		return err
	}
	var seen origin.Reply
	if err = json.Unmarshal(body, &seen); err == nil && (status != http.StatusOK || !seen.TLS || seen.RemoteAddr != l.Proxy.Host) {
		err = fmt.Errorf("the origin saw %+v; the proxy is %s", seen, l.Proxy.Host)
	}
	return err
}

// metrics are the hub's series by NAME{LABELS}, with the labels in order.
func (w *world) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	r, err := api{base: w.env["METRICS_URL"]}.do(t.Context(), http.MethodGet, "", "")
	if err != nil || r.status != http.StatusOK {
		t.Fatalf("metrics: %s, %v", r, err)
	}
	series := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(r.body))
	for lines.Scan() {
		line := lines.Text()
		blank := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || blank < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[blank+1:], 64)
		if err != nil {
			t.Fatalf("metrics: %q: %v", line, err)
		}
		series[line[:blank]] = value
	}
	return series
}

// sum adds up the series whose names begin with prefix and hold every label.
func sum(series map[string]float64, prefix string, labels ...string) (total float64) {
next:
	for name, value := range series {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(name, label) {
				continue next
			}
		}
		total += value
	}
	return total
}
