package rest_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/proxyfleet/proxy-operator/internal/testkit/openapi"
)

var (
	reading     sync.Once
	description *openapi.Description
)

// described holds an exchange against openapi.yaml.
func described(t *testing.T, r openapi.Request, a answer) {
	t.Helper()
	reading.Do(func() {
		text, err := os.ReadFile("openapi.yaml")
		if err != nil {
			t.Fatal(err)
		}
		description = openapi.Load(t, text)
	})
	if description == nil {
		t.Fatal("there is no description: see the first test that failed")
	}
	if err := description.Check(r, openapi.Answer{Status: a.status, Header: a.header, Body: []byte(a.body)}); err != nil {
		t.Errorf("not as openapi.yaml has it: %v", err)
	}
}

// impossible are answers that the description promises and no test can bring about: what
// these calls do has no way to fail.
var impossible = []string{
	"GET /healthz 500 internal",
	"GET /openapi.yaml 500 internal",
	"GET /v1/proxies 500 internal",
}

// TestMain fails when the tests have not shown all that the description promises.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && allTests() {
		unseen := slices.DeleteFunc(description.Unseen(), func(what string) bool { return slices.Contains(impossible, what) })
		if len(unseen) > 0 {
			fmt.Printf("openapi.yaml promises what no test has seen:\n  %s\n", strings.Join(unseen, "\n  "))
			code = 1
		}
	}
	os.Exit(code)
}

// allTests says that the tests are not a choice of them.
func allTests() bool {
	for _, name := range []string{"test.run", "test.skip", "test.fuzz", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return description != nil
}

func TestTheDescriptionIsServedAsItIs(t *testing.T) {
	a := newAPI(t, nil)
	text, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := a.call("GET", "/openapi.yaml", "")
	if got.status != http.StatusOK || got.body != string(text) || got.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("%d %v", got.status, got.header)
	}
	head := a.call("HEAD", "/openapi.yaml", "")
	if head.status != http.StatusOK || head.body != "" || head.header.Get("Content-Length") != fmt.Sprint(len(text)) {
		t.Errorf("HEAD: %+v", head)
	}
	a.wantError(a.call("GET", "/openapi.yaml?x=1", ""), http.StatusBadRequest, "invalid_request", `unknown query parameter "x"`)
}
