package pod

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

const theHash = "v2-0123456789abcdef0123456789abcdef"

// request asks for the instance of Proxy u-1, a plain one without files but for
// the changes.
func request(changes ...func(*provider.CreateRequest)) provider.CreateRequest {
	req := provider.CreateRequest{
		Ref:   provider.Ref{Namespace: "crawl", Name: provider.NameFromUID("u-1")},
		Owner: provider.Owner{ProxyUID: "u-1", Hub: "hub-1", ClusterUID: "cluster-1"}, SpecHash: theHash,
		Spoke: "eu", ProxyName: "eu-1",
		Spec: &v1alpha1.ProxySpec{Provider: v1alpha1.ProviderKubernetes, Protocol: v1alpha1.ProtocolHTTP},
	}
	for _, change := range changes {
		change(&req)
	}
	return req
}

// withSpec sets what the user wrote about the pod.
func withSpec(spec v1alpha1.KubernetesSpec) func(*provider.CreateRequest) {
	return func(req *provider.CreateRequest) { req.Spec.Kubernetes = &spec }
}

// withFiles gives the instance files.
func withFiles(files map[string]string) func(*provider.CreateRequest) {
	return func(req *provider.CreateRequest) {
		req.Files = map[string][]byte{}
		for name, content := range files {
			req.Files[name] = []byte(content)
		}
	}
}

// exposedBy has clients dial the instance that way.
func exposedBy(e v1alpha1.Expose) func(*provider.CreateRequest) {
	return withSpec(v1alpha1.KubernetesSpec{Expose: e})
}

// withPort has the instance listen there.
func withPort(port int32) func(*provider.CreateRequest) {
	return func(req *provider.CreateRequest) { req.Spec.Port = port }
}

// withHash makes it another edition of the same instance.
func withHash(hash string) func(*provider.CreateRequest) {
	return func(req *provider.CreateRequest) { req.SpecHash = hash }
}

// everything is a spec with all that a user may write about the pod.
func everything() v1alpha1.KubernetesSpec {
	return v1alpha1.KubernetesSpec{
		Image: "registry.example/proxy:1", Command: []string{"/proxy"}, Args: []string{"--port=$(PROXY_PORT)"},
		Env: []corev1.EnvVar{
			{Name: "LEVEL", Value: "info"},
			{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "tokens"}, Key: "a"}}},
		},
		Resources:          corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}},
		NodeSelector:       map[string]string{"pool": "proxies"},
		Tolerations:        []corev1.Toleration{{Key: "pool", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](7)}},
		ImagePullSecrets:   []corev1.LocalObjectReference{{Name: "registry"}},
		ServiceAccountName: "proxies",
		PodLabels:          map[string]v1alpha1.LabelValue{"team": "crawl"},
		PodAnnotations:     map[string]string{"example.com/note": "n"},
		SecurityContext:    &corev1.SecurityContext{RunAsUser: ptr.To[int64](1000), Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_BIND_SERVICE"}}},
		Expose:             v1alpha1.ExposeHostPort,
	}
}

func env(c corev1.Container) map[string]string {
	values := map[string]string{}
	for _, e := range c.Env {
		values[e.Name] = e.Value // of two with one name a kubelet takes the last
	}
	return values
}

func TestAPodCarriesItsOwnershipAndReadsBackAsTheInstanceThatWasAskedFor(t *testing.T) {
	req := request()
	pod := build(req, "proxy:1")
	pod.UID = "pod-1"
	inst := instance(pod)
	if inst.Owner != req.Owner || inst.SpecHash != theHash || inst.ProviderID != "crawl/proxy-u-1/pod-1" || inst.ID != "pod-1" {
		t.Errorf("read back as %+v", inst)
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.UID != "u-1" || owner.Name != "eu-1" || owner.Kind != "Proxy" || owner.APIVersion != v1alpha1.GroupVersion.String() {
		t.Errorf("controller owner %+v: a deleted Proxy's pod would stay", owner)
	}
	if spoke := pod.Annotations[v1alpha1.AnnotationSpoke]; spoke != "eu" {
		t.Errorf("spoke for people %q", spoke)
	}
}

func TestAPodIsRestrictedAndGetsNothingOfTheClusterItRunsIn(t *testing.T) {
	spec := build(request(), "proxy:1").Spec
	s := spec.Containers[0].SecurityContext
	if !*spec.SecurityContext.RunAsNonRoot || *spec.SecurityContext.RunAsUser == 0 || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
		!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Error("the pod would not pass Pod Security restricted")
	}
	if *spec.AutomountServiceAccountToken || *spec.EnableServiceLinks {
		t.Error("the pod gets a token or the addresses of services")
	}
	if len(spec.Volumes)+len(spec.Containers[0].VolumeMounts) != 0 {
		t.Errorf("volumes %+v without a file", spec.Volumes)
	}
}

