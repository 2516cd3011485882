package kubeconfig

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

// mark is part of every secret of a fuzzed kubeconfig.
const mark = "s3cret"

// mustHold: whatever comes in and whatever is allowed, the answer is a
// connection of inline data or a refusal with reasons that show no secret.
func mustHold(t *testing.T, raw []byte) {
	t.Helper()
	var accepted *rest.Config // with nothing allowed
	for _, o := range []Options{{}, {AllowInsecure: true}, {AllowProxyURL: true}, everything} {
		cfg, err := Vet(raw, o)
		if err != nil {
			var refusal *Refusal
			if cfg != nil || !errors.As(err, &refusal) || len(refusal.Reasons) == 0 {
				t.Errorf("%+v: no reason: %v", o, err)
			}
			if text := err.Error(); strings.Contains(text, mark) || strings.ContainsAny(text, "\n\r\x00") || len(text) > 4096 {
				t.Errorf("%+v: a secret, or no sentence: %q", o, text)
			}
			if accepted != nil {
				t.Errorf("%+v: what is taken with nothing allowed is refused: %v", o, err)
			}
			continue
		}
		mustBeInline(t, cfg, o)
		if o == (Options{}) {
			accepted = cfg
		} else if accepted != nil && (cfg.Insecure || cfg.Proxy != nil || cfg.Host != accepted.Host) {
			t.Errorf("%+v: another connection than with nothing allowed", o)
		}
	}
}

func mustBeInline(t *testing.T, cfg *rest.Config, o Options) {
	t.Helper()
	if cfg.ExecProvider != nil || cfg.AuthProvider != nil || cfg.BearerTokenFile != "" || cfg.CAFile != "" || cfg.CertFile != "" || cfg.KeyFile != "" ||
		cfg.Username != "" || cfg.Password != "" || cfg.Impersonate.UserName != "" || cfg.Impersonate.UID != "" ||
		len(cfg.Impersonate.Groups)+len(cfg.Impersonate.Extra) > 0 {
		t.Errorf("a connection of more than inline data: %v", cfg)
	}
	if cfg.Insecure && (!o.AllowInsecure || len(cfg.CAData) > 0) || cfg.Proxy != nil && !o.AllowProxyURL {
		t.Errorf("%+v: insecure %v, proxy %v", o, cfg.Insecure, cfg.Proxy != nil)
	}
	server, err := url.Parse(cfg.Host)
	if err != nil || server.Scheme != "https" || server.Hostname() == "" || server.User != nil || server.RawQuery != "" || server.Fragment != "" {
		t.Errorf("a server of %q", cfg.Host)
	}
	if cfg.BearerToken == "" && len(cfg.CertData) == 0 || strings.ContainsAny(cfg.BearerToken, " \t\r\n\x00") {
		t.Error("a connection without a credential that can be sent")
	}
	if proxy := proxyOf(t, cfg); cfg.Proxy != nil && proxy == "" {
		t.Error("a proxy that is none")
	}
	// A connection that client-go would not build is one that nobody can explain.
	if _, err := rest.TLSConfigFor(cfg); err != nil {
		t.Errorf("client-go does not take it: %v", err)
	}
}

// FuzzVet fuzzes the file as a whole.
func FuzzVet(f *testing.F) {
	cert, key := pair(f)
	f.Add(file(f))
	f.Add(file(f, cluster(func(c *api.Cluster) { c.CertificateAuthorityData = cert }), user(func(u *api.AuthInfo) {
		u.Token, u.ClientCertificateData, u.ClientKeyData = "", cert, key
	})))
	f.Add(file(f, cluster(func(c *api.Cluster) { c.InsecureSkipTLSVerify, c.ProxyURL = true, "http://me:"+mark+"@h:1" })))
	f.Add(file(f, user(func(u *api.AuthInfo) { u.Username, u.Password, u.TokenFile, u.Impersonate = mark, mark, mark, mark })))
	f.Add([]byte("{"))
	f.Add([]byte("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a}]"))
	f.Fuzz(mustHold)
}

// FuzzValues fuzzes what stands in the file, which then leads somewhere.
func FuzzValues(f *testing.F) {
	cert, key := pair(f)
	f.Add("https://10.0.0.1:6443", "spoke.example", "http://h:1", false, mark, string(cert), string(cert), string(key))
	f.Add("https://"+mark+"@h", "", "", true, mark+"\n", mark, mark, mark)
	f.Add("https://[::1]:443/path", "", "socks5://"+mark+":"+mark+"@h", true, "", "", string(cert), string(key)+mark)
	f.Add("https://h?"+mark, mark+"/", "ftp://"+mark, false, mark, "", "", "")
	f.Fuzz(func(t *testing.T, server, serverName, proxy string, insecure bool, token, ca, clientCert, clientKey string) {
		mustHold(t, file(t,
			cluster(func(c *api.Cluster) {
				c.Server, c.TLSServerName, c.ProxyURL, c.InsecureSkipTLSVerify, c.CertificateAuthorityData = server, serverName, proxy, insecure, []byte(ca)
			}),
			user(func(u *api.AuthInfo) {
				u.Token, u.ClientCertificateData, u.ClientKeyData = token, []byte(clientCert), []byte(clientKey)
			})))
	})
}
