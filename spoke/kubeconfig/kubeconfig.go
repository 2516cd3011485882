// Package kubeconfig turns the bytes of a spoke's kubeconfig into a connection
// made of inline data alone.
//
// A kubeconfig is a program in disguise: it can name commands to run, files to
// read and servers to send what was read to. This one comes from whoever may
// write a Secret, and is read by a hub that holds the keys of every cluster. So
// the file is parsed, compared with a list of what is allowed, and a
// rest.Config is built anew from the allowed values. Nothing named in it is
// executed or opened, no value of it appears in an error, and nothing in it
// takes long to read: not even a private key of a megabyte.
//
// What it trades away: a field that is not on the list is refused even if it
// would be harmless, so a client-go that learns a new one needs a decision
// here before anybody can use it; a test fails until it is made. Only what
// the current-context leads to is looked at. Vetting knows no clock and no
// network: whether a certificate has expired is for the connection to find out.
package kubeconfig

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Options allow what is refused without them. The zero value is the strictest.
type Options struct {
	// AllowInsecure takes insecure-skip-tls-verify: the server is not verified.
	AllowInsecure bool
	// AllowProxyURL takes proxy-url: whoever writes the kubeconfig says where
	// the hub connects to, and by which protocol.
	AllowProxyURL bool
}

// maxKey bounds, in bytes, a private key and a certificate authority's
// certificate. Arithmetic with a number of a megabyte takes a core for a
// minute; an RSA key of 16384 bits takes 13 KiB.
const maxKey = 16 << 10

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
func Vet(raw []byte, o Options) (*rest.Config, error) {
	r := &Refusal{}
	if len(raw) == 0 {
		r.invalid("there is no kubeconfig: put it under the Secret's key kubeconfig")
		return nil, r
	}
	file, err := clientcmd.Load(raw)
	if err != nil {
		r.invalid("%s", unreadable(raw))
		return nil, r
	}
	cluster, user := current(file, r)
	cfg := &rest.Config{}
	if cluster != nil {
		vetCluster(*cluster, o, cfg, r)
	}
	if user != nil {
		vetUser(*user, cfg, r)
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
		r.invalid("current-context names no context of this kubeconfig: set it to the name of one")
		return nil, nil
	}
	cluster, user := file.Clusters[context.Cluster], file.AuthInfos[context.AuthInfo]
	if cluster == nil {
		r.invalid("the current context names no cluster of this kubeconfig: set its cluster to the name of one")
	}
	if user == nil {
		r.invalid("the current context names no user of this kubeconfig: set its user to the name of one")
	}
	return cluster, user
}

// vetCluster takes the cluster by value: every field that it has dealt with is
// blanked, and what is left is refused.
func vetCluster(c api.Cluster, o Options, cfg *rest.Config, r *Refusal) {
	vetServer(c.Server, cfg, r)
	if c.CertificateAuthority != "" {
		r.forbid("certificate-authority names a file: inline it as certificate-authority-data")
	}
	vetAuthority(c.CertificateAuthorityData, cfg, r)
	switch {
	case !c.InsecureSkipTLSVerify:
	case !o.AllowInsecure:
		r.forbid("insecure-skip-tls-verify is not allowed: " +
			"remove it and give certificate-authority-data, or start the hub with --allow-insecure-spokes")
	case len(c.CertificateAuthorityData) > 0 || c.CertificateAuthority != "":
		r.invalid("insecure-skip-tls-verify and certificate-authority-data exclude each other: " +
			"remove insecure-skip-tls-verify for a server that is verified, certificate-authority-data for one that is not")
	default:
		cfg.Insecure = true
	}
	if c.TLSServerName != "" && !isHost(c.TLSServerName) {
		r.invalid("tls-server-name is neither a DNS name nor an IP address: write the name in the server's certificate, without https:// and port")
	}
	cfg.ServerName = c.TLSServerName
	switch {
	case c.ProxyURL == "":
	case !o.AllowProxyURL:
		r.forbid("proxy-url is not allowed: remove it, or start the hub with --allow-spoke-proxy-url")
	default:
		vetProxyURL(c.ProxyURL, cfg, r)
	}
	cfg.DisableCompression = c.DisableCompression

	c.Server, c.TLSServerName, c.ProxyURL = "", "", ""
	c.CertificateAuthority, c.CertificateAuthorityData = "", nil
	c.InsecureSkipTLSVerify, c.DisableCompression = false, false
	c.LocationOfOrigin, c.Extensions = "", nil // about the file; nothing that connects reads them
	refuseRest("cluster", c, r)
}

// vetAuthority checks the certificates that the server is verified with.
func vetAuthority(data []byte, cfg *rest.Config, r *Refusal) {
	for block, more := pem.Decode(data); block != nil; block, more = pem.Decode(more) {
		if len(block.Bytes) > maxKey {
			r.invalid("certificate-authority-data holds a block of more than %d bytes: give certificates alone", maxKey)
			return
		}
	}
	if len(data) > 0 && !x509.NewCertPool().AppendCertsFromPEM(data) {
		r.invalid("certificate-authority-data holds no PEM certificate: give the base64 of at least one")
	}
	cfg.CAData = data
}

// refuseRest refuses the fields of a struct that are still set. The name is
// client-go's, so nothing of the kubeconfig is quoted.
func refuseRest(where string, left any, r *Refusal) {
	for field, value := range reflect.ValueOf(left).Fields() {
		if value.IsZero() {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			name = field.Name
		}
		r.forbid("%s of the %s is not known to this hub and not allowed: remove it", name, where)
	}
}
