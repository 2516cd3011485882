package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
)

// server is the one API server of this package's tests, which take a namespace
// of it each.
type server struct {
	plane  *controlplane.ControlPlane
	scheme *runtime.Scheme
	admin  client.Client
	hub    client.WithWatch // has the generated roles and nothing more
}

// theServer starts it for the first test that asks.
var theServer = sync.OnceValues(startServer)

var started *controlplane.ControlPlane

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // or controller-runtime complains that there is none
	code := m.Run()
	if started != nil {
		if err := started.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func startServer() (s server, err error) {
	ctx := context.Background()
	s.plane, err = controlplane.Start(ctx, controlplane.Options{Progress: os.Stderr, APIServerFlags: map[string][]string{
		// Plugin ServiceAccount is on in every real cluster, and envtest turns it off;
		// the other one is on in some.
		"disable-admission-plugins": {"StorageObjectInUseProtection"},
		"enable-admission-plugins":  {"ServiceAccount", "OwnerReferencesPermissionEnforcement"},
		// envtest's has 254 addresses, and nobody takes the tests' Services away.
		"service-cluster-ip-range": {"10.0.0.0/16"},
	}})
	if err != nil {
		return s, err
	}
	started = s.plane
	config := filepath.Join("..", "..", "config")
	if err := s.plane.Apply(ctx, filepath.Join(config, "crd", "crawl.proxyfleet.dev_proxies.yaml"), filepath.Join(config, "rbac", "spoke")); err != nil {
		return s, err
	}
	s.scheme = runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s.scheme), v1alpha1.AddToScheme(s.scheme)); err != nil {
		return s, err
	}
	if s.admin, err = client.New(s.plane.Admin(), client.Options{Scheme: s.scheme}); err != nil {
		return s, err
	}
	hub, err := s.plane.ServiceAccount(ctx, "proxy-operator-system", "proxy-operator-hub")
	if err != nil {
		return s, err
	}
	s.hub, err = client.NewWithWatch(unthrottled(hub), client.Options{Scheme: s.scheme})
	return s, err
}

func unthrottled(config *rest.Config) *rest.Config {
	config.QPS = -1
	return config
}
