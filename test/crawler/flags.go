package main

import (
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/proxyfleet/proxy-operator/test/crawler/clients"
)

type settings struct {
	page     string
	host     string // the page's
	clients  []string
	required []string
	siteCA   []byte
	// hub is nil where the lease comes from stdin.
	hub      *hub
	selector map[string]string
}

var errWithoutAPI = errors.New("this is for leasing: give -api as well")

// parse returns everything that is wrong, an error for each flag.
func parse(args []string, getenv func(string) string, stderr io.Writer) (settings, []error) {
	var s settings
	var client, siteCA, require, api, tokenEnv, selector string
	flags := flag.NewFlagSet("crawler", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // its error is printed with the others
	flags.StringVar(&s.page, "url", "", "the page, https://…; required")
	flags.StringVar(&client, "client", "all", "which to use: all, or some of "+strings.Join(clients.Names(), ",")+", which must be installed then")
	flags.StringVar(&siteCA, "site-ca", "", "PEM file of who signs the site's certificate (default: the system's roots)")
	flags.StringVar(&require, "require", "", "which must be installed: some of "+strings.Join(clients.Names(), ","))
	flags.StringVar(&api, "api", "", "URL of a hub's REST API to lease from, instead of reading a lease from stdin")
	flags.StringVar(&tokenEnv, "token-env", "", "the environment variable that has the API's token (default: send none)")
	flags.StringVar(&selector, "selector", "", "attributes to lease by: region=eu,tier=datacenter")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stderr)
			flags.PrintDefaults()
		}
		return s, []error{err}
	}

	var errs []error
	wrong := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("-%s: %w", name, err))
		}
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	var err error
	s.host, err = pageHost(s.page)
	wrong("url", err)
	s.clients, s.required, err = parseClients(client)
	wrong("client", err)
	also, err := parseNames(require)
	wrong("require", err)
	s.required = append(s.required, also...)
	s.siteCA, err = readCA(siteCA)
	wrong("site-ca", err)
	s.selector, err = parseSelector(selector)
	wrong("selector", err)
	if api != "" {
		s.hub, err = newHub(api)
		wrong("api", err)
	}
	if selector != "" && api == "" {
		wrong("selector", errWithoutAPI)
	}
	switch token := getenv(tokenEnv); {
	case tokenEnv == "":
	case api == "":
		wrong("token-env", errWithoutAPI)
	case token == "":
		wrong("token-env", fmt.Errorf("the environment has no %s", tokenEnv))
	case s.hub != nil:
		s.hub.token = token
	}
	return s, errs
}

func pageHost(page string) (string, error) {
	if err := clients.CheckPage(page); err != nil {
		return "", err
	}
	u, err := url.Parse(page)
	if err != nil {
		return "", err
	}
	return u.Hostname(), nil
}

// parseClients returns which clients to use, and which of them must be there.
func parseClients(list string) (use, required []string, err error) {
	if list == "all" {
		return clients.Names(), nil, nil
	}
	use, err = parseNames(list)
	if err == nil && len(use) == 0 {
		err = fmt.Errorf("names none: want all, or some of %s", strings.Join(clients.Names(), ","))
	}
	return use, use, err
}

func parseNames(list string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if list != "" && !slices.Contains(clients.Names(), name) {
			return nil, fmt.Errorf("%q is no client: want some of %s", name, strings.Join(clients.Names(), ","))
		}
		if list != "" {
			names = append(names, name)
		}
	}
	return names, nil
}

func readCA(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(content) {
		err = fmt.Errorf("%s has no PEM certificate", file)
	}
	return content, err
}

func parseSelector(list string) (map[string]string, error) {
	if list == "" {
		return nil, nil
	}
	selector := map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" || value == "" {
			return nil, fmt.Errorf("%q is no attribute: want key=value, several with commas", pair)
		}
		selector[key] = value
	}
	return selector, nil
}
