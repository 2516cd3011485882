package app_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/testkit/apiserver"
)

// The steps of TestLives in which something goes wrong with one Proxy.

func deliveredFiles(t *testing.T, l *lives) {
	l.secret(l.eu, "told", map[string]string{"user-data": "#cloud-config", "username": "crawler", "password": "p@ss:w/rd"})
	p := l.proxy("told", initFrom("told"), noKubelet, func(p *v1alpha1.Proxy) {
		p.Spec.AuthSecretRef = &v1alpha1.SecretReference{Name: "told"}
	})
	l.create(l.eu, p)
	pod := l.podOf(l.eu, p, "")
	volumes, mounts := pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts
	if len(volumes) != 1 || volumes[0].Secret == nil || len(mounts) != 1 || mounts[0].MountPath != "/etc/proxy-operator" || !mounts[0].ReadOnly {
		t.Fatalf("volumes %+v, mounts %+v", volumes, mounts)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: volumes[0].Secret.SecretName}}
	if err := l.get(l.eu, secret); err != nil {
		t.Fatal(err)
	}
	if string(secret.Data["user-data"]) != "#cloud-config" || string(secret.Data["username"]) != "crawler" || string(secret.Data["password"]) != "p@ss:w/rd" ||
		secret.Immutable == nil || !*secret.Immutable || secret.Labels[v1alpha1.LabelSpecHash] != pod.Labels[v1alpha1.LabelSpecHash] {
		t.Errorf("Secret %s with labels %v is not what the pod is to be told", secret.Name, secret.Labels)
	}
	l.toldNobody("p@ss:w/rd")
	l.remove(l.eu, p)
	l.eventually("nothing is left of it", func() error {
		l.vanish(l.eu, pod)
		pods, secrets, err := l.instancesOf(l.eu, p)
		if err != nil || len(pods)+len(secrets) > 0 {
			return fmt.Errorf("%d pods and %d Secrets (%w)", len(pods), len(secrets), err)
		}
		return nil
	})
	l.gone(l.eu, p)
}

// restlessUser writes labels and annotations as fast as the API server takes
// them, through a whole life.
func restlessUser(t *testing.T, l *lives) {
	p := l.proxy("restless")
	l.create(l.eu, p)
	ctx, cancel := context.WithCancel(t.Context())
	wrote := make(chan int)
	key := client.ObjectKeyFromObject(p)
	go func() {
		n := 0
		for ctx.Err() == nil {
			patch := fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"},"annotations":{"example.com/n":"%d"}}}`, n+1, n+1)
			o := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
			// Not with ctx: a write whose answer is lost is not counted.
			if l.eu.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))) == nil {
				n++
			}
		}
		wrote <- n
	}()
	l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
	first := p.Status.ProviderID
	l.change(l.eu, p, func(p *v1alpha1.Proxy) { pod(p).Image = "another" })
	l.eventually("another pod is Ready", func() error {
		if err := l.get(l.eu, p); err != nil || p.Status.ProviderID == first || p.Status.Phase != v1alpha1.PhaseReady {
			return fmt.Errorf("phase %s, providerID %s (%w)", p.Status.Phase, p.Status.ProviderID, err)
		}
		return nil
	})
	cancel()
	n := <-wrote
	if err := l.get(l.eu, p); err != nil || p.Labels["n"] != fmt.Sprint(n) || p.Annotations["example.com/n"] != fmt.Sprint(n) {
		t.Errorf("of %d writes the last is %v, %v (%v)", n, p.Labels, p.Annotations, err)
	}
	t.Logf("%d writes of a user in %s", n, time.Since(p.CreationTimestamp.Time).Round(time.Second))
	l.remove(l.eu, p)
	l.gone(l.eu, p)
}

// conflictingHub lives a whole life, replacement and content included.
func conflictingHub(t *testing.T, l *lives) {
	l.secret(l.eu, "contended", map[string]string{"user-data": "one"})
	p := l.proxy("contended", initFrom("contended"))
	l.gate.conflict(true)
	defer l.gate.conflict(false)
	l.create(l.eu, p)
	l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
	first := p.Status.ProviderID
	l.secret(l.eu, "contended", map[string]string{"user-data": "two"})
	l.eventually("another pod is Ready", func() error {
		if err := l.get(l.eu, p); err != nil || p.Status.ProviderID == first || p.Status.Phase != v1alpha1.PhaseReady {
			return fmt.Errorf("phase %s, providerID %s (%w)", p.Status.Phase, p.Status.ProviderID, err)
		}
		return nil
	})
	pods, secrets, err := l.instancesOf(l.eu, p)
	if err != nil || len(pods) != 1 || len(secrets) != 1 || string(secrets[0].Data["user-data"]) != "two" {
		t.Errorf("%d pods and %d Secrets (%v)", len(pods), len(secrets), err)
	}
	l.remove(l.eu, p)
	l.gone(l.eu, p)
	if pods, secrets, err := l.instancesOf(l.eu, p); err != nil || len(pods)+len(secrets) > 0 {
		t.Errorf("%d pods and %d Secrets are left (%v)", len(pods), len(secrets), err)
	}
}

