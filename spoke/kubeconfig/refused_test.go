package kubeconfig

import (
	"bytes"
	"encoding/pem"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd/api"
)

// refused is a kubeconfig that is refused for one reason.
type refused struct {
	name      string
	raw       []byte
	options   Options
	forbidden bool
	says      string // the reason, or a part of it
	instead   string // what to do instead
}

func (tc refused) run(t *testing.T) {
	t.Helper()
	refusal := mustRefuse(t, tc.raw, tc.options)
	text := refusal.Error()
	if len(refusal.Reasons) != 1 || refusal.Forbidden != tc.forbidden || !strings.Contains(text, tc.says) || !strings.Contains(text, tc.instead) {
		t.Errorf("forbidden %v: %s; want one reason, forbidden %v, with %q and %q", refusal.Forbidden, text, tc.forbidden, tc.says, tc.instead)
	}
	if strings.ContainsAny(text, "\n\r\x00") {
		t.Errorf("not one line: %q", text)
	}
}

func TestAFileThatLeadsNowhereIsRefused(t *testing.T) {
	secretTwice := "apiVersion: v1\nkind: Config\nusers: [{name: u, user: {token: " + secretToken + "}}, {name: u, user: {token: " + secretToken + "}}]"
	for _, tc := range []refused{
		{name: "empty", says: "no kubeconfig", instead: "key kubeconfig"},
		{name: "garbage", raw: []byte("\x00\xff"), says: "not a kubeconfig", instead: "kind Config"},
		{name: "a CA that is not base64", raw: []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {certificate-authority-data: BASE64!}}]"), says: "certificate-authority-data is not base64", instead: "PEM"},
		{name: "a key that is not base64", raw: []byte("apiVersion: v1\nkind: Config\nusers: [{name: u, user: {client-key-data: '" + secretToken + "!'}}]"), says: "client-key-data is not base64", instead: "PEM"},
		{name: "YAML of something else", raw: []byte("kind: Pod\napiVersion: v1"), says: "not a kubeconfig", instead: "kind Config"},
		{name: "a secret in broken YAML", raw: []byte("users: [{name: u, user: {token: [" + secretToken + "]}}]\n\t"), says: "not a kubeconfig", instead: "kind Config"},
		{name: "a secret where none can be", raw: []byte("apiVersion: v1\nkind: Config\nusers: " + secretToken), says: "not a kubeconfig", instead: "kind Config"},
		{name: "a name given twice", raw: []byte(secretTwice), says: "not a kubeconfig", instead: "kind Config"},
		{name: "an object of nothing", raw: []byte("{}"), says: "current-context is not set", instead: "set it"},
		{name: "no current-context", raw: file(t, whole(func(c *api.Config) { c.CurrentContext = "" })), says: "current-context is not set", instead: "set it"},
		{name: "current-context that is not there", raw: file(t, whole(func(c *api.Config) { c.CurrentContext = secretToken })), says: "names no context", instead: "set it"},
		{name: "context without a cluster", raw: file(t, whole(func(c *api.Config) { c.Contexts["main"].Cluster = secretToken })), says: "names no cluster", instead: "set its cluster"},
		{name: "context without a user", raw: file(t, whole(func(c *api.Config) { c.Contexts["main"].AuthInfo = secretToken })), says: "names no user", instead: "set its user"},
	} {
		t.Run(tc.name, tc.run)
	}
}

func TestAServerThatIsNoneOfTheHubsBusinessIsRefused(t *testing.T) {
	for _, tc := range []struct {
		server    string
		forbidden bool
		says      string
	}{
		{"", false, "not a URL"},
		{"10.0.0.1:6443", false, "not a URL"},
		{"10.0.0.1", false, "not a URL"},
		{"localhost:6443", false, "not a URL"},
		{"https:10.0.0.1", false, "not a URL"},
		{"https://fd00::1:6443", false, "not a URL"},
		{"https://10.0.0.1:https", false, "not a URL"},
		{"https://me:" + secretToken + "@[", false, "not a URL"},
		{"https://" + strings.Repeat("a", 2100), false, "longer than 2048 bytes"},
		{"https://" + strings.Repeat("a", 300), false, "neither a DNS name nor an IP address"},
		{"https://a<b>", false, "neither a DNS name nor an IP address"},
		{"https://münchen.example", false, "neither a DNS name nor an IP address"},
		{"https://...", false, "neither a DNS name nor an IP address"},
		{"https://[fe80::1%25a%20b]:6443", false, "neither a DNS name nor an IP address"},
		{"https://10.0.0.1:6443\n", false, "a line break"},
		{" https://10.0.0.1:6443", false, "a space"},
		{"https://10.0.0.1:6443/a b", false, "a space"},
		{"https://10.0.0.1:6443/\u200b", false, "character that no URL has"},
		{"https://10.0.0.1\u00a0:6443", false, "character that no URL has"},
		{"https://:6443", false, "server has no host"},
		{"https://", false, "server has no host"},
		{"https:///path", false, "server has no host"},
		{"https://10.0.0.1:", false, "a port that is not from 1 to 65535"},
		{"https://10.0.0.1:0", false, "a port that is not from 1 to 65535"},
		{"https://10.0.0.1:65536", false, "a port that is not from 1 to 65535"},
		{"https://10.0.0.1:99999999999999999999", false, "a port that is not from 1 to 65535"},
		{"https://10.0.0.1/?token=" + secretToken, false, "query or fragment"},
		{"https://10.0.0.1/?", false, "query or fragment"},
		{"https://10.0.0.1/#" + secretToken, false, "query or fragment"},
		{"http://10.0.0.1", true, "not https"},
		{"unix://h/run/apiserver.sock", true, "not https"},
		{"https://me:" + secretToken + "@10.0.0.1", true, "user info"},
		{"https://@10.0.0.1", true, "user info"},
	} {
		instead := "write https://host:port"
		if tc.says == "user info" {
			instead = "remove it"
		}
		t.Run(tc.server, refused{
			raw: file(t, cluster(func(c *api.Cluster) { c.Server = tc.server })), forbidden: tc.forbidden, says: tc.says, instead: instead,
		}.run)
	}
}

