package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/proxyfleet/proxy-operator/internal/testkit/certs"
	"github.com/proxyfleet/proxy-operator/test/controlplane"
	"github.com/proxyfleet/proxy-operator/test/process"
)

// placeholderHost is the endpoint of the External sample: an address of TEST-NET-3, which
// nobody has.
const placeholderHost = "203.0.113.7"

// originInfo is the origin's ready file.
type originInfo struct {
	URL      string `json:"url"`
	PlainURL string `json:"plainURL"`
	CAFile   string `json:"caFile"`
}

func (d *demo) checkBinaries(context.Context) error {
	var errs []error
	for _, name := range []string{hubName, "forwardproxy", "node", "origin"} {
		if _, err := os.Stat(filepath.Join(d.bin, name)); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\n`make demo` builds them", err)
	}
	if _, err := os.Stat(d.config); err != nil {
		return fmt.Errorf("%w: run this in the root of the repository, or give --config", err)
	}
	return nil
}

// startInfrastructure starts what needs nothing else. Control planes take seconds each, so all
// start at once.
func (d *demo) startInfrastructure(ctx context.Context) error {
	// Before they start side by side: a first build tells its progress once.
	if _, err := controlplane.Assets(ctx, d.out.lines()); err != nil {
		return err
	}
	functions := []func() error{
		func() error { return d.startOrigin(ctx) },
		func() error { return d.startExternalProxy(ctx) },
	}
	for _, name := range append([]string{hubName}, spokeNames...) {
		functions = append(functions, func() error { return d.startControlPlane(ctx, name) })
	}
	return sideBySide(functions...)
}

