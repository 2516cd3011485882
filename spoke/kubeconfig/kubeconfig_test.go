package kubeconfig

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/clientcmd/api/latest"
	v1 "k8s.io/client-go/tools/clientcmd/api/v1"
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
	// As JSON, which can say every string.
	var wire v1.Config
	if err := latest.Scheme.Convert(c, &wire, nil); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(wire)
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

// proxyOf is the proxy that a connection goes through; empty: what the
// environment says.
func proxyOf(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	if cfg.Proxy == nil {
		return ""
	}
	proxy, err := cfg.Proxy(&http.Request{URL: &url.URL{Scheme: "https", Host: "10.0.0.1:6443"}})
	if err != nil {
		t.Fatal(err)
	}
	return proxy.String()
}

// mustRefuse is the refusal, which shows no secret.
func mustRefuse(t testing.TB, raw []byte, o Options) *Refusal {
	t.Helper()
	cfg, err := Vet(raw, o)
	var refusal *Refusal
	if !errors.As(err, &refusal) || cfg != nil {
		t.Fatalf("not refused: %v, %v", cfg, err)
	}
	if strings.Contains(err.Error(), secretToken) {
		t.Errorf("the error shows a secret: %v", err)
	}
	return refusal
}

func TestAGoodKubeconfigBecomesAConnectionOfInlineData(t *testing.T) {
	cert, key := pair(t)
	cfg, err := Vet(file(t,
		cluster(func(c *api.Cluster) {
			c.CertificateAuthorityData, c.TLSServerName, c.DisableCompression = cert, "spoke.example", true
		}),
		user(func(u *api.AuthInfo) { u.ClientCertificateData, u.ClientKeyData = cert, key })), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Host != "https://10.0.0.1:6443" || cfg.BearerToken != secretToken || cfg.ServerName != "spoke.example" || !cfg.DisableCompression ||
		string(cfg.CAData) != string(cert) || string(cfg.CertData) != string(cert) || string(cfg.KeyData) != string(key) || cfg.Insecure || cfg.Proxy != nil {
		t.Errorf("got %v", cfg) // rest.Config hides its secrets when printed
	}
}

func TestServersOfEveryKindAreTaken(t *testing.T) {
	for _, server := range []string{
		"https://10.0.0.1", "https://10.0.0.1:6443", "https://[fd00::1]:6443", "https://[fe80::1%25eth0]:6443", "https://eu-west.example.:443",
		"https://under_score", "https://localhost:1", "https://h:65535", "https://rancher.example/k8s/clusters/c-1",
	} {
		if cfg, err := Vet(file(t, cluster(func(c *api.Cluster) { c.Server = server })), Options{}); err != nil || cfg.Host != server {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// What the hub's flags allow.
var everything = Options{AllowInsecure: true, AllowProxyURL: true}

func TestAServerIsLeftUnverifiedWhereThatIsAllowed(t *testing.T) {
	raw := file(t, cluster(func(c *api.Cluster) { c.InsecureSkipTLSVerify, c.TLSServerName = true, "spoke.example" }))
	cfg, err := Vet(raw, Options{AllowInsecure: true})
	if err != nil || !cfg.Insecure || cfg.ServerName != "spoke.example" {
		t.Errorf("%v, %v", cfg, err)
	}
	if _, err := rest.TLSConfigFor(cfg); err != nil {
		t.Errorf("client-go does not take it: %v", err)
	}
	if cfg, err := Vet(file(t), everything); err != nil || cfg.Insecure || cfg.Proxy != nil {
		t.Errorf("what is allowed is done unasked: %v, %v", cfg, err)
	}
}

func TestAProxyIsUsedWhereThatIsAllowed(t *testing.T) {
	for _, proxy := range []string{
		"http://10.0.0.2:3128", "https://proxy.example", "socks5://[fd00::2]:1080", "http://me:" + secretToken + "@proxy.example:3128", "http://proxy.example:3128/",
	} {
		cfg, err := Vet(file(t, cluster(func(c *api.Cluster) { c.ProxyURL = proxy })), Options{AllowProxyURL: true})
		if err != nil || proxyOf(t, cfg) != proxy {
			t.Errorf("%s: %v, %v", proxy, cfg, err)
		}
	}
}

// wrong is wrong in every way there is, as a user would write it.
const wrong = `
apiVersion: v1
kind: Config
current-context: main
contexts: [{name: main, context: {cluster: c, user: u}}]
clusters:
- name: c
  cluster:
    server: http://me:` + secretToken + `@:99999/?a=b
    certificate-authority: /etc/passwd
    certificate-authority-data: eA==
    insecure-skip-tls-verify: true
    tls-server-name: https://spoke.example
    proxy-url: socks4://me:` + secretToken + `@:0/path?a=b
users:
- name: u
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [/tmp/x], interactiveMode: Never}
    auth-provider: {name: gcp, config: {access-token: ` + secretToken + `}}
    client-certificate: /etc/passwd
    client-certificate-data: eA==
    client-key: /etc/passwd
    client-key-data: eA==
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
    token: "` + secretToken + `\n"
    username: me
    password: ` + secretToken + `
    as: system:admin
    as-uid: "1"
    as-groups: [system:masters]
    as-user-extra: {k: [v]}
`

func TestAllThatIsWrongIsToldAtOnce(t *testing.T) {
	ofUser := []string{
		"exec ", "auth-provider ", "client-certificate names", "client-key names", "tokenFile names", "basic auth", "token has", "not a PEM certificate and its key", "as-groups",
	}
	ofServer := []string{
		"not https", "server carries user info", "server has no host", "server has a port", "server has a query", "certificate-authority names", "no PEM certificate", "tls-server-name",
	}
	for _, tc := range []struct {
		options Options
		says    []string
	}{
		{Options{}, []string{"--allow-insecure-spokes", "--allow-spoke-proxy-url"}},
		{everything, []string{"exclude each other", "another scheme", "proxy-url has no host", "proxy-url has a port", "proxy-url has a path"}},
	} {
		refusal := mustRefuse(t, []byte(wrong), tc.options)
		want := append(append(append([]string{}, ofServer...), tc.says...), ofUser...)
		for _, part := range want {
			if !strings.Contains(refusal.Error(), part) {
				t.Errorf("%+v: not told of %q", tc.options, part)
			}
		}
		if len(refusal.Reasons) != len(want) || !refusal.Forbidden {
			t.Errorf("%+v: %d reasons, forbidden %v; want %d:\n%s", tc.options, len(refusal.Reasons), refusal.Forbidden, len(want), strings.Join(refusal.Reasons, "\n"))
		}
		for _, part := range refusal.Reasons {
			if !strings.Contains(part, ": ") {
				t.Errorf("%q does not say what to do instead", part)
			}
		}
	}
	refusal := mustRefuse(t, file(t, whole(func(c *api.Config) { c.Contexts["main"] = &api.Context{} })), Options{})
	if len(refusal.Reasons) != 2 {
		t.Errorf("a context of nothing: %v", refusal)
	}
}

func TestWhatTheCurrentContextDoesNotUseIsNoReason(t *testing.T) {
	_, err := Vet(file(t, whole(func(c *api.Config) {
		c.AuthInfos["other"] = &api.AuthInfo{Exec: &api.ExecConfig{Command: "x", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: api.NeverExecInteractiveMode}}
		c.Clusters["other"] = &api.Cluster{Server: "http://10.0.0.9", InsecureSkipTLSVerify: true}
	})), Options{})
	if err != nil {
		t.Errorf("refused for a cluster and a user that nobody uses: %v", err)
	}
}
