// Package kubeconfig turns the bytes of a spoke's kubeconfig into a connection
// made of inline data alone.
//
// A kubeconfig is a program in disguise: it can name commands to run, files to
// read and servers to send what was read to. This one comes from whoever may
// write a Secret, and is read by a hub that holds the keys of every cluster. So
// the file is parsed, compared with a list of what is allowed, and a
// rest.Config is built anew from the allowed values. Nothing named in it is
// executed or opened, and no value of it appears in an error.
package kubeconfig

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Refusal says why a kubeconfig is not used.
type Refusal struct {
	// Forbidden tells what is not allowed from what is merely wrong.
	Forbidden bool
	// Reasons are all that is wrong, a sentence each, without any secret.
	Reasons []string
}

// Error joins the reasons.
func (r *Refusal) Error() string { return strings.Join(r.Reasons, "; ") }

func (r *Refusal) invalid(format string, args ...any) {
	r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...))
}

func (r *Refusal) forbid(format string, args ...any) {
	r.Forbidden = true
	r.invalid(format, args...)
}

// Vet reads a kubeconfig and returns the connection of its current-context, or
// a *Refusal with everything that is wrong with it. It is a pure function.
func Vet(raw []byte) (*rest.Config, error) {
	r := &Refusal{}
	if len(raw) == 0 {
		r.invalid("there is no kubeconfig: put it under the Secret's key kubeconfig")
		return nil, r
	}
	file, err := clientcmd.Load(raw)
	if err != nil {
		// The parser's own words may quote the file.
		r.invalid("this is not a kubeconfig: it is not YAML or JSON of kind Config, apiVersion v1")
		return nil, r
	}
	cluster, user := current(file, r)
	cfg := &rest.Config{}
	if cluster != nil {
		vetCluster(cluster, cfg, r)
	}
	if user != nil {
		vetUser(user, cfg, r)
	}
	if len(r.Reasons) > 0 {
		return nil, r
	}
	return cfg, nil
}

// current returns what the current-context leads to; nil where it leads nowhere.
func current(file *api.Config, r *Refusal) (*api.Cluster, *api.AuthInfo) {
	if file.CurrentContext == "" {
		r.invalid("current-context is not set: set it to the context that the hub shall use")
		return nil, nil
	}
	context := file.Contexts[file.CurrentContext]
	if context == nil {
		r.invalid("current-context names no context of this kubeconfig")
		return nil, nil
	}
	cluster, user := file.Clusters[context.Cluster], file.AuthInfos[context.AuthInfo]
	if cluster == nil {
		r.invalid("the current context names no cluster of this kubeconfig")
	}
	if user == nil {
		r.invalid("the current context names no user of this kubeconfig")
	}
	return cluster, user
}

func vetCluster(c *api.Cluster, cfg *rest.Config, r *Refusal) {
	server, err := url.Parse(c.Server)
	switch {
	case err != nil || server.Host == "":
		r.invalid("server is not a URL: write https://host:port")
	case server.Scheme != "https":
		r.forbid("server is not https: write https://host:port")
	case server.User != nil:
		r.forbid("server carries user info: remove it")
	case server.RawQuery != "" || server.Fragment != "" || server.ForceQuery:
		r.invalid("server has a query or fragment: write https://host:port")
	default:
		cfg.Host = strings.TrimSuffix(server.String(), "/")
	}
	if c.CertificateAuthority != "" {
		r.forbid("certificate-authority names a file: inline it as certificate-authority-data")
	}
	if c.InsecureSkipTLSVerify {
		r.forbid("insecure-skip-tls-verify is not allowed: give certificate-authority-data instead")
	}
	if c.ProxyURL != "" {
		r.forbid("proxy-url is not allowed: remove it")
	}
	if len(c.CertificateAuthorityData) > 0 && !x509.NewCertPool().AppendCertsFromPEM(c.CertificateAuthorityData) {
		r.invalid("certificate-authority-data holds no PEM certificate")
	}
	cfg.TLSClientConfig.CAData = c.CertificateAuthorityData
	cfg.TLSClientConfig.ServerName = c.TLSServerName
}

func vetUser(u *api.AuthInfo, cfg *rest.Config, r *Refusal) {
	if u.Exec != nil {
		r.forbid("exec credential plugins are not run: use a ServiceAccount's token")
	}
	if u.AuthProvider != nil {
		r.forbid("auth-provider plugins are not run: use a ServiceAccount's token")
	}
	for _, file := range []struct{ key, path, instead string }{
		{"client-certificate", u.ClientCertificate, "client-certificate-data"},
		{"client-key", u.ClientKey, "client-key-data"},
		{"tokenFile", u.TokenFile, "token"},
	} {
		if file.path != "" {
			r.forbid("%s names a file: inline it as %s", file.key, file.instead)
		}
	}
	if u.Username != "" || u.Password != "" {
		r.forbid("basic auth is not allowed: use a ServiceAccount's token")
	}
	if u.Impersonate != "" || u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateUserExtra) > 0 {
		r.forbid("impersonation is not allowed: remove the as fields")
	}
	cert, key := u.ClientCertificateData, u.ClientKeyData
	if len(cert) > 0 || len(key) > 0 {
		if _, err := tls.X509KeyPair(cert, key); err != nil {
			r.invalid("client-certificate-data and client-key-data are not a PEM certificate and its key")
		}
	}
	if len(r.Reasons) == 0 && u.Token == "" && len(cert) == 0 {
		r.invalid("the user has no credential: give a token, or client-certificate-data and client-key-data")
	}
	cfg.BearerToken = u.Token
	cfg.TLSClientConfig.CertData, cfg.TLSClientConfig.KeyData = cert, key
}
