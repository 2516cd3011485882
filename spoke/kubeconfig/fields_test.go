package kubeconfig

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

// decision is what becomes of a field of client-go's: refused if takes is nil,
// else seen in the connection by takes.
type decision[T any] struct {
	set   func(*T)
	takes func(*rest.Config) bool
	// flag, if set, is what the hub must be started with.
	flag Options
}

// ignored: the field is about the file, and changes no connection.
func ignored(*rest.Config) bool { return true }

// mustDecide sets every field of T in turn, by itself, and holds it against the
// decision. A field that has none is a new one of client-go's: find out what it
// does, then add it here and to the code. Until then it is refused.
func mustDecide[T any](t *testing.T, decisions map[string]decision[T], vet func(T, Options) (*rest.Config, *Refusal)) {
	t.Helper()
	var names []string
	for field := range reflect.TypeFor[T]().Fields() {
		names = append(names, field.Name)
		d, ok := decisions[field.Name]
		if !ok {
			t.Errorf("%s of %s is new: decide whether it is taken, ignored or refused", field.Name, reflect.TypeFor[T]())
			continue
		}
		var value T
		d.set(&value)
		if reflect.ValueOf(value).FieldByIndex(field.Index).IsZero() {
			t.Errorf("%s: the test does not set it", field.Name)
		}
		cfg, refusal := vet(value, d.flag)
		switch {
		case d.takes == nil && len(refusal.Reasons) == 0:
			t.Errorf("%s is not refused: %v", field.Name, cfg)
		case d.takes != nil && (len(refusal.Reasons) > 0 || !d.takes(cfg)):
			t.Errorf("%s is not taken: %v, %v", field.Name, cfg, refusal)
		}
		if d.flag == (Options{}) {
			continue
		}
		if _, refusal := vet(value, Options{}); !refusal.Forbidden || !strings.Contains(refusal.Error(), "start the hub with --allow-") {
			t.Errorf("%s without its flag: %v", field.Name, refusal)
		}
	}
	for name := range decisions {
		if !slices.Contains(names, name) {
			t.Errorf("%s is no field of %s any more", name, reflect.TypeFor[T]())
		}
	}
}

func TestEveryFieldOfAClusterIsDecidedUpon(t *testing.T) {
	cert, _ := pair(t)
	mustDecide(t, map[string]decision[api.Cluster]{
		"LocationOfOrigin":      {set: func(c *api.Cluster) { c.LocationOfOrigin = "/x" }, takes: ignored},
		"Server":                {set: func(c *api.Cluster) { c.Server = "https://b" }, takes: func(cfg *rest.Config) bool { return cfg.Host == "https://b" }},
		"TLSServerName":         {set: func(c *api.Cluster) { c.TLSServerName = "b" }, takes: func(cfg *rest.Config) bool { return cfg.ServerName == "b" }},
		"InsecureSkipTLSVerify": {set: func(c *api.Cluster) { c.InsecureSkipTLSVerify = true }, takes: func(cfg *rest.Config) bool { return cfg.Insecure }, flag: Options{AllowInsecure: true}},
		"CertificateAuthority":  {set: func(c *api.Cluster) { c.CertificateAuthority = "/x" }},
		"CertificateAuthorityData": {set: func(c *api.Cluster) { c.CertificateAuthorityData = cert },
			takes: func(cfg *rest.Config) bool { return string(cfg.CAData) == string(cert) }},
		"ProxyURL": {set: func(c *api.Cluster) { c.ProxyURL = "http://b" }, takes: func(cfg *rest.Config) bool { return proxyOf(t, cfg) == "http://b" },
			flag: Options{AllowProxyURL: true}},
		"DisableCompression": {set: func(c *api.Cluster) { c.DisableCompression = true }, takes: func(cfg *rest.Config) bool { return cfg.DisableCompression }},
		"Extensions":         {set: func(c *api.Cluster) { c.Extensions = map[string]runtime.Object{"x": nil} }, takes: ignored},
	}, func(c api.Cluster, o Options) (*rest.Config, *Refusal) {
		if c.Server == "" {
			c.Server = "https://a"
		}
		cfg, r := &rest.Config{}, &Refusal{}
		vetCluster(c, o, cfg, r)
		return cfg, r
	})
}

func TestEveryFieldOfAUserIsDecidedUpon(t *testing.T) {
	cert, key := pair(t)
	keyPair := decision[api.AuthInfo]{
		set: func(u *api.AuthInfo) { u.ClientCertificateData, u.ClientKeyData = cert, key },
		takes: func(cfg *rest.Config) bool {
			return string(cfg.CertData) == string(cert) && string(cfg.KeyData) == string(key)
		},
	}
	mustDecide(t, map[string]decision[api.AuthInfo]{
		"LocationOfOrigin":      {set: func(u *api.AuthInfo) { u.LocationOfOrigin = "/x" }, takes: ignored},
		"ClientCertificate":     {set: func(u *api.AuthInfo) { u.ClientCertificate = "/x" }},
		"ClientCertificateData": keyPair,
		"ClientKey":             {set: func(u *api.AuthInfo) { u.ClientKey = "/x" }},
		"ClientKeyData":         keyPair,
		"Token":                 {set: func(u *api.AuthInfo) { u.Token = "b" }, takes: func(cfg *rest.Config) bool { return cfg.BearerToken == "b" }},
		"TokenFile":             {set: func(u *api.AuthInfo) { u.TokenFile = "/x" }},
		"Impersonate":           {set: func(u *api.AuthInfo) { u.Impersonate = "x" }},
		"ImpersonateUID":        {set: func(u *api.AuthInfo) { u.ImpersonateUID = "x" }},
		"ImpersonateGroups":     {set: func(u *api.AuthInfo) { u.ImpersonateGroups = []string{"x"} }},
		"ImpersonateUserExtra":  {set: func(u *api.AuthInfo) { u.ImpersonateUserExtra = map[string][]string{"x": nil} }},
		"Username":              {set: func(u *api.AuthInfo) { u.Username = "x" }},
		"Password":              {set: func(u *api.AuthInfo) { u.Password = "x" }},
		"AuthProvider":          {set: func(u *api.AuthInfo) { u.AuthProvider = &api.AuthProviderConfig{} }},
		"Exec":                  {set: func(u *api.AuthInfo) { u.Exec = &api.ExecConfig{} }},
		"Extensions":            {set: func(u *api.AuthInfo) { u.Extensions = map[string]runtime.Object{"x": nil} }, takes: ignored},
	}, func(u api.AuthInfo, _ Options) (*rest.Config, *Refusal) {
		if u.Token == "" {
			u.Token = "a"
		}
		cfg, r := &rest.Config{}, &Refusal{}
		vetUser(u, cfg, r)
		return cfg, r
	})
}

func TestAFieldThatNobodyKnowsIsRefusedByName(t *testing.T) {
	r := &Refusal{}
	refuseRest("cluster", struct {
		Plugin  string            `json:"plugin-of-the-future,omitempty"`
		Hidden  map[string]string `json:"-"`
		Unset   *api.ExecConfig   `json:"unset"`
		private int
	}{Plugin: secretToken, Hidden: map[string]string{secretToken: ""}, private: 1}, r)
	text := r.Error()
	if len(r.Reasons) != 3 || !r.Forbidden || strings.Contains(text, secretToken) {
		t.Errorf("%v", r)
	}
	for _, want := range []string{"plugin-of-the-future of the cluster", "Hidden", "private", "remove it"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}
