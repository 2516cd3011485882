package proxy

import (
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func madeOf(edits ...func(*made)) made {
	m := made{uid: "uid", spec: &v1alpha1.ProxySpec{Mode: v1alpha1.ModeManaged, Provider: v1alpha1.ProviderKubernetes, Protocol: v1alpha1.ProtocolHTTP}}
	for _, edit := range edits {
		edit(&m)
	}
	return m
}

func withSpec(edit func(*v1alpha1.ProxySpec)) func(*made) { return func(m *made) { edit(m.spec) } }

func withPod(edit func(*v1alpha1.KubernetesSpec)) func(*made) {
	return withSpec(func(s *v1alpha1.ProxySpec) {
		if s.Kubernetes == nil {
			s.Kubernetes = &v1alpha1.KubernetesSpec{}
		}
		edit(s.Kubernetes)
	})
}

func withFile(name, content string) func(*made) {
	return func(m *made) { m.files = map[string][]byte{name: []byte(content)} }
}

// withHealthCheck sets every field of it, those that are yet to come too.
func withHealthCheck(t *testing.T) func(*made) {
	t.Helper()
	return withSpec(func(s *v1alpha1.ProxySpec) {
		check := reflect.ValueOf(&s.HealthCheck).Elem()
		for i := range check.NumField() {
			switch field := check.Field(i); field.Kind() {
			case reflect.String:
				field.SetString("x")
			case reflect.Bool:
				field.SetBool(true)
			case reflect.Int32:
				field.SetInt(5)
			case reflect.Slice:
				field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			default:
				t.Fatalf("what to set healthCheck.%s to?", check.Type().Field(i).Name)
			}
		}
	})
}

func hashOf(t *testing.T, m made) string {
	t.Helper()
	h, err := m.hash()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHashChangesWithWhatTheInstanceIsMadeOfAndNothingElse(t *testing.T) {
	base := hashOf(t, madeOf())
	limit := int32(3)
	for name, m := range map[string]made{
		"attributes":          madeOf(withSpec(func(s *v1alpha1.ProxySpec) { s.Attributes = map[string]v1alpha1.AttributeValue{"a": "b"} })),
		"maxLeases":           madeOf(withSpec(func(s *v1alpha1.ProxySpec) { s.MaxLeases = &limit })),
		"healthCheck":         madeOf(withHealthCheck(t)),
		"default port":        madeOf(withSpec(func(s *v1alpha1.ProxySpec) { s.Port = v1alpha1.DefaultPort })),
		"empty pod block":     madeOf(withPod(func(*v1alpha1.KubernetesSpec) {})),
		"a pod's own address": madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Expose = v1alpha1.ExposePodIP })),
		"who has signed its certificate": madeOf(withSpec(func(s *v1alpha1.ProxySpec) {
			s.TLS = &v1alpha1.TLS{CASecretRef: &v1alpha1.CASecretReference{Name: "ca"}}
		})),
		"empty lists": madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Args, k.NodeSelector = []string{}, map[string]string{} })),
	} {
		if hashOf(t, m) != base {
			t.Errorf("%s replaces the instance", name)
		}
	}
	seen := map[string]string{base: "nothing"}
	for name, m := range map[string]made{
		"port":    madeOf(withSpec(func(s *v1alpha1.ProxySpec) { s.Port = 8888 })),
		"image":   madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Image = "x" })),
		"command": madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Command = []string{"x"} })),
		"args":    madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Args = []string{"x"} })),
		"env":     madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Env = []corev1.EnvVar{{Name: "x"}} })),
		"resources": madeOf(withPod(func(k *v1alpha1.KubernetesSpec) {
			k.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
		})),
		"nodeSelector":       madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.NodeSelector = map[string]string{"x": "y"} })),
		"tolerations":        madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Tolerations = []corev1.Toleration{{Key: "x"}} })),
		"imagePullSecrets":   madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "x"}} })),
		"serviceAccountName": madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.ServiceAccountName = "x" })),
		"podLabels":          madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.PodLabels = map[string]v1alpha1.LabelValue{"x": "y"} })),
		"podAnnotations":     madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.PodAnnotations = map[string]string{"x": "y"} })),
		"securityContext":    madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.SecurityContext = &corev1.SecurityContext{} })),
		"a node's address":   madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Expose = v1alpha1.ExposeHostPort })),
		"a Service":          madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Expose = v1alpha1.ExposeLoadBalancer })),
		"protocol":           madeOf(withSpec(func(s *v1alpha1.ProxySpec) { s.Protocol = v1alpha1.ProtocolSOCKS5 })),
		"serverName":         madeOf(withSpec(func(s *v1alpha1.ProxySpec) { s.TLS = &v1alpha1.TLS{ServerName: "x"} })),
		"certificate":        madeOf(withFile("tls.crt", "a")),
		"user-data":          madeOf(withFile("user-data", "a")),
		"other user-data":    madeOf(withFile("user-data", "b")),
		"empty user-data":    madeOf(withFile("user-data", "")),
		"password":           madeOf(withFile("password", "a")),
		"another's password": madeOf(withFile("password", "a"), func(m *made) { m.uid = "other" }),
	} {
		h := hashOf(t, m)
		if other, taken := seen[h]; taken {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[h] = name
	}
}