func (d *demo) startControlPlane(ctx context.Context, name string) error {
	plane, err := controlplane.Start(ctx, controlplane.Options{
		Name: "control plane of " + name,
		Dir:  d.state.path("run", "controlplane-"+name),
		// Beside the logs of the others, which a failure leaves behind.
		LogDir: d.state.path("logs", "controlplane-"+name),
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.planes[name] = plane
	d.out.line("  control plane of %s at %s", name, plane.Admin().Host)
	return nil
}

func (d *demo) startOrigin(ctx context.Context) error {
	readyFile := d.state.path("run", "origin.json")
	origin, err := d.start(process.Spec{
		Name: "origin", Path: filepath.Join(d.bin, "origin"),
		Args: []string{
			"--addr", "127.0.0.1:0", "--plain-addr", "127.0.0.1:0",
			"--ca-out", d.state.path("run", "origin-ca.crt"), "--ready-file", readyFile,
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = origin.WaitReady(ctx, func(context.Context) error {
		content, err := os.ReadFile(readyFile)
		if err != nil {
			return err
		}
		return json.Unmarshal(content, &d.origin)
	})
	if err == nil {
		d.out.line("  origin at %s", d.origin.URL)
	}
	return err
}

// startExternalProxy starts a proxy that the hub does not manage, on an address of its own, so
// that the origin can tell it from the others. 127.2.0.0/16 is not where nodes put their pods.
func (d *demo) startExternalProxy(ctx context.Context) error {
	host := fmt.Sprintf("127.2.%d.%d", rand.IntN(256), 1+rand.IntN(254))
	port, err := process.ReservePort(host)
	if err != nil {
		return err
	}
	d.external = port
	external, err := d.start(process.Spec{
		Name: "external-proxy", Path: filepath.Join(d.bin, "forwardproxy"),
		Env: []string{
			fmt.Sprintf("PROXY_PORT=%d", port.Number), "PROXY_PROTOCOL=http", "PROXY_BIND_ADDRESS=" + host,
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return external.WaitReady(ctx, func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", port.Address())
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

func (d *demo) prepareClusters(ctx context.Context) error {
	proxies := filepath.Join(d.config, "crd", "crawl.proxyfleet.dev_proxies.yaml")
	spokes := filepath.Join(d.config, "crd", "crawl.proxyfleet.dev_spokes.yaml")
	functions := []func() error{func() error {
		return d.planes[hubName].Apply(ctx, proxies, spokes, filepath.Join(d.config, "rbac", "hub"))
	}}
	for _, name := range spokeNames {
		functions = append(functions, func() error {
			return d.planes[name].Apply(ctx, proxies, filepath.Join(d.config, "rbac", "spoke"))
		})
	}
	return sideBySide(functions...)
}

// startOperator starts what needs prepared clusters.
func (d *demo) startOperator(ctx context.Context) error {
	contexts := []controlplane.Context{}
	for _, name := range append([]string{hubName}, spokeNames...) {
		contexts = append(contexts, controlplane.Context{Name: name, Config: d.planes[name].Admin()})
	}
	content, err := controlplane.Kubeconfig(contexts...)
	if err != nil {
		return err
	}
	if _, err := d.state.write(content, 0o600, "kubeconfig"); err != nil {
		return err
	}
	functions := []func() error{func() error { return d.startHub(ctx) }}
	for _, name := range spokeNames {
		functions = append(functions, func() error { return d.startNode(name) })
	}
	return sideBySide(functions...)
}

// startNode does not wait for the node: it registers itself, and pods wait for it.
func (d *demo) startNode(spoke string) error {
	kubeconfig, err := d.writeKubeconfig("node-"+spoke+".kubeconfig",
		controlplane.Context{Name: spoke, Config: d.planes[spoke].Admin()})
	if err != nil {
		return err
	}
	_, err = d.start(process.Spec{
		Name: "node-" + spoke, Path: filepath.Join(d.bin, "node"),
		Args: []string{
			"--kubeconfig=" + kubeconfig, "--name=" + spoke + "-node",
			"--image=" + proxyImage + "=" + filepath.Join(d.bin, "forwardproxy"),
			"--log-dir=" + d.state.path("logs", "pods-"+spoke),
		},
	})
	return err
}

func (d *demo) writeKubeconfig(file string, context controlplane.Context) (string, error) {
	content, err := controlplane.Kubeconfig(context)
	if err != nil {
		return "", err
	}
	return d.state.write(content, 0o600, "run", file)
}

// registerSpokes does what an admin does: a Secret per spoke, with a token of the ServiceAccount
// that config/rbac/spoke gives just enough rights.
func (d *demo) registerSpokes(ctx context.Context) error {
	for _, name := range spokeNames {
		config, err := d.planes[name].ServiceAccount(ctx, operatorNamespace, "proxy-operator-hub")
		if err != nil {
			return err
		}
		kubeconfig, err := controlplane.Kubeconfig(controlplane.Context{Name: name, Config: config})
		if err != nil {
			return err
		}
		secret := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1",
			"kind":       "Secret",
			"metadata": map[string]any{
				"name":        name,
				"namespace":   operatorNamespace,
				"labels":      map[string]any{"sigs.k8s.io/multicluster-runtime-kubeconfig": "true"},
				"annotations": map[string]any{"crawl.proxyfleet.dev/pod-network": "routable"},
			},
			"stringData": map[string]any{"kubeconfig": string(kubeconfig)},
		}}
		if err := controlplane.ApplyObjects(ctx, d.planes[hubName].Admin(), secret); err != nil {
			return err
		}
	}
	return d.poll(ctx, registerTimeout, func(ctx context.Context) (string, error) {
		known, err := listObjects(ctx, d.planes[hubName].Admin(), "SpokeList")
		return pendingSpokes(spokeNames, known), err
	})
}

// applySamples applies config/samples, with one change that makes the External one real.
func (d *demo) applySamples(ctx context.Context) error {
	for _, name := range spokeNames {
		objects, err := controlplane.Read(filepath.Join(d.config, "samples", name))
		if err != nil {
			return err
		}
		for _, object := range objects {
			if object.GetKind() != "Proxy" {
				continue
			}
			secrets, err := certificateFor(object)
			if err != nil {
				return err
			}
			objects = append(objects, secrets...)
			key := proxyKey{name, object.GetNamespace(), object.GetName()}
			d.expected = append(d.expected, key)
			if host, _, _ := unstructured.NestedString(object.Object, "spec", "endpoint", "host"); host != placeholderHost {
				continue
			}
			endpoint := map[string]any{"host": d.external.Host, "port": int64(d.external.Number)}
			if err := unstructured.SetNestedMap(object.Object, endpoint, "spec", "endpoint"); err != nil {
				return err
			}
			d.out.line("  %s is External: its placeholder %s is replaced by the demo's own proxy at %s",
				key, placeholderHost, d.external.Address())
		}
		if err := controlplane.ApplyObjects(ctx, d.planes[name].Admin(), objects...); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(d.expected) == 0 {
		return errors.New("the samples hold no Proxy")
	}
	d.out.line("  %d Proxies in %d spokes", len(d.expected), len(spokeNames))
	return nil
}

// certificateFor makes the Secret that an https sample refers to, in which a certificate for
// its serverName is, the key, and who has signed it. A sample cannot have a key in it.
func certificateFor(proxy *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	name, found, _ := unstructured.NestedString(proxy.Object, "spec", "tls", "secretRef", "name")
	if !found {
		return nil, nil
	}
	host, _, _ := unstructured.NestedString(proxy.Object, "spec", "tls", "serverName")
	ca, err := certs.NewAuthority("proxy-operator demo CA")
	if err != nil {
		return nil, err
	}
	pair, err := ca.Issue(host)
	if err != nil {
		return nil, err
	}
	return []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": name, "namespace": proxy.GetNamespace()},
		"stringData": map[string]any{
			"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key), "ca.crt": string(ca.PEM),
		},
	}}}, nil
}
