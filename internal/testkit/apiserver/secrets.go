package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func secrets() *resource {
	kind := corev1.SchemeGroupVersion.WithKind("Secret")
	return &resource{
		kind: kind, plural: "secrets", labelled: true,
		blank:      func() client.Object { return &corev1.Secret{} },
		selectable: func(o client.Object) fields.Set { return fields.Set{"type": string(o.(*corev1.Secret).Type)} },
		keep: func(old, next client.Object, _ bool) error {
			o, n := old.(*corev1.Secret), next.(*corev1.Secret)
			plain(n)
			frozen := ptr.Deref(o.Immutable, false)
			if o.Type == n.Type && (!frozen || equality.Semantic.DeepEqual(o.Data, n.Data) && ptr.Deref(n.Immutable, false)) {
				return nil
			}
			return apierrors.NewInvalid(kind.GroupKind(), o.Name, field.ErrorList{field.Forbidden(field.NewPath("data"), "field is immutable")})
		},
		stamp: func(_, next client.Object) { plain(next.(*corev1.Secret)) },
	}
}

// plain is the Secret as it is kept: with a type, and all data in one place.
func plain(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	for key, value := range s.StringData {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

// PutSecret creates or replaces a Secret, as Put does a Proxy.
func (c *Cluster) PutSecret(s *corev1.Secret) { c.put(c.secrets, s) }

// RemoveSecret deletes a Secret, as Remove does a Proxy.
func (c *Cluster) RemoveSecret(namespace, name string) { c.drop(c.secrets, namespace, name) }

// Secret is a copy of a Secret, nil if it is not there.
func (c *Cluster) Secret(namespace, name string) *corev1.Secret {
	return copied[*corev1.Secret](c, c.secrets, namespace, name)
}

// Secrets are copies of the Secrets of a namespace, or of all if it is empty, in order.
func (c *Cluster) Secrets(namespace string) []*corev1.Secret {
	return allCopied[*corev1.Secret](c, c.secrets, namespace)
}
