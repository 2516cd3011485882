package apiserver

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

var podsResource = corev1.Resource("pods")

// keyOf is what the path names.
func keyOf(r *http.Request) types.NamespacedName {
	return types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

func (c *Cluster) createPod(r *http.Request) (any, error) {
	pod := &corev1.Pod{}
	if err := decode(bodyOf(r), corev1.SchemeGroupVersion.WithKind("Pod"), pod); err != nil {
		return nil, err
	}
	pod.Namespace = r.PathValue("namespace")
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	switch {
	case pod.Name == "":
		return nil, badRequest("the pod has no name")
	case c.pods[key] != nil:
		return nil, apierrors.NewAlreadyExists(podsResource, pod.Name)
	}
	c.revision++
	pod.UID = uuid.NewUUID()
	pod.ResourceVersion = c.resourceVersion()
	pod.CreationTimestamp = metav1.Now().Rfc3339Copy()
	c.pods[key] = pod
	return pod, nil
}

func (c *Cluster) getPod(r *http.Request) (any, error) {
	key := keyOf(r)
	if pod := c.pods[key]; pod != nil {
		return pod, nil
	}
	return nil, apierrors.NewNotFound(podsResource, key.Name)
}

// deletePod removes the pod at once: there is no node to stop it.
func (c *Cluster) deletePod(r *http.Request) (any, error) {
	options := &metav1.DeleteOptions{}
	if body := bodyOf(r); len(body) > 0 {
		if err := decode(body, corev1.SchemeGroupVersion.WithKind("DeleteOptions"), options); err != nil {
			return nil, err
		}
	}
	key := keyOf(r)
	pod := c.pods[key]
	if pod == nil {
		return nil, apierrors.NewNotFound(podsResource, key.Name)
	}
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != pod.UID {
		return nil, apierrors.NewConflict(podsResource, key.Name, errOtherUID)
	}
	delete(c.pods, key)
	return metav1.Status{TypeMeta: statusType, Status: metav1.StatusSuccess, Code: http.StatusOK}, nil
}
