package registry

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// fillStatus stages a state in a Spoke's status, the counts apart.
func fillStatus(status *v1alpha1.SpokeStatus, s State) {
	ready := metav1.ConditionFalse
	if s.Ready {
		ready = metav1.ConditionTrue
	}
	v1alpha1.SetCondition(&status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: ready, Reason: s.Reason, Message: s.Message,
	})
	accepted := metav1.Condition{
		Type: v1alpha1.ConditionCredentialAccepted, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonAccepted, Message: "the kubeconfig is in use",
	}
	switch {
	case s.CredentialReason != "":
		accepted.Status, accepted.Reason = metav1.ConditionFalse, s.CredentialReason
		accepted.Message = "the changed kubeconfig is not in use, the one before it serves on: " + s.CredentialMessage
		v1alpha1.SetCondition(&status.Conditions, accepted)
	case s.serving:
		v1alpha1.SetCondition(&status.Conditions, accepted)
	default:
		// Nothing serves: the Ready condition says why, and a condition left by
		// the hub before this one would contradict it.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionCredentialAccepted)
	}
	status.Server, status.Version = orDash(s.Server), orDash(s.Version)
	status.ClusterUID = s.ClusterUID
	status.KubeconfigHash = s.Hash
}

func orDash(v string) string {
	if v == "" {
		return "-"
	}
	return v
}
