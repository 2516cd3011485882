package pod

import (
	"bytes"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

const (
	// containerName is the one container of an instance.
	containerName = "proxy"
	// gracePeriodSeconds is what a deleted pod gets to let its tunnels finish.
	gracePeriodSeconds = 10
	// filesDir is where the container finds its files, filesVolume the volume
	// that brings them there, filesType the type of the Secret behind it.
	filesDir    = "/etc/proxy-operator"
	filesVolume = "proxy-operator"
	filesType   = corev1.SecretType("crawl.proxyfleet.dev/instance-files")
)

// build makes the pod of an instance. It is a pure function: what the pod is
// depends on the request and the default image alone, and shares nothing with
// the request: whoever changes the pod changes no Proxy.
func build(req provider.CreateRequest, defaultImage string) *corev1.Pod {
	spec := req.Spec.Kubernetes.DeepCopy()
	if spec == nil {
		spec = &v1alpha1.KubernetesSpec{}
	}
	pod := &corev1.Pod{
		ObjectMeta: ownedMeta(req, req.Ref.Name),
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](gracePeriodSeconds),
			// A forward proxy has no business with the cluster it runs in.
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				RunAsUser:      ptr.To[int64](65532),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			NodeSelector:       spec.NodeSelector,
			Tolerations:        spec.Tolerations,
			ImagePullSecrets:   spec.ImagePullSecrets,
			ServiceAccountName: spec.ServiceAccountName,
			Containers:         []corev1.Container{container(req.Spec, spec, defaultImage)},
		},
	}
	// Ours on top: whose the pod is cannot be said otherwise.
	labels := map[string]string{}
	for k, v := range spec.PodLabels {
		labels[k] = string(v)
	}
	maps.Copy(labels, pod.Labels)
	labels[labelInstance] = req.Ref.Name
	pod.Labels = labels
	annotations := map[string]string{}
	maps.Copy(annotations, spec.PodAnnotations)
	maps.Copy(annotations, pod.Annotations)
	annotations[v1alpha1.AnnotationAccess] = describe(req.Spec.AccessTo())
	pod.Annotations = annotations
	if len(req.Files) > 0 {
		mount(&pod.Spec, filesName(req.Ref, req.SpecHash))
	}
	return pod
}

func container(proxy *v1alpha1.ProxySpec, spec *v1alpha1.KubernetesSpec, defaultImage string) corev1.Container {
	c := corev1.Container{
		Name:            containerName,
		Image:           spec.Image,
		Command:         spec.Command,
		Args:            spec.Args,
		Resources:       spec.Resources,
		SecurityContext: spec.SecurityContext,
		Ports:           []corev1.ContainerPort{{Name: portName, ContainerPort: proxy.ListenPort(), Protocol: corev1.ProtocolTCP}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(proxy.ListenPort())}},
			PeriodSeconds: 2,
		},
	}
	if proxy.ExposedAs() == v1alpha1.ExposeHostPort {
		c.Ports[0].HostPort = proxy.ListenPort()
	}
	if c.Image == "" {
		c.Image = defaultImage
	}
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
	}
	// First, so that the user's may refer to them by $(PROXY_PORT).
	c.Env = []corev1.EnvVar{
		{Name: "PROXY_PORT", Value: strconv.Itoa(int(proxy.ListenPort()))},
		{Name: "PROXY_PROTOCOL", Value: string(proxy.Protocol)},
	}
	for _, e := range spec.Env {
		// Of two with one name a kubelet takes the last.
		if e.Name != "PROXY_PORT" && e.Name != "PROXY_PROTOCOL" {
			c.Env = append(c.Env, e)
		}
	}
	return c
}

// mount brings the Secret's keys as files into the container.
func mount(spec *corev1.PodSpec, secret string) {
	spec.Volumes = []corev1.Volume{{Name: filesVolume, VolumeSource: corev1.VolumeSource{
		// Readable by whatever user the image runs as: the pod has one container.
		Secret: &corev1.SecretVolumeSource{SecretName: secret, DefaultMode: ptr.To[int32](0o444)},
	}}}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: filesVolume, MountPath: filesDir, ReadOnly: true}}
}

// buildFiles makes the Secret that brings an instance its files. It is
// immutable and named by the hash, so that a pod never sees another's content.
func buildFiles(req provider.CreateRequest) *corev1.Secret {
	data := map[string][]byte{}
	for name, content := range req.Files {
		data[name] = bytes.Clone(content)
	}
	return &corev1.Secret{
		ObjectMeta: ownedMeta(req, filesName(req.Ref, req.SpecHash)),
		Type:       filesType,
		Immutable:  ptr.To(true),
		Data:       data,
	}
}

// filesName names the Secret of an instance's files by the Proxy's UID and the hash.
func filesName(ref provider.Ref, specHash string) string { return ref.Name + "-" + specHash }

// ownedMeta is the metadata of all that is made for an instance: whose it is,
// and what it belongs to.
func ownedMeta(req provider.CreateRequest, name string) metav1.ObjectMeta {
	labels := ownership(req.Owner)
	labels["app.kubernetes.io/name"] = "proxy"
	labels["app.kubernetes.io/managed-by"] = "proxy-operator"
	labels[v1alpha1.LabelSpecHash] = req.SpecHash
	return metav1.ObjectMeta{
		Namespace:   req.Ref.Namespace,
		Name:        name,
		Labels:      labels,
		Annotations: map[string]string{v1alpha1.AnnotationSpoke: req.Spoke},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion:         v1alpha1.GroupVersion.String(),
			Kind:               "Proxy",
			Name:               req.ProxyName,
			UID:                types.UID(req.Owner.ProxyUID),
			Controller:         ptr.To(true),
			BlockOwnerDeletion: ptr.To(true),
		}},
	}
}

// ownership are the labels that prove whose something is.
func ownership(o provider.Owner) map[string]string {
	return map[string]string{v1alpha1.LabelUID: o.ProxyUID, v1alpha1.LabelHub: o.Hub, v1alpha1.LabelCluster: o.ClusterUID}
}

func ownerOf(o metav1.Object) provider.Owner {
	l := o.GetLabels()
	return provider.Owner{ProxyUID: l[v1alpha1.LabelUID], Hub: l[v1alpha1.LabelHub], ClusterUID: l[v1alpha1.LabelCluster]}
}
