package pod

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What an API server makes of a webhook's answer (apiserver ToStatusErr): code and
// reason are the webhook's own. controller-runtime before v0.15 puts the text of
// admission.Denied into the reason.
func TestNoWebhooksWordsAboutFilesAreRepeated(t *testing.T) {
	for name, s := range map[string]metav1.Status{
		"reason is free text": {Code: 403, Reason: "password hunter2 is weak"},
		"reason, 400":         {Code: 400, Reason: "password hunter2 is weak"},
		"reason, 500":         {Code: 500, Reason: "password hunter2 is weak"},
		"401":                 {Code: 401, Reason: metav1.StatusReasonUnauthorized, Message: "admission webhook \"w\" denied the request: hunter2"},
		"404":                 {Code: 404, Reason: metav1.StatusReasonNotFound, Message: "admission webhook \"w\" denied the request: hunter2"},
		"terminating": {Code: 403, Reason: metav1.StatusReasonForbidden, Message: "admission webhook \"w\" denied the request: hunter2",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}}},
	} {
		s.Status = "Failure"
		if s.Message == "" {
			s.Message = "admission webhook \"w\" denied the request: " + string(s.Reason)
		}
		if got := refusedFiles(&apierrors.StatusError{ErrStatus: s}).Error(); strings.Contains(got, "hunter2") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
