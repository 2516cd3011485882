package proxy

import (
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// toldTrouble is the reason of an Event about an error that changes no condition.
const toldTrouble = "InstanceTrouble"

// warning and normal are the types of an Event.
const (
	warning = corev1.EventTypeWarning
	normal  = corev1.EventTypeNormal
)

// note is an Event to be written.
type note struct{ kind, reason, text string }

// event writes an Event about p. It does not wait for it.
func (s *pass) event(p *v1alpha1.Proxy, kind, reason, text string) {
	// With the resource version in its reference, no Event is taken for another's
	// repetition, whose note it would not show.
	s.recorder.Eventf(p, nil, kind, reason, "Reconcile", "%s", clip(text))
}

// tell writes Events about what has changed since before.
func (s *pass) tell(p *v1alpha1.Proxy, before *v1alpha1.ProxyStatus) {
	for _, n := range news(before, &p.Status, s.told) {
		s.event(p, n.kind, n.reason, n.text)
	}
}

// news is what a person wants to hear of the way from one status to the next:
// every other state of the instance, every other message that told gives a
// reason for, every flip of the verdict.
func news(before, after *v1alpha1.ProxyStatus, told string) []note {
	var all []note
	was, is := find(before, v1alpha1.ConditionProvisioned), find(after, v1alpha1.ConditionProvisioned)
	switch moved := was.Status != is.Status || was.Reason != is.Reason; {
	case moved && troubles[is.Reason]:
		all = append(all, note{warning, is.Reason, is.Message})
	case told != "" && (moved || was.Message != is.Message):
		all = append(all, note{warning, told, is.Message})
	case moved && is.Reason != "":
		all = append(all, note{normal, is.Reason, is.Message})
	}
	was, is = find(before, v1alpha1.ConditionHealthy), find(after, v1alpha1.ConditionHealthy)
	switch {
	case barred[is.Reason] && was.Reason != is.Reason:
		all = append(all, note{warning, is.Reason, is.Message})
	case is.Status == metav1.ConditionFalse && was.Reason != is.Reason:
		all = append(all, note{warning, is.Reason, is.Message})
	case was.Status == is.Status:
	case is.Status == metav1.ConditionTrue:
		all = append(all, note{normal, is.Reason, is.Message})
	}
	return all
}

// troubles are the reasons of condition Provisioned that somebody has to act on.
var troubles = map[string]bool{
	v1alpha1.ReasonPermanentError: true, v1alpha1.ReasonQuotaExceeded: true,
	v1alpha1.ReasonTransientError: true, v1alpha1.ReasonCloudInitError: true,
}

// barred are the reasons of condition Healthy for which nobody dials a Proxy.
var barred = map[string]bool{
	v1alpha1.ReasonNotRoutable: true, v1alpha1.ReasonEndpointConflict: true, v1alpha1.ReasonEndpointForbidden: true,
}

func find(status *v1alpha1.ProxyStatus, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// clip cuts a text to what an API server takes as an Event's note: 1 kB.
func clip(text string) string {
	const most = 1000
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strings.ToValidUTF8(text[:cut], "?") + "…"
}