func newerInstance(t *testing.T, l *lives) {
	p := l.proxy("newer")
	l.create(l.eu, p)
	l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
	made := l.podOf(l.eu, p, "")
	label := func(hash string) {
		t.Helper()
		base := made.DeepCopy()
		made.Labels[v1alpha1.LabelSpecHash] = hash
		if err := l.eu.Patch(t.Context(), made, client.MergeFrom(base)); err != nil {
			t.Fatal(err)
		}
	}
	// As the first version of the hub named this spec: it is what is wanted.
	sum := sha256.Sum256(fmt.Appendf(nil, `{"provider":"kubernetes","protocol":"http","port":%d}`, l.port))
	label("v1-" + hex.EncodeToString(sum[:16]))
	l.change(l.eu, p, func(p *v1alpha1.Proxy) { p.Spec.Attributes["seen"] = "yes" })
	l.eventually("a pass has seen it", func() error {
		if err := l.get(l.eu, p); err != nil || p.Status.ObservedGeneration != p.Generation {
			return fmt.Errorf("generation %d of %d (%w)", p.Status.ObservedGeneration, p.Generation, err)
		}
		return nil
	})
	if err := l.get(l.eu, made); err != nil || made.DeletionTimestamp != nil || p.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("an older hash replaced it: %v, phase %s", err, p.Status.Phase)
	}
	label("v9-" + strings.Repeat("0", 32))
	l.change(l.eu, p, func(p *v1alpha1.Proxy) { pod(p).Image = "edited" })
	l.provisionedSays(l.eu, p, "True/Created", "a newer version of the hub has made the instance")
	l.told(l.eu, p, "NewerInstance", "left alone")
	if err := l.get(l.eu, made); err != nil || made.DeletionTimestamp != nil {
		t.Errorf("it was replaced: %v", err)
	}
	l.remove(l.eu, p)
	l.gone(l.eu, p) // a deletion is the user's word
}

// toldNobody fails if the secret, plain or in base64, is where people look: in the
// log, in Events, in Proxies, pods and Spokes, in the metrics and the list.
func (l *lives) toldNobody(secret string) {
	l.t.Helper()
	written := map[string]string{"log": l.log.String()}
	for name, list := range map[string]client.ObjectList{"Events": &corev1.EventList{}, "Proxies": &v1alpha1.ProxyList{}, "pods": &corev1.PodList{}} {
		if err := l.eu.List(l.t.Context(), list, client.InNamespace(ns)); err != nil {
			l.t.Fatal(err)
		}
		written[name] = string(must[[]byte](l.t)(json.Marshal(list)))
	}
	var proxies any
	l.call("GET", "/v1/proxies", "", &proxies)
	written["API"] = fmt.Sprint(proxies)
	for where, text := range written {
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
			if strings.Contains(text, form) {
				l.t.Errorf("the password is in the %s", where)
			}
		}
	}
}

func diedPod(t *testing.T, l *lives) {
	p := l.proxy("dies")
	l.create(l.eu, p)
	l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
	pod := l.podOf(l.eu, p, "")
	began := time.Now()
	base := pod.DeepCopy()
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "the node was low on memory"
	if err := l.eu.Status().Patch(t.Context(), pod, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	l.podOf(l.eu, p, string(pod.UID))
	// The poll comes once a minute: what is seen within seconds was not polled.
	took := time.Since(began)
	t.Logf("another pod after %s", took.Round(time.Millisecond))
	if took > 30*time.Second {
		t.Errorf("noticed after %s", took)
	}
	l.told(l.eu, p, v1alpha1.ReasonReplacing, "Evicted: the node was low on memory")
	l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
	l.remove(l.eu, p)
	l.gone(l.eu, p)
}

func stuckPod(t *testing.T, l *lives) {
	p := l.proxy("stuck", noKubelet)
	l.create(l.eu, p)
	pod := l.podOf(l.eu, p, "")
	says := func(status corev1.PodStatus) {
		t.Helper()
		base := pod.DeepCopy()
		pod.Status = status
		if err := l.eu.Status().Patch(t.Context(), pod, client.MergeFrom(base)); err != nil {
			t.Fatal(err)
		}
	}
	says(corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"}}})
	l.provisionedSays(l.eu, p, "False/Provisioning", "Unschedulable: 0/3 nodes are available")
	says(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "proxy", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: `Back-off pulling image "x": ErrImagePull: not found`}}}}})
	l.provisionedSays(l.eu, p, "False/Provisioning", "ImagePullBackOff: not found")
	l.told(l.eu, p, "InstanceWaits", "ImagePullBackOff: not found")
	l.proxyShows(l.eu, p, v1alpha1.PhaseProvisioning)
	says(corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "proxy", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "no such flag"}}}}})
	l.provisionedSays(l.eu, p, "False/Provisioning", "CrashLoopBackOff: exit code 1")
	l.remove(l.eu, p)
	l.gone(l.eu, p) // it is on no node, so its deletion is immediate
}