func TestAPodIsToldWhatToListenOn(t *testing.T) {
	for _, tc := range []struct {
		name string
		port int32
		want int32
	}{{"by default", 0, 3128}, {"as written", 8080, 8080}} {
		t.Run(tc.name, func(t *testing.T) {
			c := build(request(func(req *provider.CreateRequest) { req.Spec.Port = tc.port }), "proxy:1").Spec.Containers[0]
			if e := env(c); e["PROXY_PROTOCOL"] != "http" || e["PROXY_PORT"] != map[int32]string{3128: "3128", 8080: "8080"}[tc.want] {
				t.Errorf("env %v", e)
			}
			if c.Ports[0].ContainerPort != tc.want || c.Ports[0].HostPort != 0 || c.ReadinessProbe.TCPSocket.Port.IntVal != tc.want {
				t.Errorf("port %+v, probe %+v", c.Ports, c.ReadinessProbe)
			}
		})
	}
}

func TestTheHubsImageRunsWhereTheUserNamesNone(t *testing.T) {
	for image, want := range map[string]string{"": "proxy:1", "registry.example/mine:2": "registry.example/mine:2"} {
		if got := build(request(withSpec(v1alpha1.KubernetesSpec{Image: image})), "proxy:1").Spec.Containers[0].Image; got != want {
			t.Errorf("image %q, want %q", got, want)
		}
	}
}

func TestWhatTheUserWritesAboutThePodIsInIt(t *testing.T) {
	want := everything()
	pod := build(request(withSpec(everything())), "proxy:1")
	c := pod.Spec.Containers[0]
	got := v1alpha1.KubernetesSpec{
		Image: c.Image, Command: c.Command, Args: c.Args, Env: c.Env[len(c.Env)-len(want.Env):], Resources: c.Resources,
		NodeSelector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations, ImagePullSecrets: pod.Spec.ImagePullSecrets,
		ServiceAccountName: pod.Spec.ServiceAccountName, SecurityContext: c.SecurityContext,
		PodLabels: want.PodLabels, PodAnnotations: want.PodAnnotations, Expose: accessOf(pod).Expose,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the pod has %+v, want %+v", got, want)
	}
	if pod.Labels["team"] != "crawl" || pod.Annotations["example.com/note"] != "n" {
		t.Errorf("labels %v, annotations %v", pod.Labels, pod.Annotations)
	}
	if fields := reflect.TypeFor[v1alpha1.KubernetesSpec]().NumField(); fields != 13 {
		t.Errorf("KubernetesSpec has %d fields and this test knows 13 of them", fields)
	}
}

func TestAUserCannotTakeThePlaceOfWhatMarksThePodAsOurs(t *testing.T) {
	plain := build(request(), "proxy:1")
	spec := v1alpha1.KubernetesSpec{
		Env:            []corev1.EnvVar{{Name: "PROXY_PORT", Value: "1"}, {Name: "PROXY_PROTOCOL", Value: "none"}, {Name: "MINE", Value: "x"}},
		PodLabels:      map[string]v1alpha1.LabelValue{},
		PodAnnotations: map[string]string{},
	}
	for label := range plain.Labels {
		spec.PodLabels[label] = "theirs"
	}
	for annotation := range plain.Annotations {
		spec.PodAnnotations[annotation] = "theirs"
	}
	pod := build(request(withSpec(spec)), "proxy:1")
	if !maps.Equal(pod.Labels, plain.Labels) || !maps.Equal(pod.Annotations, plain.Annotations) {
		t.Errorf("labels %v, annotations %v", pod.Labels, pod.Annotations)
	}
	if e := env(pod.Spec.Containers[0]); e["PROXY_PORT"] != "3128" || e["PROXY_PROTOCOL"] != "http" || e["MINE"] != "x" {
		t.Errorf("env %v: the proxy would listen where nobody looks", e)
	}
}

