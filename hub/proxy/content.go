package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/internal/provider"
	"github.com/proxyfleet/proxy-operator/spoke/pod"
)

// contentError says why what an instance is made of cannot be had: something
// that only the user can repair. Its words hold no content.
type contentError struct {
	reason, message string
}

func (e *contentError) Error() string { return e.message }

// readFiles reads the content that the spec refers to. A *contentError is for
// the user; anything else may go by itself.
func readFiles(ctx context.Context, read readSecretFunc, p *v1alpha1.Proxy) (map[string][]byte, error) {
	files := map[string][]byte{}
	if ci := p.Spec.CloudInit; ci != nil {
		content := []byte(ci.Inline)
		if ref := ci.SecretRef; ref != nil {
			key := cmp.Or(ref.Key, v1alpha1.DefaultCloudInitKey)
			data, err := readSecret(ctx, read, p.Namespace, ref.Name, "cloud-init", v1alpha1.ReasonCloudInitError)
			if err != nil {
				return nil, err
			}
			value, ok := data[key]
			if !ok {
				return nil, &contentError{v1alpha1.ReasonCloudInitError, fmt.Sprintf("cloud-init: Secret %s has no key %s: add it, or name another in spec.cloudInit.secretRef", ref.Name, key)}
			}
			content = value
		}
		files[provider.FileUserData] = content
	}
	credentials, err := readCredentials(ctx, read, p)
	if err != nil {
		return nil, err
	}
	if credentials != nil {
		files[provider.FileUsername], files[provider.FilePassword] = []byte(credentials.Username), []byte(credentials.Password)
	}
	if err := readCertificate(ctx, read, p, files); err != nil {
		return nil, err
	}
	size := 0
	for _, content := range files {
		size += len(content)
	}
	if size > provider.MaxFiles {
		return nil, &contentError{v1alpha1.ReasonPermanentError, fmt.Sprintf(
			"cloud-init, credentials and certificate are %d bytes together, and may be %d: let cloud-init fetch what is large", size, provider.MaxFiles)}
	}
	return files, nil
}

// readCredentials reads what spec.authSecretRef refers to; nil where it is absent.
func readCredentials(ctx context.Context, read readSecretFunc, p *v1alpha1.Proxy) (*fleet.Credentials, error) {
	if p.Spec.AuthSecretRef == nil {
		return nil, nil
	}
	name := p.Spec.AuthSecretRef.Name
	data, err := readSecret(ctx, read, p.Namespace, name, "credentials", v1alpha1.ReasonTransientError)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, key := range []string{provider.FileUsername, provider.FilePassword} {
		if len(data[key]) == 0 {
			missing = append(missing, key)
		}
	}
	username := string(data[provider.FileUsername])
	switch {
	case len(missing) > 0:
		return nil, &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("credentials: Secret %s has no %s: it needs the keys username and password", name, strings.Join(missing, " and no "))}
	case strings.ContainsFunc(username+string(data[provider.FilePassword]), unicode.IsControl):
		return nil, &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("credentials: Secret %s has a line break or another control character in username or password, which HTTP does not allow: mind that echo ends its output with one", name)}
	case strings.Contains(username, ":") && p.Spec.Protocol != v1alpha1.ProtocolSOCKS5:
		return nil, &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("credentials: the username in Secret %s has a colon in it, which HTTP does not allow: choose another", name)}
	}
	most := maxCredential
	if p.Spec.Protocol == v1alpha1.ProtocolSOCKS5 {
		most = maxSOCKSCredential
	}
	if max(len(username), len(data[provider.FilePassword])) > most {
		return nil, &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("credentials: username or password in Secret %s is longer than the %d bytes that a client can send: choose a shorter one", name, most)}
	}
	return &fleet.Credentials{Username: username, Password: string(data[provider.FilePassword])}, nil
}

// maxCredential is what a username or password may have in bytes so that both,
// encoded, fit into a header that every proxy takes; maxSOCKSCredential is RFC 1929's.
const maxCredential, maxSOCKSCredential = 1024, 255

// readCertificate adds what a Managed instance proves itself with.
func readCertificate(ctx context.Context, read readSecretFunc, p *v1alpha1.Proxy, files map[string][]byte) error {
	if p.Spec.TLS == nil || p.Spec.TLS.SecretRef == nil {
		return nil
	}
	name := p.Spec.TLS.SecretRef.Name
	data, err := readSecret(ctx, read, p.Namespace, name, "certificate", v1alpha1.ReasonTransientError)
	if err != nil {
		return err
	}
	certificate, key := data[provider.FileCertificate], data[provider.FileKey]
	if len(certificate) == 0 || len(key) == 0 {
		return &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("certificate: Secret %s needs the keys tls.crt and tls.key, like one of type kubernetes.io/tls", name)}
	}
	if _, err := tls.X509KeyPair(certificate, key); err != nil { // its words may quote
		wrong := "tls.key is not the unencrypted PEM key of the certificate in tls.crt"
		if _, err := fleet.ParseAuthorities(certificate); err != nil {
			wrong = "tls.crt holds no PEM certificate that can be read"
		}
		return &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("certificate: in Secret %s, %s", name, wrong)}
	}
	files[provider.FileCertificate], files[provider.FileKey] = certificate, key
	return nil
}

// readAuthorities reads who signs the certificate of the proxy; nil where the spec
// does not say.
func readAuthorities(ctx context.Context, read readSecretFunc, p *v1alpha1.Proxy) (*fleet.Authorities, error) {
	if p.Spec.TLS == nil || p.Spec.TLS.CASecretRef == nil {
		return nil, nil
	}
	ref := p.Spec.TLS.CASecretRef
	key := cmp.Or(ref.Key, v1alpha1.DefaultCAKey)
	data, err := readSecret(ctx, read, p.Namespace, ref.Name, "authorities", v1alpha1.ReasonTransientError)
	if err != nil {
		return nil, err
	}
	content, ok := data[key]
	switch {
	case !ok:
		return nil, &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("authorities: Secret %s has no key %s: add it, or name another in spec.tls.caSecretRef", ref.Name, key)}
	case len(content) > provider.MaxFiles:
		return nil, &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("authorities: %s in Secret %s is %d bytes, and may be %d: every lease repeats it", key, ref.Name, len(content), provider.MaxFiles)}
	}
	authorities, err := fleet.ParseAuthorities(content)
	if err != nil {
		return nil, &contentError{v1alpha1.ReasonTransientError, fmt.Sprintf("authorities: %s in Secret %s: %v", key, ref.Name, err)}
	}
	return authorities, nil
}

func readSecret(ctx context.Context, read readSecretFunc, namespace, name, what, reason string) (map[string][]byte, error) {
	data, err := read(ctx, client.ObjectKey{Namespace: namespace, Name: name})
	if err == nil {
		return data, nil
	}
	// A cluster's Secrets are read whatever the provider; what its API server
	// means is said in one place.
	switch err = pod.Classified(err); {
	case errors.Is(err, provider.ErrNotFound):
		return nil, &contentError{reason, fmt.Sprintf("%s: there is no Secret %s in namespace %s: make it", what, name, namespace)}
	default:
		return nil, fmt.Errorf("%s: read secret %s: %w", what, name, err)
	}
}
