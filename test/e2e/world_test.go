package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

const (
	system = "proxy-operator-system"
	crawl  = "crawl"
	euWest = "eu-west"
	usEast = "us-east"

	// patience is for what takes seconds on an idle machine.
	patience = time.Minute
	pollTick = 25 * time.Millisecond
)

// world is a fleet that serves.
type world struct {
	*demo
	hub    cluster
	spokes map[string]cluster
	api    api
}

// cluster is an API server as its admin sees it.
type cluster struct {
	client.WithWatch
	config *rest.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{demo: startDemo(t, false), spokes: map[string]cluster{}}
	w.api = api{base: w.env["API_URL"], token: w.env["API_TOKEN"]}
	w.hub = connect(t, w.env["KUBECONFIG"], "hub")
	for _, name := range []string{euWest, usEast} {
		w.spokes[name] = connect(t, w.env["KUBECONFIG"], name)
	}
	return w
}

func connect(t *testing.T, kubeconfig, context string) cluster {
	t.Helper()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 100, 100
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return cluster{c, config}
}

// eventually tries until check is content and returns how long that took.
func eventually(t *testing.T, within time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(pollTick)
	defer tick.Stop()
	for {
		err := check()
		took := time.Since(began)
		if err == nil {
			return took
		}
		if took > within {
			t.Fatalf("not within %s: %s: %v", within, what, err)
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal(context.Cause(t.Context()))
		}
	}
}

// manifest reads an object as an admin writes it.
func manifest(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return object
}

// get reads an object of namespace crawl.
func (c cluster) get(t *testing.T, name string, object client.Object) error {
	t.Helper()
	return c.Get(t.Context(), client.ObjectKey{Namespace: crawl, Name: name}, object)
}

func (c cluster) proxy(t *testing.T, name string) *v1alpha1.Proxy {
	t.Helper()
	p := &v1alpha1.Proxy{}
	if err := c.get(t, name, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// pods are all of the cluster's, by the UID of the Proxy that they say to be for.
func (c cluster) pods(t *testing.T) map[types.UID][]corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	byProxy := map[types.UID][]corev1.Pod{}
	for _, pod := range list.Items {
		uid := types.UID(pod.Labels[v1alpha1.LabelUID])
		byProxy[uid] = append(byProxy[uid], pod)
	}
	return byProxy
}

// onlyPod is the one pod of a Proxy.
func (c cluster) onlyPod(t *testing.T, p *v1alpha1.Proxy) corev1.Pod {
	t.Helper()
	pods := c.pods(t)[p.UID]
	if len(pods) != 1 {
		t.Fatalf("Proxy %s has %d pods, want 1", p.Name, len(pods))
	}
	return pods[0]
}

// wantOnePodEach fails unless every Managed Proxy has exactly one pod and nothing else runs. It
// returns their UIDs by the Proxies' names.
func (c cluster) wantOnePodEach(t *testing.T) map[string]types.UID {
	t.Helper()
	var proxies v1alpha1.ProxyList
	if err := c.List(t.Context(), &proxies); err != nil {
		t.Fatal(err)
	}
	pods, found := c.pods(t), map[string]types.UID{}
	for _, p := range proxies.Items {
		if p.Spec.Mode == v1alpha1.ModeExternal {
			continue
		}
		if len(pods[p.UID]) != 1 {
			t.Fatalf("Proxy %s has %d pods, want 1", p.Name, len(pods[p.UID]))
		}
		found[p.Name] = pods[p.UID][0].UID
		delete(pods, p.UID)
	}
	if len(pods) > 0 {
		t.Fatalf("there are pods for the Proxies %v, which do not exist or are External", slices.Collect(maps.Keys(pods)))
	}
	return found
}

// podsOfFleet is wantOnePodEach of both spokes.
func (w *world) podsOfFleet(t *testing.T) map[string]types.UID {
	t.Helper()
	all := map[string]types.UID{}
	for name, spoke := range w.spokes {
		for proxy, uid := range spoke.wantOnePodEach(t) {
			all[name+"/"+proxy] = uid
		}
	}
	return all
}

// pidOf is the process that runs as the pod's container.
func pidOf(t *testing.T, pod *corev1.Pod) int {
	t.Helper()
	if len(pod.Status.ContainerStatuses) != 1 {
		t.Fatalf("pod %s has %d container statuses, want 1", pod.Name, len(pod.Status.ContainerStatuses))
	}
	id := pod.Status.ContainerStatuses[0].ContainerID
	pid, err := strconv.Atoi(strings.TrimPrefix(id, "process://"))
	if err != nil {
		t.Fatalf("container id %q: %v", id, err)
	}
	return pid
}

// condition is one of an object's as STATUS/REASON: MESSAGE.
func condition(conditions []metav1.Condition, kind string) string {
	for _, c := range conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s/%s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return "absent"
}
