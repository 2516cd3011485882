package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// A hash names what an instance is made of: its version, and 32 hex digits of a
// SHA-256, short enough for a label. It covers the spec as the user wrote it and
// the content that it refers to. The hub's own defaults are left out, so that a
// changed flag replaces nothing.
//
// A version, once released, is computed for ever as it was: a hub that knows a
// newer one asks whether an instance of an older version still is what is
// wanted, and replaces nothing only because it can say more.

// made is what an instance is made of.
type made struct {
	uid   string
	spec  *v1alpha1.ProxySpec
	files map[string][]byte
}

// hashVersions are all that this hub can compute, by number. What a version
// does not cover, it cannot name: it answers "".
var hashVersions = map[int]func(made) (string, error){1: hashV1, 2: hashV2}

// hashVersion is the one that new instances get.
const hashVersion = 2

// hash is the present version's.
func (m made) hash() (string, error) { return hashVersions[hashVersion](m) }

var hashFormat = regexp.MustCompile(`^v([1-9][0-9]{0,8})-[0-9a-f]{32}$`)

// compare says how an instance with the hash have compares with what is wanted.
func (m made) compare(have string) (fit, error) {
	parts := hashFormat.FindStringSubmatch(have)
	if parts == nil {
		return differs, nil // no hub's: somebody has edited the label
	}
	version, err := strconv.Atoi(parts[1])
	if err != nil {
		return differs, fmt.Errorf("read hash: %w", err)
	}
	compute := hashVersions[version]
	if compute == nil {
		return newer, nil
	}
	want, err := compute(m)
	if err != nil || want != have {
		return differs, err
	}
	return fits, nil
}

// hashV1 knew a pod's image, and no content.
func hashV1(m made) (string, error) {
	var kubernetes *struct {
		Image string `json:"image,omitempty"`
	}
	if k := m.spec.Kubernetes; k != nil {
		rest := *k
		rest.Image = ""
		if rest.Expose == v1alpha1.ExposePodIP {
			rest.Expose = ""
		}
		if !equality.Semantic.DeepEqual(rest, v1alpha1.KubernetesSpec{}) {
			return "", nil
		}
		if k.Image != "" {
			kubernetes = &struct {
				Image string `json:"image,omitempty"`
			}{k.Image}
		}
	}
	if len(m.files) > 0 || m.serverName() != "" {
		return "", nil
	}
	return digest(1, struct {
		Provider   v1alpha1.ProviderName `json:"provider"`
		Protocol   v1alpha1.Protocol     `json:"protocol"`
		Port       int32                 `json:"port"`
		Kubernetes any                   `json:"kubernetes,omitempty"`
	}{m.spec.Provider, m.spec.Protocol, m.spec.ListenPort(), orNil(kubernetes)})
}

// orNil keeps a nil pointer out of an interface, where omitempty would not see it.
func orNil[T any](p *T) any {
	if p == nil {
		return nil
	}
	return p
}

// hashV2 covers all of spec.kubernetes and the files. Fields may be added with
// omitempty; anything else needs a version of its own.
func hashV2(m made) (string, error) {
	kubernetes := m.spec.Kubernetes.DeepCopy()
	if kubernetes != nil && kubernetes.Expose == v1alpha1.ExposePodIP {
		kubernetes.Expose = "" // that is what no word about it means
	}
	if kubernetes != nil && equality.Semantic.DeepEqual(*kubernetes, v1alpha1.KubernetesSpec{}) {
		kubernetes = nil
	}
	files := map[string]string{}
	for name, content := range m.files {
		// With the UID in it, equal passwords of two Proxies do not show.
		sum := sha256.Sum256(append([]byte(m.uid+"\x00"), content...))
		files[name] = hex.EncodeToString(sum[:])
	}
	return digest(2, struct {
		Provider   v1alpha1.ProviderName    `json:"provider"`
		Protocol   v1alpha1.Protocol        `json:"protocol"`
		Port       int32                    `json:"port"`
		Kubernetes *v1alpha1.KubernetesSpec `json:"kubernetes,omitempty"`
		Files      map[string]string        `json:"files,omitempty"`
		ServerName string                   `json:"serverName,omitempty"`
	}{m.spec.Provider, m.spec.Protocol, m.spec.ListenPort(), kubernetes, files, m.serverName()})
}

// serverName is the one in the certificate; who has signed it is no matter of the
// instance.
func (m made) serverName() string {
	if m.spec.TLS == nil {
		return ""
	}
	return m.spec.TLS.ServerName
}

func digest(version int, of any) (string, error) {
	raw, err := json.Marshal(of)
	if err != nil {
		return "", fmt.Errorf("hash spec: %w", err)
	}
	sum := sha256.Sum256(raw)
	return fmt.Sprintf("v%d-%s", version, hex.EncodeToString(sum[:16])), nil
}

// inputs names all that a creation depends on, for the latch of permanent
// errors: where one of them changes, it is tried again.
func inputs(generation int64, hash, providerConfig, retry string) (string, error) {
	return digest(1, []string{strconv.FormatInt(generation, 10), hash, providerConfig, retry})
}