func lingeringPod(t *testing.T, l *lives) {
	p := l.proxy("lingers", noKubelet)
	l.create(l.eu, p)
	pod := l.podOf(l.eu, p, "")
	l.bind(l.eu, pod)
	l.remove(l.eu, p)
	l.provisionedSays(l.eu, p, "False/Deleting", "the instance is going")
	// Its grace is ten seconds. An admin who knows that the node is dead hurries.
	l.change(l.eu, p, func(p *v1alpha1.Proxy) { p.Annotations[v1alpha1.AnnotationForceDelete] = "true" })
	l.gone(l.eu, p)
	if err := l.get(l.eu, pod); !apierrors.IsNotFound(err) {
		t.Errorf("the pod is still there: %v", err)
	}
	l.told(l.eu, p, "InstanceForceDeleted", string(pod.UID))
}

func abandonedPod(t *testing.T, l *lives) {
	l.secret(l.eu, "left", map[string]string{"user-data": "x"})
	p := l.proxy("left", initFrom("left"))
	l.create(l.eu, p)
	l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
	pods, secrets, err := l.instancesOf(l.eu, p)
	if err != nil || len(pods) != 1 || len(secrets) != 1 {
		t.Fatalf("%d pods, %d Secrets (%v)", len(pods), len(secrets), err)
	}
	l.change(l.eu, p, func(p *v1alpha1.Proxy) { p.Annotations[v1alpha1.AnnotationAbandon] = "true" })
	l.gate.arm(0, false)
	l.remove(l.eu, p)
	l.gone(l.eu, p)
	acts := slices.DeleteFunc(l.gate.written(), func(w string) bool { return w == "post events" || w == "patch proxies/status" })
	if want := []string{"patch secrets", "patch pods", "patch proxies"}; !slices.Equal(acts, want) {
		t.Errorf("wrote %v, want %v: a collector deletes what refers to an owner that is gone", acts, want)
	}
	l.told(l.eu, p, "InstanceAbandoned", string(pods[0].UID))
	for _, o := range []client.Object{&pods[0], &secrets[0]} {
		if err := l.get(l.eu, o); err != nil || o.GetDeletionTimestamp() != nil || len(o.GetOwnerReferences()) > 0 || o.GetLabels()[v1alpha1.LabelHub] != "" {
			t.Errorf("%s: %v, deleted %v, owners %v, labels %v", o.GetName(), err, o.GetDeletionTimestamp(), o.GetOwnerReferences(), o.GetLabels())
		}
		if err := l.eu.Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	}
}

