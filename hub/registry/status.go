package registry

import (
	corev1 "k8s.io/api/core/v1"
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
		Type: v1alpha1.ConditionReady, Status: ready, Reason: s.Reason, Message: s.Message, LastTransitionTime: metav1.NewTime(s.Since),
	})
	accepted := metav1.Condition{
		Type: v1alpha1.ConditionCredentialAccepted, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonAccepted, Message: "the kubeconfig is in use",
	}
	switch {
	case s.Shadowed:
		accepted.Status, accepted.Reason = metav1.ConditionFalse, v1alpha1.ReasonKubeconfigInvalid
		accepted.Message = "the Secret of this name is not used, since the hub's own cluster has the name by --local-spoke: give the Secret another name"
		v1alpha1.SetCondition(&status.Conditions, accepted)
	case s.CredentialReason != "":
		accepted.Status, accepted.Reason = metav1.ConditionFalse, s.CredentialReason
		accepted.Message = s.CredentialMessage
		if s.Ready || s.CredentialReason != s.Reason {
			accepted.Message = "the changed Secret is not in use; what it held before serves on, until the hub restarts: " + s.CredentialMessage
		}
		v1alpha1.SetCondition(&status.Conditions, accepted)
	case s.serving:
		v1alpha1.SetCondition(&status.Conditions, accepted)
	default:
		// Nothing serves: the Ready condition says why, and a condition left by
		// the hub before this one would contradict it.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionCredentialAccepted)
	}
	if s.Others != "" {
		v1alpha1.SetCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionContested, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMarkedByAnotherHub,
			Message: "other hubs (" + s.Others + ") manage Proxies here, which this hub leaves alone: register the cluster with one hub, " +
				"and take annotation " + v1alpha1.AnnotationHub + " off the Proxies that it shall take over",
		})
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionContested)
	}
	fillPath(status, s.Path)
	status.Server, status.Version = orDash(s.Server), orDash(s.Version)
	status.ClusterUID = s.ClusterUID
	status.KubeconfigHash = s.Hash
}

// fillPath leaves what the hub before this one has said until this one knows.
func fillPath(status *v1alpha1.SpokeStatus, p path) {
	switch p {
	case pathBroken:
		v1alpha1.SetCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionPathBroken, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonEveryDialFails,
			Message: "every Managed Proxy of this spoke, or, where it has none, every External one, has failed at the dial at least twice in a row, " +
				"and there are at least two: see to the network between the hub and the spoke's proxies and to " +
				"firewalls, and whether annotation " + v1alpha1.AnnotationPodNetwork + " calls a pod network routable that is not. " +
				"They are unhealthy or about to be, until it is mended; their instances are not replaced for it",
		})
	case pathOpen:
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionPathBroken)
	}
}

func orDash(v string) string {
	if v == "" {
		return "-"
	}
	return v
}

// isBadNews says that a condition is True of what should not be.
func isBadNews(kind string) bool {
	return kind == v1alpha1.ConditionContested || kind == v1alpha1.ConditionPathBroken
}

// wordless is the status without the messages of faults, which may be worded
// otherwise each time.
func wordless(status *v1alpha1.SpokeStatus) *v1alpha1.SpokeStatus {
	status = status.DeepCopy()
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Status == metav1.ConditionFalse || isBadNews(c.Type) {
			c.Message = ""
		}
	}
	return status
}

// transition is what an Event tells of a Spoke.
type transition struct{ kind, reason, note string }

// rotated says that a changed kubeconfig is in use, with none refused in between.
func rotated(before, after *v1alpha1.SpokeStatus) bool {
	accepted := func(s *v1alpha1.SpokeStatus) bool {
		return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionCredentialAccepted)
	}
	return before.KubeconfigHash != after.KubeconfigHash && accepted(before) && accepted(after)
}

// transitions are what an admin would want to have seen of a change: what has
// become of Ready, of a changed kubeconfig, of other hubs, and of the path to Proxies.
func transitions(from, to *v1alpha1.SpokeStatus) []transition {
	before, after := from.Conditions, to.Conditions
	var told []transition
	if rotated(from, to) {
		told = append(told, transition{corev1.EventTypeNormal, v1alpha1.ReasonAccepted, "the changed kubeconfig is in use"})
	}
	for _, now := range after {
		was := meta.FindStatusCondition(before, now.Type)
		switch {
		case was != nil && was.Status == now.Status && was.Reason == now.Reason:
		case now.Reason == v1alpha1.ReasonConnecting:
		case now.Type == v1alpha1.ConditionCredentialAccepted && now.Status == metav1.ConditionTrue && was == nil:
		default:
			kind := corev1.EventTypeWarning
			if now.Status == metav1.ConditionTrue && !isBadNews(now.Type) {
				kind = corev1.EventTypeNormal
			}
			reason := now.Reason
			switch {
			case now.Type == v1alpha1.ConditionCredentialAccepted && reason != v1alpha1.ReasonAccepted:
				reason = "Credential" + reason // or it reads like one of Ready
			case now.Type == v1alpha1.ConditionPathBroken:
				reason = now.Type
			}
			told = append(told, transition{kind, reason, now.Message})
		}
	}
	over := func(kind string) bool {
		return meta.IsStatusConditionTrue(before, kind) && meta.FindStatusCondition(after, kind) == nil
	}
	if over(v1alpha1.ConditionContested) {
		told = append(told, transition{corev1.EventTypeNormal, "NotContested", "no Proxy here is marked by another hub any more"})
	}
	if over(v1alpha1.ConditionPathBroken) {
		told = append(told, transition{corev1.EventTypeNormal, "PathRestored", "it is not so any more that every Proxy that counts fails at the dial"})
	}
	return told
}