func TestAProxyThatIsNoneIsRefusedEvenWhereAProxyIsAllowed(t *testing.T) {
	for proxy, says := range map[string]string{
		"proxy.example:3128":                    "not a URL",
		"localhost:3128":                        "not a URL",
		"proxy.example":                         "not a URL",
		"http://%zz:" + secretToken:             "not a URL",
		"http://me:" + secretToken + " @h:1":    "a space",
		"http://h:3128\n":                       "a line break",
		"ftp://h:3128":                          "another scheme",
		"socks5h://h:1080":                      "another scheme",
		"file://h":                              "another scheme",
		"http://:3128":                          "no host",
		"http://me:" + secretToken + "@":        "no host",
		"http://h:70000":                        "a port that is not",
		"http://me:" + secretToken + "@h:0":     "a port that is not",
		"http://a,b":                            "neither a DNS name nor an IP address",
		"http://h/path":                         "a path, query or fragment",
		"http://h//":                            "a path, query or fragment",
		"http://h?token=" + secretToken:         "a path, query or fragment",
		"http://h#" + secretToken:               "a path, query or fragment",
		"http://h/" + strings.Repeat("x", 3000): "longer than 2048 bytes",
	} {
		t.Run(proxy, refused{
			raw: file(t, cluster(func(c *api.Cluster) { c.ProxyURL = proxy })), options: everything, says: says, instead: "write http://host:port",
		}.run)
	}
}

func TestWhatAClusterMayNotSayIsRefused(t *testing.T) {
	cert, _ := pair(t)
	large := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: make([]byte, maxKey+1)})
	for _, tc := range []refused{
		{name: "file for the CA", raw: file(t, cluster(func(c *api.Cluster) { c.CertificateAuthority = "/etc/passwd" })), forbidden: true,
			says: "certificate-authority names a file", instead: "certificate-authority-data"},
		{name: "CA that is none", raw: file(t, cluster(func(c *api.Cluster) { c.CertificateAuthorityData = []byte(secretToken) })),
			says: "no PEM certificate", instead: "give the base64"},
		{name: "CA that takes for ever", raw: file(t, cluster(func(c *api.Cluster) { c.CertificateAuthorityData = append(bytes.Clone(cert), large...) })),
			says: "more than 16384 bytes", instead: "give certificates alone"},
		{name: "no verification", raw: file(t, cluster(func(c *api.Cluster) { c.InsecureSkipTLSVerify = true })), options: Options{AllowProxyURL: true}, forbidden: true,
			says: "insecure-skip-tls-verify is not allowed: remove it", instead: "--allow-insecure-spokes"},
		{name: "no verification, beside a CA", raw: file(t, cluster(func(c *api.Cluster) { c.InsecureSkipTLSVerify, c.CertificateAuthorityData = true, cert })),
			forbidden: true, says: "insecure-skip-tls-verify is not allowed: remove it", instead: "--allow-insecure-spokes"},
		{name: "no verification and a CA, where that is allowed", raw: file(t, cluster(func(c *api.Cluster) { c.InsecureSkipTLSVerify, c.CertificateAuthorityData = true, cert })),
			options: everything, says: "exclude each other", instead: "remove insecure-skip-tls-verify"},
		{name: "a proxy", raw: file(t, cluster(func(c *api.Cluster) { c.ProxyURL = "http://me:" + secretToken + "@10.0.0.2:3128" })), options: Options{AllowInsecure: true}, forbidden: true,
			says: "proxy-url is not allowed: remove it", instead: "--allow-spoke-proxy-url"},
		{name: "server name that is a URL", raw: file(t, cluster(func(c *api.Cluster) { c.TLSServerName = "https://" + secretToken })),
			says: "tls-server-name", instead: "the name in the server's certificate"},
		{name: "server name of two lines", raw: file(t, cluster(func(c *api.Cluster) { c.TLSServerName = "fe80::1%a\nb" })),
			says: "tls-server-name", instead: "the name in the server's certificate"},
	} {
		t.Run(tc.name, tc.run)
	}
}

