package v1alpha1

import (
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxMessage bounds a condition's message in bytes. The API server refuses a
// status with one over 32 KiB, and nobody reads one over a screen.
const maxMessage = 1024

// SetCondition stages a condition. Its transition time moves only when its
// status does. A message that is too long is cut: it may come from somebody
// else's server.
func SetCondition(conditions *[]metav1.Condition, c metav1.Condition) {
	if len(c.Message) > maxMessage {
		const more = "…"
		cut := maxMessage - len(more)
		for cut > 0 && !utf8.RuneStart(c.Message[cut]) {
			cut--
		}
		c.Message = c.Message[:cut] + more
	}
	c.Message = strings.ToValidUTF8(c.Message, "?")
	meta.SetStatusCondition(conditions, c)
}
