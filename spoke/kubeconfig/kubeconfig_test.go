package kubeconfig

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const secretToken = "s3cret-token-of-a-service-account"

// file builds a good kubeconfig, changed by edits.
func file(t testing.TB, edits ...func(*api.Cluster, *api.AuthInfo, *api.Config)) []byte {
	t.Helper()
	cluster := &api.Cluster{Server: "https://10.0.0.1:6443"}
	user := &api.AuthInfo{Token: secretToken}
	c := api.NewConfig()
	c.CurrentContext = "main"
	c.Contexts["main"] = &api.Context{Cluster: "c", AuthInfo: "u"}
	c.Clusters["c"], c.AuthInfos["u"] = cluster, user
	for _, edit := range edits {
		edit(cluster, user, c)
	}
	raw, err := clientcmd.Write(*c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func cluster(edit func(*api.Cluster)) func(*api.Cluster, *api.AuthInfo, *api.Config) {
	return func(c *api.Cluster, _ *api.AuthInfo, _ *api.Config) { edit(c) }
}

func user(edit func(*api.AuthInfo)) func(*api.Cluster, *api.AuthInfo, *api.Config) {
	return func(_ *api.Cluster, u *api.AuthInfo, _ *api.Config) { edit(u) }
}

func whole(edit func(*api.Config)) func(*api.Cluster, *api.AuthInfo, *api.Config) {
	return func(_ *api.Cluster, _ *api.AuthInfo, c *api.Config) { edit(c) }
}

// pair is a self-signed certificate and its key, PEM.
func pair(t testing.TB) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func TestAGoodKubeconfigBecomesAConnectionOfInlineData(t *testing.T) {
	cert, key := pair(t)
	cfg, err := Vet(file(t,
		cluster(func(c *api.Cluster) { c.CertificateAuthorityData, c.TLSServerName = cert, "spoke.example" }),
		user(func(u *api.AuthInfo) { u.ClientCertificateData, u.ClientKeyData = cert, key })))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Host != "https://10.0.0.1:6443" || cfg.BearerToken != secretToken || cfg.ServerName != "spoke.example" ||
		string(cfg.CAData) != string(cert) || string(cfg.CertData) != string(cert) || string(cfg.KeyData) != string(key) {
		t.Errorf("got %v", cfg) // rest.Config hides its secrets when printed
	}
}

func TestWhatIsRefused(t *testing.T) {
	cert, _ := pair(t)
	for _, tc := range []struct {
		name      string
		raw       []byte
		forbidden bool
		says      string
	}{
		{"empty", nil, false, "key kubeconfig"},
		{"garbage", []byte("\x00\xff"), false, "not a kubeconfig"},
		{"YAML of something else", []byte("kind: Pod\napiVersion: v1"), false, "not a kubeconfig"},
		{"a secret in broken YAML", []byte("users: [{name: u, user: {token: [" + secretToken + "]}}]\n\t"), false, "not a kubeconfig"},
		{"no current-context", file(t, whole(func(c *api.Config) { c.CurrentContext = "" })), false, "current-context is not set"},
		{"current-context that is not there", file(t, whole(func(c *api.Config) { c.CurrentContext = "x" })), false, "names no context"},
		{"context without a cluster", file(t, whole(func(c *api.Config) { c.Contexts["main"].Cluster = "x" })), false, "names no cluster"},
		{"context without a user", file(t, whole(func(c *api.Config) { c.Contexts["main"].AuthInfo = "x" })), false, "names no user"},
		{"plain http", file(t, cluster(func(c *api.Cluster) { c.Server = "http://10.0.0.1" })), true, "not https"},
		{"no server", file(t, cluster(func(c *api.Cluster) { c.Server = "" })), false, "not a URL"},
		{"user info in the server", file(t, cluster(func(c *api.Cluster) { c.Server = "https://me:" + secretToken + "@10.0.0.1" })), true, "user info"},
		{"query in the server", file(t, cluster(func(c *api.Cluster) { c.Server = "https://10.0.0.1/?token=" + secretToken })), false, "query"},
		{"fragment in the server", file(t, cluster(func(c *api.Cluster) { c.Server = "https://10.0.0.1/#" + secretToken })), false, "query or fragment"},
		{"file for the CA", file(t, cluster(func(c *api.Cluster) { c.CertificateAuthority = "/etc/passwd" })), true, "certificate-authority-data"},
		{"CA that is none", file(t, cluster(func(c *api.Cluster) { c.CertificateAuthorityData = []byte("x") })), false, "no PEM certificate"},
		{"no verification", file(t, cluster(func(c *api.Cluster) { c.InsecureSkipTLSVerify = true })), true, "insecure-skip-tls-verify"},
		{"a proxy", file(t, cluster(func(c *api.Cluster) { c.ProxyURL = "http://10.0.0.2:3128" })), true, "proxy-url"},
		{"exec plugin", file(t, user(func(u *api.AuthInfo) {
			u.Exec = &api.ExecConfig{Command: "touch", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}
		})), true, "exec"},
		{"auth-provider", file(t, user(func(u *api.AuthInfo) { u.AuthProvider = &api.AuthProviderConfig{Name: "gcp"} })), true, "auth-provider"},
		{"file for the certificate", file(t, user(func(u *api.AuthInfo) { u.ClientCertificate = "/x" })), true, "client-certificate-data"},
		{"file for the key", file(t, user(func(u *api.AuthInfo) { u.ClientKey = "/x" })), true, "client-key-data"},
		{"file for the token", file(t, user(func(u *api.AuthInfo) { u.TokenFile = "/x" })), true, "tokenFile"},
		{"basic auth", file(t, user(func(u *api.AuthInfo) { u.Username, u.Password = "me", secretToken })), true, "basic auth"},
		{"impersonation", file(t, user(func(u *api.AuthInfo) { u.Impersonate = "system:admin" })), true, "impersonation"},
		{"impersonated groups", file(t, user(func(u *api.AuthInfo) { u.ImpersonateGroups = []string{"system:masters"} })), true, "impersonation"},
		{"impersonated UID", file(t, user(func(u *api.AuthInfo) { u.ImpersonateUID = "1" })), true, "impersonation"},
		{"impersonated extra", file(t, user(func(u *api.AuthInfo) { u.ImpersonateUserExtra = map[string][]string{"k": {"v"}} })), true, "impersonation"},
		{"certificate without its key", file(t, user(func(u *api.AuthInfo) { u.ClientCertificateData = cert })), false, "its key"},
		{"no credential", file(t, user(func(u *api.AuthInfo) { u.Token = "" })), false, "no credential"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := Vet(tc.raw)
			var refusal *Refusal
			if !errors.As(err, &refusal) || cfg != nil {
				t.Fatalf("not refused: %v, %v", cfg, err)
			}
			if refusal.Forbidden != tc.forbidden || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("forbidden %v: %v; want %v with %q", refusal.Forbidden, err, tc.forbidden, tc.says)
			}
			if strings.Contains(err.Error(), secretToken) {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestAllThatIsWrongIsToldAtOnce(t *testing.T) {
	_, err := Vet(file(t,
		cluster(func(c *api.Cluster) { c.InsecureSkipTLSVerify, c.CertificateAuthority = true, "/x" }),
		user(func(u *api.AuthInfo) { u.TokenFile, u.Impersonate = "/x", "admin" })))
	var refusal *Refusal
	if !errors.As(err, &refusal) || len(refusal.Reasons) != 4 {
		t.Errorf("want four reasons: %v", err)
	}
}

func TestWhatTheCurrentContextDoesNotUseIsNoReason(t *testing.T) {
	_, err := Vet(file(t, whole(func(c *api.Config) {
		c.AuthInfos["other"] = &api.AuthInfo{Exec: &api.ExecConfig{Command: "x", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}}
	})))
	if err != nil {
		t.Errorf("refused for a user that nobody uses: %v", err)
	}
}

// FuzzVet: whatever the bytes, the answer is a connection of inline data or a
// refusal with a reason.
func FuzzVet(f *testing.F) {
	f.Add(file(f))
	f.Add([]byte("{"))
	f.Add([]byte("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a}]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		cfg, err := Vet(raw)
		var refusal *Refusal
		switch {
		case err == nil && (cfg.ExecProvider != nil || cfg.AuthProvider != nil || cfg.BearerTokenFile != "" || cfg.CAFile != "" ||
			cfg.CertFile != "" || cfg.KeyFile != "" || cfg.Insecure || cfg.Username != "" || cfg.Impersonate.UserName != "" || !strings.HasPrefix(cfg.Host, "https://")):
			t.Errorf("a connection of more than inline data: %v", cfg)
		case err != nil && (!errors.As(err, &refusal) || len(refusal.Reasons) == 0):
			t.Errorf("no reason: %v", err)
		}
	})
}