func TestFilesAreMountedFromASecretThatIsNamedByUIDAndHash(t *testing.T) {
	req := request(withFiles(map[string]string{
		provider.FileUserData: "#cloud-config", provider.FileUsername: "u", provider.FilePassword: "secret",
		provider.FileCertificate: "a certificate", provider.FileKey: "its key",
	}))
	pod, secret := build(req, "proxy:1"), buildFiles(req)
	volume, mounted := pod.Spec.Volumes[0], pod.Spec.Containers[0].VolumeMounts[0]
	if volume.Secret.SecretName != secret.Name || secret.Name != "proxy-u-1-"+theHash || secret.Namespace != pod.Namespace {
		t.Errorf("mounts Secret %q, made %s/%s", volume.Secret.SecretName, secret.Namespace, secret.Name)
	}
	if len(volume.Secret.Items) > 0 || mounted.SubPath != "" {
		t.Errorf("not all files are mounted: %+v of %+v", mounted, volume.Secret)
	}
	if mounted.Name != volume.Name || mounted.MountPath != "/etc/proxy-operator" || !mounted.ReadOnly || *volume.Secret.DefaultMode != 0o444 {
		t.Errorf("mount %+v of %+v", mounted, volume.Secret)
	}
	if !*secret.Immutable || secret.Type != filesType || !reflect.DeepEqual(secret.Data, req.Files) {
		t.Errorf("Secret of type %q, immutable %v, with %d files", secret.Type, *secret.Immutable, len(secret.Data))
	}
	if ownerOf(secret) != req.Owner || secret.Labels[v1alpha1.LabelSpecHash] != theHash || !reflect.DeepEqual(secret.OwnerReferences, pod.OwnerReferences) {
		t.Errorf("the Secret's labels %v, owners %+v", secret.Labels, secret.OwnerReferences)
	}
}

func TestWhatIsBuiltSharesNothingWithWhatWasAskedFor(t *testing.T) {
	asked := func() provider.CreateRequest {
		return request(withSpec(everything()), withFiles(map[string]string{provider.FileUserData: "x"}))
	}
	req := asked()
	first, firstFiles := build(req, "proxy:1"), buildFiles(req)
	again, againFiles := build(req, "proxy:1"), buildFiles(req)
	if !reflect.DeepEqual(first, again) || !reflect.DeepEqual(firstFiles, againFiles) {
		t.Fatal("built twice, it is not the same")
	}
	overwrite(reflect.ValueOf(first))
	overwrite(reflect.ValueOf(firstFiles))
	if !reflect.DeepEqual(req, asked()) {
		t.Errorf("the user's spec has changed: %+v", req.Spec.Kubernetes)
	}
	if !reflect.DeepEqual(build(req, "proxy:1"), again) || !reflect.DeepEqual(buildFiles(req), againFiles) {
		t.Error("one pod's change is another's")
	}
}

// overwrite changes every string, number and byte that can be reached from v.
func overwrite(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			overwrite(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				overwrite(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			overwrite(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			changed := reflect.New(v.Type().Elem()).Elem()
			changed.Set(v.MapIndex(key))
			overwrite(changed)
			v.SetMapIndex(key, changed)
		}
		if v.Type().Key().Kind() == reflect.String && !v.IsNil() {
			v.SetMapIndex(reflect.ValueOf("added").Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
		}
	case reflect.String:
		v.SetString("overwritten")
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8:
		v.SetUint(v.Uint() + 1)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	}
}
