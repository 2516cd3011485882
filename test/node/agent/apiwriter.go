package agent

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"
)

const maxAPIRetry = 5 * time.Second

// apiWriter makes a worker's calls, one at a time and beside it. A request while one is under
// way, or before the time to retry, is dropped: the worker asks again after every event, with
// what is true then.
type apiWriter struct {
	pods    corev1client.PodInterface
	name    string
	uid     types.UID
	results chan apiResult

	underWay bool
	deleted  bool
	delay    time.Duration
	retryAt  time.Time // zero after a success
}

type apiResult struct {
	operation string            // for the log
	status    *corev1.PodStatus // what was written; nil for a deletion
	err       error
}

func newAPIWriter(pods corev1client.PodInterface, pod *corev1.Pod) apiWriter {
	return apiWriter{pods: pods, name: pod.Name, uid: pod.UID, results: make(chan apiResult, 1)}
}

// writeStatus patches, so that it meets no conflict with other writers. The UID in the patch
// keeps it from a namesake.
func (a *apiWriter) writeStatus(ctx context.Context, status corev1.PodStatus, now time.Time) {
	a.call(ctx, now, apiResult{operation: "write status", status: &status}, func(ctx context.Context) error {
		patch, err := statusPatch(map[string]any{"uid": a.uid}, status)
		if err != nil {
			return err
		}
		_, err = a.pods.Patch(ctx, a.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// statusPatch is a merge patch that fails unless the metadata are those of the object.
func statusPatch(metadata map[string]any, status any) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": metadata, "status": status})
}

// delete removes a pod whose process has ended, once.
func (a *apiWriter) delete(ctx context.Context, now time.Time) {
	if a.deleted {
		return
	}
	a.call(ctx, now, apiResult{operation: "delete"}, func(ctx context.Context) error {
		return a.pods.Delete(ctx, a.name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0),
			Preconditions:      &metav1.Preconditions{UID: &a.uid},
		})
	})
}

func (a *apiWriter) call(ctx context.Context, now time.Time, result apiResult, f func(context.Context) error) {
	if a.underWay || now.Before(a.retryAt) {
		return
	}
	a.underWay, a.retryAt = true, time.Time{}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		result.err = f(ctx)
		a.results <- result
	}()
}

// finished takes note of a result and returns an error if the call is to be tried again. A pod
// that is gone is no error: its worker is about to be told.
func (a *apiWriter) finished(result apiResult, now time.Time) error {
	a.underWay = false
	deletion := result.status == nil
	// A deletion conflicts only with a namesake: the pod itself is gone.
	if result.err == nil || apierrors.IsNotFound(result.err) || deletion && apierrors.IsConflict(result.err) {
		a.deleted = a.deleted || deletion
		a.delay = 0
		return nil
	}
	a.delay = min(max(time.Second, 2*a.delay), maxAPIRetry)
	a.retryAt = now.Add(a.delay)
	return result.err
}
