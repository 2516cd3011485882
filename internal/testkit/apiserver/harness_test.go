package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // or controller-runtime complains that there is none
	os.Exit(m.Run())
}

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// configTo is what a user of the cluster's kubeconfig has.
func configTo(t *testing.T, c *Cluster) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.RESTConfigFromKubeConfig(c.Kubeconfig("the-token"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	return cfg
}

func knownKinds(t *testing.T) (*runtime.Scheme, meta.RESTMapper) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(v1alpha1.GroupVersion.WithKind("Proxy"), meta.RESTScopeNamespace)
	for _, kind := range []string{"Pod", "PodList", "Secret", "SecretList"} { // a cache of some namespaces asks for lists
		m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(crdKind, meta.RESTScopeRoot)
	return scheme, m
}

// direct is a client without a cache.
func direct(t *testing.T, c *Cluster) client.WithWatch {
	t.Helper()
	scheme, mapper := knownKinds(t)
	cl, err := client.NewWithWatch(configTo(t, c), client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

// running is a cache of Proxies that runs until the test ends and may not have
// synced yet.
func running(t *testing.T, c *Cluster) cache.Cache {
	t.Helper()
	scheme, mapper := knownKinds(t)
	k, err := cache.New(configTo(t, c), cache.Options{
		Scheme: scheme, Mapper: mapper,
		DefaultWatchErrorHandler: func(context.Context, *toolscache.Reflector, error) {}, // meant to happen
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the cache ended: %v", err)
		}
	})
	if _, err := k.GetInformer(t.Context(), &v1alpha1.Proxy{}, cache.BlockUntilSynced(false)); err != nil {
		t.Fatal(err)
	}
	return k
}

// synced is a running cache that has listed.
func synced(t *testing.T, c *Cluster) cache.Cache {
	t.Helper()
	k := running(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if !k.WaitForCacheSync(ctx) {
		t.Fatal("the cache has not synced in time")
	}
	return k
}

// proxy is an External Proxy in namespace crawl.
func proxy(name string) *v1alpha1.Proxy {
	return &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: name},
		Spec: v1alpha1.ProxySpec{
			Mode: v1alpha1.ModeExternal, Protocol: v1alpha1.ProtocolHTTP,
			Endpoint: &v1alpha1.Endpoint{Host: name + ".example.com", Port: 3128},
		},
	}
}

// names are those of all Proxies that the reader has, with their ports.
func names(t *testing.T, from client.Reader, opts ...client.ListOption) string {
	t.Helper()
	var list v1alpha1.ProxyList
	if err := from.List(t.Context(), &list, opts...); err != nil {
		t.Fatal(err)
	}
	all := map[string]int32{} // printed in order
	for _, p := range list.Items {
		all[p.Name] = p.Spec.Endpoint.Port
	}
	return fmt.Sprint(all)
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

// brief bounds a request that is not going to be answered.
func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
