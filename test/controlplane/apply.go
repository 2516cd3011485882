package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	fieldOwner         = "proxy-operator-test"
	establishedTimeout = 30 * time.Second
)

// Apply applies every document of these YAML files, server-side and as the admin, see the
// function Apply.
func (c *ControlPlane) Apply(ctx context.Context, paths ...string) error {
	if err := Apply(ctx, c.admin, paths...); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// Apply reads YAML files, and the .yaml and .yml files of directories (not of those below, and
// not a kustomization.yaml), and applies the objects of them all as ApplyObjects does.
func Apply(ctx context.Context, config *rest.Config, paths ...string) error {
	objects, err := Read(paths...)
	if err != nil {
		return err
	}
	return ApplyObjects(ctx, config, objects...)
}

// ApplyObjects applies objects server-side and returns when the CRDs among them are
// established: CRDs first, then namespaces, then the others in their order. An object whose
// kind the API server does not serve yet is tried again for a while, because a CRD is
// established a moment before it is served.
func ApplyObjects(ctx context.Context, config *rest.Config, objects ...*unstructured.Unstructured) error {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	ordered := slices.Clone(objects)
	slices.SortStableFunc(ordered, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	for _, object := range ordered {
		if err := applyOne(ctx, c, object); err != nil {
			return fmt.Errorf("apply %s: %w", describe(object), err)
		}
	}
	for _, object := range ordered {
		if rank(object) != rankCRD {
			continue
		}
		if err := waitEstablished(ctx, c, object); err != nil {
			return fmt.Errorf("wait for %s to be established: %w", describe(object), err)
		}
	}
	return nil
}

const (
	rankCRD = iota
	rankNamespace
	rankOther
)

func rank(object *unstructured.Unstructured) int {
	switch object.GetKind() {
	case "CustomResourceDefinition":
		return rankCRD
	case "Namespace":
		return rankNamespace
	}
	return rankOther
}

func describe(object *unstructured.Unstructured) string {
	if object.GetNamespace() == "" {
		return object.GetKind() + " " + object.GetName()
	}
	return object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
}

func applyOne(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, readyPoll, establishedTimeout, true, func(ctx context.Context) (bool, error) {
		// A fresh copy each time: Apply writes the answer into what it is given.
		configuration := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
		last = c.Apply(ctx, configuration, client.FieldOwner(fieldOwner), client.ForceOwnership)
		switch {
		case last == nil:
			return true, nil
		case meta.IsNoMatchError(last), isUnserved(last):
			return false, nil
		default:
			return false, last
		}
	})
	if wait.Interrupted(err) && last != nil {
		return last
	}
	return err
}

// isUnserved tells "no such resource", which no handler of the API server words, from "no such
// namespace", which one does.
func isUnserved(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}

func waitEstablished(ctx context.Context, c client.Client, crd *unstructured.Unstructured) error {
	return wait.PollUntilContextTimeout(ctx, readyPoll, establishedTimeout, true, func(ctx context.Context) (bool, error) {
		current := &unstructured.Unstructured{}
		current.SetGroupVersionKind(crd.GroupVersionKind())
		if err := c.Get(ctx, client.ObjectKeyFromObject(crd), current); err != nil {
			return false, err
		}
		// A new one has "conditions": null for a moment.
		field, _, err := unstructured.NestedFieldNoCopy(current.Object, "status", "conditions")
		if err != nil {
			return false, err
		}
		conditions, _ := field.([]any)
		for _, entry := range conditions {
			condition, _ := entry.(map[string]any)
			if condition["type"] == "Established" && condition["status"] == "True" {
				return true, nil
			}
		}
		return false, nil
	})
}

// Read reads the objects of YAML files and of directories of them, see Apply.
func Read(paths ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, path := range paths {
		files, err := yamlFiles(path)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		for _, file := range files {
			more, err := readFile(file)
			if err != nil {
				return nil, fmt.Errorf("read manifest %s: %w", file, err)
			}
			objects = append(objects, more...)
		}
	}
	return objects, nil
}

func yamlFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // sorted by name
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		name := entry.Name()
		extension := filepath.Ext(name)
		isYAML := extension == ".yaml" || extension == ".yml"
		if entry.IsDir() || !isYAML || strings.TrimSuffix(name, extension) == "kustomization" {
			continue
		}
		files = append(files, filepath.Join(path, name))
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s holds no YAML file", path)
	}
	return files, nil
}

func readFile(path string) ([]*unstructured.Unstructured, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 { // a document of comments alone is none
			objects = append(objects, object)
		}
	}
}
