package proxy

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxKept is how many bytes a Secret may have that is kept, several times what
	// credentials and certificates have.
	maxKept = 16 << 10
	// maxKeptOfSpoke is how many all of one spoke may have that are.
	maxKeptOfSpoke = 32 << 20
)

// readSecretFunc reads a Secret of one spoke. What it returns is not to be changed.
type readSecretFunc func(ctx context.Context, key client.ObjectKey) (map[string][]byte, error)

// secrets keeps the content of the Secrets that Proxies refer to. They are watched
// as metadata alone, and read once for each version that this shows, instead of
// once a minute for each Proxy that refers to one.
type secrets struct {
	refs *references

	mu    sync.Mutex
	kept  map[shared]kept
	bytes map[string]int // by spoke
}

// kept is the content of one version of a Secret.
type kept struct {
	version
	data map[string][]byte
	size int
}

// version is which Secret it is, and which state of it. Another cluster under the
// same name counts its resource versions anew.
type version struct {
	cluster         string
	uid             types.UID
	resourceVersion string
}

// newSecrets keeps those that refs knows, as long as it does.
func newSecrets(refs *references) *secrets {
	s := &secrets{refs: refs, kept: map[shared]kept{}, bytes: map[string]int{}}
	refs.forget = s.forget
	return s
}

// of reads the Secrets of a spoke: watched shows which version there is, direct
// reads it.
func (s *secrets) of(spoke, clusterUID string, watched, direct client.Reader) readSecretFunc {
	return func(ctx context.Context, key client.ObjectKey) (map[string][]byte, error) {
		name := shared{spoke, key.Namespace, key.Name}
		shown := &metav1.PartialObjectMetadata{}
		shown.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		// Some types of Secrets are not watched: those are read every time.
		if err := watched.Get(ctx, key, shown); err == nil {
			if data, ok := s.get(name, version{clusterUID, shown.UID, shown.ResourceVersion}); ok {
				return data, nil
			}
		}
		var secret corev1.Secret
		if err := direct.Get(ctx, key, &secret); err != nil {
			return nil, err
		}
		s.refs.ifReferred(name, func() { s.put(name, version{clusterUID, secret.UID, secret.ResourceVersion}, secret.Data) })
		return secret.Data, nil
	}
}

func (s *secrets) get(name shared, of version) (map[string][]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kept[name]
	return k.data, ok && k.version == of
}

func (s *secrets) put(name shared, of version, data map[string][]byte) {
	size := 0
	for key, value := range data {
		size += len(key) + len(value)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(name)
	if size > maxKept || s.bytes[name.cluster]+size > maxKeptOfSpoke {
		return
	}
	s.kept[name] = kept{of, data, size}
	s.bytes[name.cluster] += size
}

// forget drops a Secret that no Proxy refers to any more.
func (s *secrets) forget(name shared) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(name)
}

func (s *secrets) forgetLocked(name shared) {
	k, ok := s.kept[name]
	if !ok {
		return
	}
	delete(s.kept, name)
	if s.bytes[name.cluster] -= k.size; s.bytes[name.cluster] == 0 {
		delete(s.bytes, name.cluster)
	}
}
