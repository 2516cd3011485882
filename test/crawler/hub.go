package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

const (
	apiTimeout = 60 * time.Second
	// releaseTimeout is for giving back a lease when the crawl was interrupted.
	releaseTimeout = 10 * time.Second
)

// hub is the REST API that crawlers lease from.
type hub struct {
	base   string
	token  string // empty: sends none
	client *http.Client
}

func newHub(base string) (*hub, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("want http://HOST:PORT or https://HOST:PORT, without a user")
	}
	return &hub{base: strings.TrimSuffix(base, "/"), client: &http.Client{
		Transport: &http.Transport{}, // not through a proxy that the environment names
		Timeout:   apiTimeout,
		// Nobody else is to see the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// withLease leases a proxy, uses it, reports ok unless that failed, and releases it in any case.
func (h *hub) withLease(ctx context.Context, selector map[string]string, target string, stdout io.Writer, use func(clients.Lease) error) (err error) {
	request := map[string]any{"target": target}
	if selector != nil {
		request["selector"] = selector
	}
	answer, err := h.call(ctx, http.MethodPost, "/v1/leases", request, http.StatusCreated)
	if err != nil {
		return err
	}
	// Read apart, so that a lease that cannot be used can be released.
	var granted struct {
		LeaseID string `json:"leaseID"`
	}
	if json.Unmarshal(answer, &granted) != nil || granted.LeaseID == "" {
		return errors.New("POST /v1/leases: the answer has no leaseID")
	}
	path := "/v1/leases/" + url.PathEscape(granted.LeaseID)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		_, released := h.call(ctx, http.MethodDelete, path, nil, http.StatusNoContent)
		if err = errors.Join(err, released); released == nil {
			fmt.Fprintln(stdout, "released")
		}
	}()
	lease, err := clients.ParseLease(answer)
	if err != nil {
		return fmt.Errorf("POST /v1/leases: %w", err)
	}
	if err := use(lease); err != nil {
		return err // what failed may be us: that is no report about the site
	}
	if _, err := h.call(ctx, http.MethodPost, path+"/report", map[string]string{"result": "ok"}, http.StatusNoContent); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "reported ok")
	return nil
}

// call makes a request. An error has the API's own words, but nothing else of an answer: that
// may be a lease.
func (h *hub) call(ctx context.Context, method, path string, in any, want int) ([]byte, error) {
	var body io.Reader = http.NoBody
	if in != nil {
		content, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(content)
	}
	request, err := http.NewRequestWithContext(ctx, method, h.base+path, body)
	if err != nil {
		return nil, err
	}
	if h.token != "" {
		request.Header.Set("Authorization", "Bearer "+h.token)
	}
	response, err := h.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxLease))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode == want {
		return content, nil
	}
	var told struct {
		Error   string `json:"error"`
		Message string `json:"message"`
	}
	if json.Unmarshal(content, &told) != nil {
		told.Error = "and no error of the API"
	}
	return nil, fmt.Errorf("%s %s: status %d, want %d: %s: %s", method, path, response.StatusCode, want, told.Error, told.Message)
}
