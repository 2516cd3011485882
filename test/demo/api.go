package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// direct never uses a proxy of the environment: all that the demo talks to is on this machine.
var direct = &http.Client{Transport: &http.Transport{}, Timeout: 15 * time.Second}

// apiClient speaks the REST API as a crawler does: from its description, with types of its own.
type apiClient struct{ base, token string }

func newAPIClient(base, token string) *apiClient { return &apiClient{base: base, token: token} }

// proxyKey names a Proxy of the fleet.
type proxyKey struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (k proxyKey) String() string { return k.Cluster + "/" + k.Namespace + "/" + k.Name }

type proxy struct {
	proxyKey
	Protocol      string            `json:"protocol"`
	Host          string            `json:"host"`
	Port          int               `json:"port"`
	URL           string            `json:"url"`
	Attributes    map[string]string `json:"attributes"`
	Healthy       bool              `json:"healthy"`
	Phase         string            `json:"phase"`
	LatencyMillis int64             `json:"latencyMillis"`
	ActiveLeases  int               `json:"activeLeases"`
	MaxLeases     int               `json:"maxLeases"`
}

type lease struct {
	LeaseID   string    `json:"leaseID"`
	Target    string    `json:"target"`
	ExpiresAt time.Time `json:"expiresAt"`
	Proxy     proxy     `json:"proxy"`
}

// call makes one request. Any other status than the wanted one is an error with the body in it.
func (a *apiClient) call(ctx context.Context, method, path string, in any, want int, out any) error {
	var body io.Reader
	if in != nil {
		content, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(content)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := direct.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode != want {
		return fmt.Errorf("%s %s: want %d, got %s: %s", method, path, want, response.Status, bytes.TrimSpace(content))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(content, out); err != nil {
		return fmt.Errorf("%s %s: %w in %q", method, path, err, content)
	}
	return nil
}

func (a *apiClient) proxies(ctx context.Context) ([]proxy, error) {
	var page struct {
		Proxies []proxy `json:"proxies"`
	}
	err := a.call(ctx, http.MethodGet, "/v1/proxies", nil, http.StatusOK, &page)
	return page.Proxies, err
}

// table is the fleet for people.
func table(proxies []proxy) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "  CLUSTER\tNAMESPACE\tNAME\tPHASE\tHEALTHY\tENDPOINT\tLATENCY\tLEASES\tATTRIBUTES")
	for _, p := range proxies {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\t%s\n", p.Cluster, p.Namespace, p.Name,
			cmp.Or(p.Phase, "-"), p.Healthy, endpoint(p), latency(p), leases(p), attributes(p.Attributes))
	}
	_ = w.Flush() // into memory
	return text.String()
}

func endpoint(p proxy) string {
	if p.Host == "" {
		return "-"
	}
	return fmt.Sprintf("%s:%d", p.Host, p.Port)
}

func latency(p proxy) string {
	if p.LatencyMillis == 0 {
		return "-"
	}
	return fmt.Sprintf("%d ms", p.LatencyMillis)
}

func leases(p proxy) string {
	if p.MaxLeases == 0 {
		return fmt.Sprint(p.ActiveLeases)
	}
	return fmt.Sprintf("%d of %d", p.ActiveLeases, p.MaxLeases)
}

func attributes(set map[string]string) string {
	var pairs []string
	for key, value := range set {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}
