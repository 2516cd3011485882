package apiserver

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// Cluster is one API server and what it holds. All methods may be called at
// any time, by any goroutine.
type Cluster struct {
	name   string
	server *Server
	mux    *http.ServeMux

	mu      sync.Mutex
	uid     string
	version string
	crd     crd
	denied  map[access]bool
	answers map[string]Answer
	// watchAnswers are those of watches.
	watchAnswers map[string]Answer
	muted        bool
	unavailable  bool
	node         func(*corev1.Pod) corev1.PodStatus // nil: pods do not run
	requests     []string                           // only ever appended to
	writes       map[string]int
	tokens       []string

	proxies, pods, secrets, events *resource
	revision                       int64         // of all resources
	changed                        chan struct{} // closed, and another in its place, when watches have something to look at
}

type crd struct {
	schemaVersion string
	present       bool
}

type access struct{ verb, resource string }

func newCluster(s *Server, name string) *Cluster {
	c := &Cluster{
		name: name, server: s,
		uid: "uid-" + name, version: "v1.36.3", crd: crd{strconv.Itoa(v1alpha1.SchemaVersion), true},
		denied:  map[access]bool{},
		answers: map[string]Answer{}, watchAnswers: map[string]Answer{},
		writes:  map[string]int{},
		proxies: proxies(), pods: pods(), secrets: secrets(), events: events(),
		revision: 1,
		changed:  make(chan struct{}),
	}
	for _, r := range c.resources() {
		r.objects, r.round = map[types.NamespacedName]client.Object{}, newRound()
	}
	c.mux = c.routes()
	return c
}

func (c *Cluster) resources() []*resource {
	return []*resource{c.proxies, c.pods, c.secrets, c.events}
}

// URL is the address of the API server.
func (c *Cluster) URL() string { return c.server.http.URL + "/" + c.name }

// Kubeconfig leads here, with the CA and the bearer token in it.
func (c *Cluster) Kubeconfig(token string) []byte {
	k := api.NewConfig()
	k.CurrentContext = c.name
	k.Contexts[c.name] = &api.Context{Cluster: c.name, AuthInfo: c.name}
	k.Clusters[c.name] = &api.Cluster{Server: c.URL(), CertificateAuthorityData: c.server.CAPEM()}
	k.AuthInfos[c.name] = &api.AuthInfo{Token: token}
	raw, err := clientcmd.Write(*k)
	if err != nil {
		panic(err) // cannot be: strings alone
	}
	return raw
}

// SetUID lets another cluster answer from now on: open watches are cut, and
// one that resumes is told that its resource version is too old. What the
// cluster holds stays; Put and Remove make it differ, before anybody sees it
// if the cluster is Unavailable meanwhile.
func (c *Cluster) SetUID(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uid = uid
	c.revision++
	for _, r := range c.resources() {
		r.history, r.forgotten = nil, c.revision
		r.cut()
	}
}

// SetVersion sets the version of the API server.
func (c *Cluster) SetVersion(v string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = v
}

// SetCRD sets the Proxy CRD's annotation, an empty one being none, and whether
// the CRD is there. While it is not, Proxies are not found either, and open
// watches of them are cut. They come back with it, unlike a real cluster's.
func (c *Cluster) SetCRD(schemaVersion string, present bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.crd = crd{schemaVersion, present}
	if c.proxies.missing = !present; !present {
		c.proxies.cut()
	}
}

// Deny has access reviews answer that the verb is not allowed on the resource
// ("pods", "proxies/status"), in any namespace and API group. The request
// itself is not refused: Answer does that.
func (c *Cluster) Deny(verb, resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.denied[access{verb, resource}] = true
}

// Allow takes Deny back.
func (c *Cluster) Allow(verb, resource string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.denied, access{verb, resource})
}

// Answer has all requests to the path, which begins below the cluster's URL,
// answered with a, watches apart. An empty Answer takes it back; requests that
// hang by then hang on.
func (c *Cluster) Answer(path string, a Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	set(c.answers, path, a)
}

// AnswerWatches is Answer for the watches on the path. It leaves open ones alone.
func (c *Cluster) AnswerWatches(path string, a Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	set(c.watchAnswers, path, a)
}

func set(answers map[string]Answer, path string, a Answer) {
	if a == (Answer{}) {
		delete(answers, path)
		return
	}
	answers[path] = a
}

// MuteWatches accepts watches and says nothing on them, nor on open ones. Once
// taken back, they say what they held back.
func (c *Cluster) MuteWatches(muted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.muted = muted
	c.wake()
}

// CutWatches breaks the connections of all open watches.
func (c *Cluster) CutWatches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut()
}

// Unavailable closes the connection of every request without an answer, and
// those of open watches. client-go repeats a GET that ends like this ten times,
// a second apart, unless its context ends before.
func (c *Cluster) Unavailable(unavailable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unavailable = unavailable
	if unavailable {
		c.cut()
	}
}

// Watches counts the open watches, of whatever resource.
func (c *Cluster) Watches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, r := range c.resources() {
		n += r.round.open
	}
	return n
}

// Requests are the method and path of all that was asked, in order, the path
// beginning below the cluster's URL. A watch's method is WATCH. It costs nothing, however many
// they are; what it returns must not be changed.
func (c *Cluster) Requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clip(c.requests)
}

// Writes counts the requests to resources of a namespace that are to change something, whatever
// became of them, by method and resource: "POST pods", "PATCH proxies/status".
func (c *Cluster) Writes() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.writes)
}

// Tokens are the distinct bearer tokens that were shown, in order.
func (c *Cluster) Tokens() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.tokens)
}

// wake has the watches look. The caller holds mu, as for cut.
func (c *Cluster) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Cluster) cut() {
	for _, r := range c.resources() {
		r.cut()
	}
}

func (r *resource) cut() {
	close(r.round.cut)
	r.round = newRound()
}
