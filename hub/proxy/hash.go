package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// hashed is what an instance is made of, as the user wrote it. The hub's own
// defaults are left out, so that a changed flag replaces nothing. Fields may be
// added with omitempty; anything else needs a new version prefix.
type hashed struct {
	Provider   v1alpha1.ProviderName    `json:"provider"`
	Protocol   v1alpha1.Protocol        `json:"protocol"`
	Port       int32                    `json:"port"`
	Kubernetes *v1alpha1.KubernetesSpec `json:"kubernetes,omitempty"`
}

// specHash names the spec that an instance runs: "v1-" and 32 hex digits of a
// SHA-256, short enough for a label.
func specHash(spec *v1alpha1.ProxySpec) (string, error) {
	h := hashed{Provider: spec.Provider, Protocol: spec.Protocol, Port: spec.ListenPort()}
	if spec.Kubernetes != nil && *spec.Kubernetes != (v1alpha1.KubernetesSpec{}) {
		h.Kubernetes = spec.Kubernetes
	}
	raw, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("hash spec: %w", err)
	}
	sum := sha256.Sum256(raw)
	return "v1-" + hex.EncodeToString(sum[:16]), nil
}