// Written down once: a change of these values replaces every instance of every
// fleet at the next upgrade.
func TestHashesThatWereGivenOutStayWhatTheyAre(t *testing.T) {
	all := madeOf(withFile("user-data", "#cloud-config"), withPod(func(k *v1alpha1.KubernetesSpec) {
		const written = `{"image":"x:1","command":["c"],"args":["a"],"env":[{"name":"N","value":"v"}],
			"resources":{"limits":{"memory":"64Mi"},"requests":{"cpu":"100m"}},"nodeSelector":{"a":"b"},
			"tolerations":[{"key":"k","operator":"Exists"}],"imagePullSecrets":[{"name":"p"}],"serviceAccountName":"sa",
			"podLabels":{"l":"v"},"podAnnotations":{"n":"v"},"securityContext":{"runAsUser":1000}}`
		if err := json.Unmarshal([]byte(written), k); err != nil {
			t.Fatal(err)
		}
	}))
	named := madeOf(withSpec(func(s *v1alpha1.ProxySpec) {
		s.Protocol, s.TLS = v1alpha1.ProtocolHTTPS, &v1alpha1.TLS{ServerName: "proxy.example"}
	}))
	exposed := madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Expose = v1alpha1.ExposeLoadBalancer }))
	imageOnly := madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Image = "x:1" }))
	for _, tc := range []struct {
		version int
		m       made
		want    string
	}{
		{1, madeOf(), "v1-e39390f79a7f1d1c59c897047aab9bc8"},
		{1, imageOnly, "v1-c845e2f11cb43da9f08b3435fd1a0bca"},
		{1, all, ""},
		{2, madeOf(), "v2-e39390f79a7f1d1c59c897047aab9bc8"},
		{2, all, "v2-28d70730c1307339a5ad80160a4fab26"},
		{1, named, ""},
		{1, exposed, ""},
		{2, named, "v2-224fdf8de34862af326881c9d2e09aff"},
		{2, exposed, "v2-ed84e9ab7e23d1e0c1cc1b1fcc752360"},
	} {
		if got, err := hashVersions[tc.version](tc.m); err != nil || got != tc.want {
			t.Errorf("version %d of %+v: %q, want %q (%v)", tc.version, tc.m.spec, got, tc.want, err)
		}
	}
}

func TestAnInstanceIsComparedInTheVersionThatItWasMadeWith(t *testing.T) {
	plain := madeOf()
	v1, err := hashV1(plain)
	if err != nil {
		t.Fatal(err)
	}
	edited := madeOf(withSpec(func(s *v1alpha1.ProxySpec) { s.Port = 8888 }))
	for _, tc := range []struct {
		name string
		m    made
		have string
		want fit
	}{
		{"the present version", plain, hashOf(t, plain), fits},
		{"the present version, edited", edited, hashOf(t, plain), differs},
		{"an older version replaces nothing by itself", plain, v1, fits},
		{"an older version, edited", edited, v1, differs},
		{"an older version, probed otherwise", madeOf(withHealthCheck(t)), v1, fits},
		{"an older version, exposed as it always was", madeOf(withPod(func(k *v1alpha1.KubernetesSpec) { k.Expose = v1alpha1.ExposePodIP })), v1, fits},
		{"an older version, and now what it could not name", madeOf(withFile("user-data", "x")), v1, differs},
		{"a newer version is left alone", plain, "v3-00000000000000000000000000000000", newer},
		{"a much newer version is left alone", plain, "v999-00000000000000000000000000000000", newer},
		{"no hash", plain, "", differs},
		{"an edited label", plain, "v2", differs},
		{"an edited label that no version is", plain, "v0-00000000000000000000000000000000", differs},
	} {
		if got, err := tc.m.compare(tc.have); err != nil || got != tc.want {
			t.Errorf("%s: %v, want %v (%v)", tc.name, got, tc.want, err)
		}
	}
}
