package kubeconfig

import (
	"crypto/tls"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

// vetUser takes the user by value: every field that it has dealt with is
// blanked, and what is left is refused.
func vetUser(u api.AuthInfo, cfg *rest.Config, r *Refusal) {
	before := len(r.Reasons)
	refuseIndirect(&u, r)
	if u.Token != "" && strings.ContainsFunc(u.Token, notInToken) {
		r.invalid("token has a character that a token cannot have, most likely a line break at its end: give the token alone")
	}
	vetKeyPair(&u, r)
	if len(r.Reasons) == before && u.Token == "" && len(u.ClientCertificateData) == 0 {
		r.invalid("the user has no credential: give a token, or client-certificate-data and client-key-data")
	}
	if u.Impersonate != "" || u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateUserExtra) > 0 {
		r.forbid("impersonation is not allowed: remove as, as-uid, as-groups and as-user-extra")
	}
	cfg.BearerToken = u.Token
	cfg.CertData, cfg.KeyData = u.ClientCertificateData, u.ClientKeyData

	u.Exec, u.AuthProvider = nil, nil
	u.ClientCertificate, u.ClientKey, u.TokenFile = "", "", ""
	u.ClientCertificateData, u.ClientKeyData, u.Token = nil, nil, ""
	u.Username, u.Password = "", ""
	u.Impersonate, u.ImpersonateUID, u.ImpersonateGroups, u.ImpersonateUserExtra = "", "", nil, nil
	u.LocationOfOrigin, u.Extensions = "", nil // about the file; nothing that connects reads them
	refuseRest("user", u, r)
}

// refuseIndirect refuses every credential that is not in the kubeconfig itself,
// and basic auth.
func refuseIndirect(u *api.AuthInfo, r *Refusal) {
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
}

// notInToken: a token goes into a header as it is, and is made of visible ASCII.
func notInToken(c rune) bool { return c <= ' ' || c > '~' }

// vetKeyPair checks the client certificate. A half that is missing because a
// file is named in its place has been refused already.
func vetKeyPair(u *api.AuthInfo, r *Refusal) {
	cert, key := u.ClientCertificateData, u.ClientKeyData
	switch {
	case len(cert) == 0 && (len(key) == 0 || u.ClientCertificate != ""):
	case len(key) == 0 && u.ClientKey != "":
	case len(key) > maxKey:
		r.invalid("client-key-data is more than %d bytes: give one private key alone", maxKey)
	default:
		// Its error stays here: it may tell of the key.
		if _, err := tls.X509KeyPair(cert, key); err != nil {
			r.invalid("client-certificate-data and client-key-data are not a PEM certificate and its key: give the base64 of both, of one pair")
		}
	}
}
