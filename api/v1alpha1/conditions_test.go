package v1alpha1

import (
	"strings"
	"testing"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAMessageOfAnyLengthOrBytesCanBeWritten(t *testing.T) {
	for name, message := range map[string]string{
		"short":       "all is well",
		"long":        strings.Repeat("x", 100_000),
		"long, wide":  strings.Repeat("€", 50_000),
		"not UTF-8":   "a\xff\xfeb",
		"cut in half": strings.Repeat("x", 1020) + strings.Repeat("€", 10),
	} {
		t.Run(name, func(t *testing.T) {
			var conditions []metav1.Condition
			SetCondition(&conditions, metav1.Condition{Type: "Ready", Status: "False", Reason: "Because", Message: message})
			got := conditions[0].Message
			if len(got) > maxMessage || !utf8.ValidString(got) || got == "" {
				t.Errorf("%d bytes, valid %v", len(got), utf8.ValidString(got))
			}
			if len(message) < maxMessage && utf8.ValidString(message) && got != message {
				t.Errorf("changed without need: %q", got)
			}
		})
	}
}