func repairedCauses(t *testing.T, l *lives) {
	// The spec: the API server names the field.
	p := l.proxy("repaired", func(p *v1alpha1.Proxy) { pod(p).NodeSelector = map[string]string{"disk": "no value!"} })
	l.create(l.eu, p)
	l.proxyShows(l.eu, p, v1alpha1.PhaseFailed)
	l.provisionedSays(l.eu, p, "False/PermanentError", "spec.nodeSelector")
	l.told(l.eu, p, v1alpha1.ReasonPermanentError, "spec.nodeSelector")
	l.change(l.eu, p, func(p *v1alpha1.Proxy) { pod(p).NodeSelector = nil })
	l.proxyShows(l.eu, p, v1alpha1.PhaseReady)

	// Cloud-init: more than a pod is told.
	l.secret(l.eu, "large", map[string]string{"user-data": string(make([]byte, 64<<10+1))})
	large := l.proxy("large", initFrom("large"))
	l.create(l.eu, large)
	l.provisionedSays(l.eu, large, "False/PermanentError", "65537 bytes")
	l.proxyShows(l.eu, large, v1alpha1.PhaseFailed)
	l.secret(l.eu, "large", map[string]string{"user-data": "small"})
	l.proxyShows(l.eu, large, v1alpha1.PhaseReady)

	// The provider's configuration, across a restart of the hub.
	l.stopHub()
	l.startHub("--default-proxy-image", " is no image")
	l.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "")
	image := l.proxy("image")
	l.create(l.eu, image)
	l.provisionedSays(l.eu, image, "False/PermanentError", "spec.containers[0].image")
	l.stopHub()
	l.startHub()
	l.proxyShows(l.eu, image, v1alpha1.PhaseReady)

	// Something that the hub does not see: the annotation has it tried again.
	inTheWay := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tiny"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypePod, Min: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Ti")}}}}}
	l.create(l.us, inTheWay)
	limited := l.proxy("limited")
	l.create(l.us, limited)
	l.provisionedSays(l.us, limited, "False/PermanentError", "memory")
	if err := l.us.Delete(t.Context(), inTheWay); err != nil {
		t.Fatal(err)
	}
	l.change(l.us, limited, func(p *v1alpha1.Proxy) { p.Annotations[v1alpha1.AnnotationRetry] = "now" })
	l.proxyShows(l.us, limited, v1alpha1.PhaseReady)
	for p, s := range map[*v1alpha1.Proxy]*spokeWorld{p: l.eu, large: l.eu, image: l.eu, limited: l.us} {
		l.remove(s, p)
		l.gone(s, p)
	}
}

func exceededQuota(t *testing.T, l *lives) {
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "none"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}}
	l.create(l.us, quota)
	// There is no controller-manager here to count.
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
	if err := l.us.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	p := l.proxy("crowded")
	l.create(l.us, p)
	l.provisionedSays(l.us, p, "False/QuotaExceeded", "exceeded quota")
	l.proxyShows(l.us, p, v1alpha1.PhasePending)
	l.told(l.us, p, v1alpha1.ReasonQuotaExceeded, "exceeded quota")
	if err := l.us.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	l.change(l.us, p, func(p *v1alpha1.Proxy) { p.Labels = map[string]string{"any": "thing"} })
	l.change(l.us, p, func(p *v1alpha1.Proxy) { p.Annotations[v1alpha1.AnnotationRetry] = "room" })
	l.proxyShows(l.us, p, v1alpha1.PhaseReady)
	l.remove(l.us, p)
	l.gone(l.us, p)
}

// brokenCrowd measures how long a new Proxy takes in one spoke, without and
// with a thousand in another that fail over and over.
func brokenCrowd(t *testing.T, l *lives) {
	toReady := func(name string) time.Duration {
		p := l.proxy(name)
		began := time.Now()
		l.create(l.eu, p)
		l.proxyShows(l.eu, p, v1alpha1.PhaseReady)
		took := time.Since(began)
		l.remove(l.eu, p)
		l.gone(l.eu, p)
		return took
	}
	without := toReady("alone")
	const broken = 1000
	crowd := l.standIn.Cluster("crowd")
	name := func(i int) string { return fmt.Sprintf("broken-%04d", i) }
	for i := range broken {
		crowd.Put(managed(name(i), l.port, func(p *v1alpha1.Proxy) { p.Spec.Mode, p.Spec.Protocol = v1alpha1.ModeManaged, v1alpha1.ProtocolHTTP }))
	}
	crowd.Answer("/api/v1/namespaces/"+ns+"/pods", apiserver.Status(500, "InternalError", "etcd is not well"))
	l.register("crowd", crowd.Kubeconfig("token-of-crowd"))
	l.spokeShows("crowd", v1alpha1.ConditionReady, "True/Connected", "")
	l.eventually("they fail", func() error {
		failed := 0
		for i := range broken {
			if strings.HasPrefix(condition(crowd.Get(ns, name(i)).Status.Conditions, v1alpha1.ConditionProvisioned), "False/TransientError") {
				failed++
			}
		}
		if failed < broken/4 {
			return fmt.Errorf("%d do", failed)
		}
		return nil
	})
	with := toReady("beside")
	t.Logf("Ready after %s without, and %s with %d broken Proxies in another spoke", without.Round(time.Millisecond), with.Round(time.Millisecond), broken)
	if with > 30*time.Second {
		t.Errorf("delayed by %s", with-without)
	}
	if err := l.hub.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "crowd"}}); err != nil {
		t.Fatal(err)
	}
}
