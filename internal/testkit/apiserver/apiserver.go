// Package apiserver stands in for Kubernetes API servers in tests: for faults that a real
// one cannot be made to play, such as a request that is never answered, a watch that says
// nothing, another cluster under the same address, and for fleets of a hundred clusters,
// which as real ones would not fit on a machine.
//
// One Server, on one port, is any number of clusters, each below a path of its own. A cluster
// starts out good; its methods break and mend it while clients are connected, and record what
// was asked. Changes come about in one order: a watch gets every change after the list that
// it began with, or is told that it is too late.
//
// It plays what a hub asks of a spoke: the version, kube-system, the Proxy CRD, access reviews;
// get, list and watch of Proxies, pods and Secrets, whole or as bare metadata, in a namespace or
// in all; merge patches of them with optimistic locks, the status subresource and finalizers;
// update of Proxies; create and delete of pods and Secrets; label selectors of pods and Secrets,
// and the field selector of Secrets by type; create and patch of events.k8s.io/v1 Events.
//
// It does not play: validation, defaults and pruning by the CRD; authentication, and
// authorization beyond the answers of access reviews; admission; tables; selectors of Proxies;
// create and delete of Proxies by a client; changes of a pod's spec; generated names; other
// kinds of patches, but that Events take a strategic one; dry runs; graceful deletion; get, list
// and watch of Events, and their end; what makes a pod run, unless RunPods is told; discovery;
// periodic bookmarks and the time-outs of watches; HTTP/2. Paths, selectors and patches that are
// not played are refused, rather than answered wrongly. Rights, validation and the like need a
// real API server: test/controlplane.
package apiserver

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Server is a running stand-in for any number of API servers.
type Server struct {
	http *httptest.Server
	done chan struct{} // closed when the test ends

	mu       sync.Mutex
	clusters map[string]*Cluster
}

// Start serves on 127.0.0.1 with TLS until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{done: make(chan struct{}), clusters: map[string]*Cluster{}}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	// Connections that a test breaks on purpose are no news.
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.http.StartTLS()
	t.Cleanup(func() {
		close(s.done) // or a watch that comes back right now would hold Close up
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// Cluster is the cluster of that name, made at first use and served below the server's URL
// and /name. It starts out good: version v1.36.3, the UID "uid-" and its name, the Proxy CRD
// with the schema version that this code needs, no Proxies, and everything allowed.
func (s *Server) Cluster(name string) *Cluster {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clusters[name]
	if c == nil {
		c = newCluster(s, name)
		s.clusters[name] = c
	}
	return c
}

// CAPEM is the certificate to trust.
func (s *Server) CAPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	s.mu.Lock()
	c := s.clusters[name]
	s.mu.Unlock()
	if c == nil {
		notPlayed(w, r)
		return
	}
	http.StripPrefix("/"+name, http.HandlerFunc(c.serve)).ServeHTTP(w, r)
}