func TestWhatAUserMayNotSayIsRefused(t *testing.T) {
	cert, key := pair(t)
	_, other := pair(t)
	token := func(text string) []byte { return file(t, user(func(u *api.AuthInfo) { u.Token = text })) }
	for _, tc := range []refused{
		{name: "exec plugin", raw: file(t, user(func(u *api.AuthInfo) {
			u.Exec = &api.ExecConfig{Command: secretToken, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}
		})), forbidden: true, says: "exec", instead: "ServiceAccount's token"},
		{name: "exec plugin alone", raw: file(t, user(func(u *api.AuthInfo) { u.Token, u.Exec = "", &api.ExecConfig{} })), forbidden: true, says: "exec", instead: "ServiceAccount's token"},
		{name: "auth-provider", raw: file(t, user(func(u *api.AuthInfo) {
			u.AuthProvider = &api.AuthProviderConfig{Name: "gcp", Config: map[string]string{"access-token": secretToken}}
		})), forbidden: true, says: "auth-provider", instead: "ServiceAccount's token"},
		{name: "file for the certificate", raw: file(t, user(func(u *api.AuthInfo) { u.ClientCertificate = "/x" })), forbidden: true, says: "client-certificate names", instead: "client-certificate-data"},
		{name: "file for the key", raw: file(t, user(func(u *api.AuthInfo) { u.ClientKey = "/x" })), forbidden: true, says: "client-key names", instead: "client-key-data"},
		{name: "file for the key of an inlined certificate", raw: file(t, user(func(u *api.AuthInfo) { u.ClientCertificateData, u.ClientKey = cert, "/x" })),
			forbidden: true, says: "client-key names", instead: "client-key-data"},
		{name: "file for the certificate of an inlined key", raw: file(t, user(func(u *api.AuthInfo) { u.ClientCertificate, u.ClientKeyData = "/x", key })),
			forbidden: true, says: "client-certificate names", instead: "client-certificate-data"},
		{name: "file for the token", raw: file(t, user(func(u *api.AuthInfo) { u.TokenFile = "/x" })), forbidden: true, says: "tokenFile", instead: "inline it as token"},
		{name: "basic auth", raw: file(t, user(func(u *api.AuthInfo) { u.Username, u.Password = "me", secretToken })), forbidden: true, says: "basic auth", instead: "ServiceAccount's token"},
		{name: "a password alone", raw: file(t, user(func(u *api.AuthInfo) { u.Token, u.Password = "", secretToken })), forbidden: true, says: "basic auth", instead: "ServiceAccount's token"},
		{name: "impersonation", raw: file(t, user(func(u *api.AuthInfo) { u.Impersonate = "system:admin" })), forbidden: true, says: "impersonation", instead: "remove as"},
		{name: "impersonated groups", raw: file(t, user(func(u *api.AuthInfo) { u.ImpersonateGroups = []string{"system:masters"} })), forbidden: true, says: "impersonation", instead: "as-groups"},
		{name: "impersonated UID", raw: file(t, user(func(u *api.AuthInfo) { u.ImpersonateUID = "1" })), forbidden: true, says: "impersonation", instead: "as-uid"},
		{name: "impersonated extra", raw: file(t, user(func(u *api.AuthInfo) { u.ImpersonateUserExtra = map[string][]string{"k": {"v"}} })), forbidden: true, says: "impersonation", instead: "as-user-extra"},
		{name: "certificate without its key", raw: file(t, user(func(u *api.AuthInfo) { u.ClientCertificateData = cert })), says: "its key", instead: "give the base64 of both"},
		{name: "key without its certificate", raw: file(t, user(func(u *api.AuthInfo) { u.ClientKeyData = key })), says: "its key", instead: "give the base64 of both"},
		{name: "somebody else's key", raw: file(t, user(func(u *api.AuthInfo) { u.ClientCertificateData, u.ClientKeyData = cert, other })), says: "its key", instead: "of one pair"},
		{name: "a key that takes for ever", raw: file(t, user(func(u *api.AuthInfo) { u.ClientCertificateData, u.ClientKeyData = cert, bytes.Repeat(key, 100) })),
			says: "more than 16384 bytes", instead: "give one private key alone"},
		{name: "no credential", raw: token(""), says: "no credential", instead: "give a token"},
		{name: "token with a line break at its end", raw: token(secretToken + "\n"), says: "most likely a line break at its end", instead: "give the token alone"},
		{name: "token of two lines", raw: token(secretToken + "\r\nX-Other: 1"), says: "a character that a token cannot have", instead: "give the token alone"},
		{name: "token with a space", raw: token("Bearer " + secretToken), says: "a character that a token cannot have", instead: "give the token alone"},
		{name: "token with a control character", raw: token(secretToken + "\x00"), says: "a character that a token cannot have", instead: "give the token alone"},
		{name: "token out of a chat", raw: token(secretToken + "\u00a0"), says: "a character that a token cannot have", instead: "give the token alone"},
	} {
		t.Run(tc.name, tc.run)
	}
}
