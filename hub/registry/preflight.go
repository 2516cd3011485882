package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// identity is what the preflight learns of a cluster.
type identity struct {
	clusterUID, version string
}

// preflightError is a fault that has a reason of its own.
type preflightError struct{ reason, message string }

func (e *preflightError) Error() string { return e.message }

var errNotKubernetes = &preflightError{v1alpha1.ReasonUnreachable, "the server does not answer as a Kubernetes API server"}

// preflight finds out, in bounded requests, whether this cluster can be worked
// with, and which it is: reachable, every right, identity, CRD, one list.
func (c *connection) preflight(ctx context.Context) (identity, error) {
	var id identity
	var err error
	if id.version, err = c.version(ctx); err != nil {
		return id, err
	}
	reviews, err := authorizationclient.NewForConfigAndClient(c.config, c.http)
	if err != nil {
		return id, fmt.Errorf("build the client: %w", err)
	}
	if err := reviewRights(ctx, reviews.SelfSubjectAccessReviews(), rightsFor(c.cred.namespaces)); err != nil {
		return id, err
	}
	if id.clusterUID, err = c.contact(ctx); err != nil {
		return id, err
	}
	if err := c.checkCRD(ctx); err != nil {
		return id, err
	}
	// The informer would try for ever what this user may not do after all.
	namespaces := c.cred.namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		if err := c.listOne(ctx, namespace); err != nil {
			return id, err
		}
	}
	return id, nil
}

// version asks the API server for its version.
func (c *connection) version(ctx context.Context) (string, error) {
	// Of discovery only the raw client is used.
	disco, err := discovery.NewDiscoveryClientForConfigAndClient(c.config, c.http)
	if err != nil {
		return "", fmt.Errorf("build the client: %w", err)
	}
	ctx, cancel := short(ctx)
	defer cancel()
	answer := disco.RESTClient().Get().AbsPath("/version").Do(ctx)
	if err := answer.Error(); err != nil { // Raw's error lacks the server's words
		return "", err
	}
	body, err := answer.Raw()
	if err != nil {
		return "", err
	}
	var v version.Info
	if err := json.Unmarshal(body, &v); err != nil || v.GitVersion == "" {
		return "", errNotKubernetes
	}
	return v.GitVersion, nil
}

// contact asks the cluster who it is.
func (c *connection) contact(ctx context.Context) (clusterUID string, err error) {
	system := &metav1.PartialObjectMetadata{}
	system.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := c.get(ctx, metav1.NamespaceSystem, system); err != nil {
		return "", err
	}
	if system.UID == "" {
		return "", errNotKubernetes
	}
	return string(system.UID), nil
}

// prove finds out whether the cluster still is the one that was preflighted.
func (c *connection) prove(ctx context.Context) error {
	uid, err := c.contact(ctx)
	if err != nil {
		return err
	}
	if uid != c.identity.clusterUID {
		return &identityError{c.identity.clusterUID, uid}
	}
	return nil
}

// identityError says that a spoke leads to another cluster than it did.
type identityError struct{ pinned, found string }

func (e *identityError) Error() string {
	return fmt.Sprintf("the kubeconfig leads to another cluster than the one registered: kube-system has UID %s instead of %s. If it shall take its place, annotate the Secret with %s=%s",
		e.found, e.pinned, v1alpha1.AnnotationAcceptIdentity, e.found)
}

func (c *connection) checkCRD(ctx context.Context) error {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(crdKind)
	if err := c.get(ctx, v1alpha1.ProxyCRDName, crd); apierrors.IsNotFound(err) {
		return &preflightError{v1alpha1.ReasonCRDMissing,
			"the cluster has no CustomResourceDefinition " + v1alpha1.ProxyCRDName + ": apply config/crd to it"}
	} else if err != nil {
		return err
	}
	have, _ := strconv.Atoi(crd.Annotations[v1alpha1.AnnotationSchemaVersion])
	if have < v1alpha1.SchemaVersion {
		return &preflightError{v1alpha1.ReasonCRDOutdated, fmt.Sprintf(
			"the cluster's CustomResourceDefinition %s has schema version %d, this hub needs %d: apply config/crd to it",
			v1alpha1.ProxyCRDName, have, v1alpha1.SchemaVersion)}
	}
	return nil
}

func (c *connection) listOne(ctx context.Context, namespace string) error {
	ctx, cancel := short(ctx)
	defer cancel()
	return c.direct.List(ctx, &v1alpha1.ProxyList{}, client.InNamespace(namespace), client.Limit(1))
}

func (c *connection) get(ctx context.Context, name string, into client.Object) error {
	ctx, cancel := short(ctx)
	defer cancel()
	return c.direct.Get(ctx, client.ObjectKey{Name: name}, into)
}
