package registry

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestNoMoreIsTakenThanASpokeMayHave plays what informers hear, in a word each:
// "+x" and "-x" are events, "list" and "watch" the beginning of a list by pages
// and of a watch with initial events, "resume" that of one without, "|" the end of
// either list; "b" before a word is for the informer of another namespace.
func TestNoMoreIsTakenThanASpokeMayHave(t *testing.T) {
	for name, tc := range map[string]struct {
		heard string
		fits  bool
	}{
		"as many as it may have":                    {"watch +1 +2 +3 | +3", true},
		"one more in the first list":                {"watch +1 +2 +3 +4", false},
		"one more afterwards":                       {"watch +1 +2 | +3 +4", false},
		"one goes and one comes":                    {"watch +1 +2 +3 | -1 +4 -2 +5", true},
		"a page each":                               {"list +1 +2 +3 |", true},
		"a page too many":                           {"list +1 +2 +3 +4 |", false},
		"others in the next list":                   {"watch +1 +2 +3 | list +4 +5 +6 |", true},
		"more in the next list":                     {"watch +1 +2 +3 | watch +4 +5 +6 +7", false},
		"a list that was given up":                  {"watch +1 | watch +2 +3 resume +4 +5", true},
		"and what was there before it":              {"watch +1 | watch +2 +3 resume +4 +5 +6", false},
		"what never was goes":                       {"watch | -8 -9 +1 +2 +3 -8 +4", false},
		"two informers share":                       {"watch +1 +2 | bwatch b+1", true},
		"and have too many together":                {"watch +1 +2 | bwatch b+1 b+2", false},
		"while both list":                           {"watch bwatch +1 b+1 +2 b+2", false},
		"the one has what the other has given back": {"watch +1 +2 | bwatch b+1 b| -1 b+2 -2 b+3", true},
	} {
		t.Run(name, func(t *testing.T) {
			all := newTally(secretKind, 3)
			shares := map[bool]*share{false: newShare(all), true: newShare(all)}
			fits, pages := true, map[bool]bool{}
			for word := range strings.FieldsSeq(tc.heard) {
				rest, other := strings.CutPrefix(word, "b")
				s := shares[other]
				object := bare(secretKind.object.GetObjectKind().GroupVersionKind())
				object.Name, object.Namespace = strings.TrimLeft(rest, "+-"), fmt.Sprint(other)
				page := &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{*object}}
				switch {
				case rest == "list":
					pages[other] = true
					fits = s.listed(&metav1.PartialObjectMetadataList{}, true, false) && fits
				case rest == "watch" || rest == "resume":
					pages[other] = false
					s.watching(rest == "watch")
				case rest == "|" && pages[other]:
					fits = s.listed(&metav1.PartialObjectMetadataList{}, false, true) && fits
				case rest == "|":
					object.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
					fits = s.heard(watch.Event{Type: watch.Bookmark, Object: object}) && fits
				case pages[other]:
					fits = s.listed(page, false, false) && fits
				case rest[0] == '-':
					fits = s.heard(watch.Event{Type: watch.Deleted, Object: object}) && fits
				default:
					fits = s.heard(watch.Event{Type: watch.Added, Object: object}) && fits
				}
			}
			if fits != tc.fits {
				t.Errorf("fits: %v, want %v", fits, tc.fits)
			}
		})
	}
}
