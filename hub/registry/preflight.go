package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
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

var errAttempt = &preflightError{v1alpha1.ReasonUnreachable, fmt.Sprintf("the checks of the cluster did not end within %s", attemptTimeout)}

// preflight finds out, in bounded requests, whether this cluster can be worked
// with, and which it is: reachable, every right, identity, CRD, a list of each kind.
func (c *connection) preflight(ctx context.Context) (identity, error) {
	var id identity
	var err error
	if id.version, err = c.version(ctx); err != nil {
		return id, err
	}
	if err := c.reviewRights(ctx); err != nil {
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
		for _, k := range kinds {
			if err := c.listOne(ctx, k, namespace); err != nil {
				return id, err
			}
		}
	}
	return id, nil
}

// versionFormat is what distributions write for a version, generously.
var versionFormat = regexp.MustCompile(`^v?[0-9A-Za-z.+_~-]{1,64}$`)

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
		return "", asked("get /version", err)
	}
	body, err := answer.Raw()
	if err != nil {
		return "", err
	}
	var v version.Info
	if err := json.Unmarshal(body, &v); err != nil || !versionFormat.MatchString(v.GitVersion) || c.isSecret(v.GitVersion) {
		return "", errNotKubernetes
	}
	return v.GitVersion, nil
}

// isSecret says that a server calls something by the credential that it was sent.
func (c *connection) isSecret(name string) bool {
	return leaks([]byte(name), c.config.BearerToken)
}

// contact asks the cluster who it is.
func (c *connection) contact(ctx context.Context) (clusterUID string, err error) {
	system := &metav1.PartialObjectMetadata{}
	system.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := c.get(ctx, metav1.NamespaceSystem, system); err != nil {
		return "", asked("get namespaces "+metav1.NamespaceSystem, err)
	}
	// It is going to be a label's value.
	if system.UID == "" || c.isSecret(string(system.UID)) || len(validation.IsValidLabelValue(string(system.UID))) > 0 {
		return "", errNotKubernetes
	}
	return string(system.UID), nil
}

// prove finds out whether the cluster still is the one that was preflighted.
// While it is not, nothing but that question goes there.
func (c *connection) prove(ctx context.Context) error {
	uid, err := c.contact(ctx)
	if err != nil {
		return err
	}
	if uid != c.identity.clusterUID {
		err = &identityError{c.identity.clusterUID, uid, ""}
	}
	c.stranger.Store(err != nil)
	return err
}

// identityError says that a spoke leads to another cluster than it did; owner
// is the spoke that has that one, if there is one that is older.
type identityError struct{ pinned, found, owner string }

func (e *identityError) Error() string {
	what := fmt.Sprintf("the kubeconfig leads to another cluster than the one registered: kube-system has UID %s instead of %s. ", e.found, e.pinned)
	if e.owner != "" {
		return what + "That one is spoke " + e.owner + " already: undo the change"
	}
	return what + "If it shall take its place, annotate the Secret with " + v1alpha1.AnnotationAcceptIdentity + "=" + e.found
}

const proxiesResource = v1alpha1.ProxyCRDName // the CRD is named by it

const crdManifest = "config/crd/crawl.proxyfleet.dev_proxies.yaml"

func (c *connection) checkCRD(ctx context.Context) error {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(crdKind)
	if err := c.get(ctx, v1alpha1.ProxyCRDName, crd); apierrors.IsNotFound(err) {
		return &preflightError{v1alpha1.ReasonCRDMissing,
			"the cluster has no CustomResourceDefinition " + v1alpha1.ProxyCRDName + ": apply " + crdManifest + " to it"}
	} else if err != nil {
		return asked("get customresourcedefinitions "+v1alpha1.ProxyCRDName, err)
	}
	have, _ := strconv.Atoi(crd.Annotations[v1alpha1.AnnotationSchemaVersion])
	if have < v1alpha1.SchemaVersion {
		return &preflightError{v1alpha1.ReasonCRDOutdated, fmt.Sprintf(
			"the cluster's CustomResourceDefinition %s has schema version %d, this hub needs %d: apply %s to it",
			v1alpha1.ProxyCRDName, have, v1alpha1.SchemaVersion, crdManifest)}
	}
	return nil
}

// listOne lists one object, whichever: looking for one that is selected could
// take an API server through all of them.
func (c *connection) listOne(ctx context.Context, k *kind, namespace string) error {
	ctx, cancel := short(ctx)
	defer cancel()
	what := "list " + k.resource
	if namespace != metav1.NamespaceAll {
		what += " in namespace " + namespace
	}
	return asked(what, c.direct.List(ctx, k.emptyList(), client.InNamespace(namespace), client.Limit(1)))
}

func (c *connection) get(ctx context.Context, name string, into client.Object) error {
	ctx, cancel := short(ctx)
	defer cancel()
	return c.direct.Get(ctx, client.ObjectKey{Name: name}, into)
}
