package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/spoke/kubeconfig"
)

// registration is what an admin says about a spoke, and what is known of it
// from before.
type registration struct {
	// secret is the UID of the Secret, created when it came into being.
	secret  string
	created time.Time
	// kubeconfig is the Secret's; nil with local.
	kubeconfig []byte
	// local leads to the hub's own cluster; nil for a Secret.
	local *rest.Config
	// namespaces is the annotation that limits the spoke; nil: none.
	namespaces *string
	// podNetwork is the annotation that says whether addresses of its pods may be
	// dialled; nil: none.
	podNetwork *string
	// accept is the annotation with the identity that may take the place of the
	// one that is pinned.
	accept string
	// pinned is the identity that the Spoke shows.
	pinned string
	// shadowed says that a Secret has the local spoke's name.
	shadowed bool
}

// key is equal for registrations that lead to the same credential.
func (r registration) key() string {
	if r.local != nil {
		return "local"
	}
	namespaces := "-"
	if r.namespaces != nil {
		namespaces = "=" + *r.namespaces
	}
	key := hashOf(r.kubeconfig) + namespaces
	if r.podNetwork != nil && !r.routable() {
		key += "!" + *r.podNetwork // to be refused
	}
	return key
}

// routable says that addresses of the spoke's pods are the hub's to dial. Those of
// its own cluster are.
func (r registration) routable() bool {
	return r.local != nil || r.podNetwork != nil && *r.podNetwork == v1alpha1.PodNetworkRoutable
}

func hashOf(kubeconfig []byte) string {
	sum := sha256.Sum256(kubeconfig)
	return hex.EncodeToString(sum[:])
}

// vet turns a registration into a credential, or says all that is wrong with it.
func vet(name string, r registration, allowed kubeconfig.Options) (*credential, error) {
	if r.local != nil {
		return &credential{config: r.local, key: r.key(), local: true, routable: true}, nil
	}
	refusal := &kubeconfig.Refusal{}
	config, err := kubeconfig.Vet(r.kubeconfig, allowed)
	if err != nil && !errors.As(err, &refusal) {
		return nil, err
	}
	if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
		refusal.Reasons = append(refusal.Reasons,
			"the Secret's name cannot be a spoke's name: use at most 63 lower-case letters, digits and '-', with a letter or digit at each end")
	}
	namespaces, wrong := splitNamespaces(r.namespaces)
	refusal.Reasons = append(refusal.Reasons, wrong...)
	if r.podNetwork != nil && !r.routable() {
		refusal.Reasons = append(refusal.Reasons, fmt.Sprintf("annotation %s is %.70q: write %s, or remove it if the hub cannot dial addresses of pods",
			v1alpha1.AnnotationPodNetwork, *r.podNetwork, v1alpha1.PodNetworkRoutable))
	}
	if len(refusal.Reasons) > 0 {
		return nil, refusal
	}
	return &credential{config: config, hash: hashOf(r.kubeconfig), key: r.key(), namespaces: namespaces, routable: r.routable()}, nil
}

// maxNamespaces bounds the annotation: each costs a watch of every kind, and reviews.
const maxNamespaces = 100

// splitNamespaces reads the annotation; nil says that there is none.
func splitNamespaces(annotation *string) (namespaces, wrong []string) {
	if annotation == nil {
		return nil, nil
	}
	for name := range strings.SplitSeq(*annotation, ",") {
		name = strings.TrimSpace(name)
		if len(validation.IsDNS1123Label(name)) > 0 {
			return nil, []string{fmt.Sprintf("annotation %s is not a list of namespaces, %.70q is none: separate their names by commas, or remove it for all namespaces",
				v1alpha1.AnnotationNamespaces, name)}
		}
		namespaces = append(namespaces, name)
	}
	slices.Sort(namespaces)
	namespaces = slices.Compact(namespaces)
	if len(namespaces) > maxNamespaces {
		return nil, []string{"annotation " + v1alpha1.AnnotationNamespaces + " lists more than 100 namespaces: list fewer, or remove it for all namespaces"}
	}
	return namespaces, nil
}

// offer hands a registration to the spoke. One that is refused replaces none
// that serves.
func (s *spoke) offer(r registration) {
	key := r.key()
	s.mu.Lock()
	known := s.state.offer == key && s.accept == r.accept && s.state.Shadowed == r.shadowed && s.routable == r.routable()
	s.mu.Unlock()
	if known {
		return
	}
	cred, err := vet(s.name, r, s.registry.Allowed)
	s.update(func(st *State) {
		same := st.offer == key
		s.accept, st.Shadowed, s.routable = r.accept, r.shadowed, r.routable()
		if r.routable() || r.podNetwork == nil { // anything else is no word
			s.sayLocked(key, r.routable())
		}
		switch {
		case same: // a word of the admin about it
		case err != nil:
			s.want, s.settled = nil, true
			st.offered(key, hashOf(r.kubeconfig), "")
			st.fails(explain(err))
		case s.serves != nil && s.serves.key == key: // taken back
			s.want = s.serves
			st.offered(key, s.serves.hash, s.serves.server())
			st.takenBack()
		default:
			s.want = cred
			st.offered(key, cred.hash, cred.server())
		}
	})
	s.route()
	poke(s.changed)
}

// sayLocked takes the word on the pod network to the credentials that it is about.
// One that is taken back is about all of them.
func (s *spoke) sayLocked(key string, routable bool) {
	s.said = routable
	for _, cred := range []*credential{s.want, s.serves, s.feeds} {
		if cred != nil && (cred.key == key || !routable) {
			cred.routable = routable
		}
	}
}

// route tells the fleet whether addresses of the spoke's pods may be dialled: as is
// said of the cluster whose Proxies it shows.
func (s *spoke) route() {
	s.gate.unlessShut(func() {
		s.mu.Lock()
		routable := s.feeds != nil && s.feeds.routable
		s.mu.Unlock()
		s.registry.Fleet.SetRoutable(s.name, routable)
		s.update(func(st *State) { st.dials(routable) })
	})
}

// feed makes the credential's cluster the one whose Proxies the fleet shows.
func (s *spoke) feed(cred *credential) {
	s.mu.Lock()
	if s.feeds = cred; cred != nil && !s.said {
		cred.routable = false // taken back while it was on its way
	}
	s.mu.Unlock()
	s.route()
}
