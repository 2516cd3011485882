package registry

import (
	"hash/maphash"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// tally counts the objects of one kind that a connection holds, in whatever
// namespaces, before they are held: what one spoke has must not be all that the
// hub can hold. It counts what comes in instead of what is cached, since a list
// is in memory before it is in a cache.
type tally struct {
	kind *kind
	most int

	mu    sync.Mutex
	total int
}

func newTally(k *kind, most int) *tally { return &tally{kind: k, most: most} }

// share is what one informer has of a tally. It knows objects by a hash of their
// names: two that share one count as one, which does not matter.
type share struct {
	tally *tally
	// have are those that the informer has, coming those of a list under way,
	// which takes their place when it is complete; nil: none is.
	have, coming map[uint64]struct{}
	counted      int
}

var seed = maphash.MakeSeed()

func newShare(t *tally) *share { return &share{tally: t, have: map[uint64]struct{}{}} }

// listed takes note of a page of a list, the first, the last, both or neither,
// and says whether it is not too much.
func (s *share) listed(list runtime.Object, first, last bool) bool {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	if first || s.coming == nil {
		s.coming = map[uint64]struct{}{}
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error { // what is no list is refused by the library
		s.set(o, true)
		return nil
	})
	if last {
		s.complete()
	}
	return s.fits()
}

// watching takes note that a watch begins; with initial events it is a list first.
func (s *share) watching(initial bool) {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	s.coming = nil
	if initial {
		s.coming = map[uint64]struct{}{}
	}
	s.fits()
}

// heard takes note of an event of a watch and says whether it is not too much.
func (s *share) heard(e watch.Event) bool {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	switch e.Type {
	case watch.Added, watch.Modified:
		s.set(e.Object, true)
	case watch.Deleted:
		s.set(e.Object, false)
	case watch.Bookmark:
		if o, err := meta.Accessor(e.Object); err == nil && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			s.complete()
		}
	}
	return s.fits()
}

func (s *share) set(object runtime.Object, there bool) {
	o, err := meta.Accessor(object)
	if err != nil {
		return
	}
	among, key := s.have, maphash.Comparable(seed, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
	if s.coming != nil {
		among = s.coming
	}
	if there {
		among[key] = struct{}{}
	} else {
		delete(among, key)
	}
}

func (s *share) complete() {
	if s.coming != nil {
		s.have, s.coming = s.coming, nil
	}
}

// fits brings the tally up to date and says whether it is within bounds.
func (s *share) fits() bool {
	now := max(len(s.have), len(s.coming))
	s.tally.total += now - s.counted
	s.counted = now
	return s.tally.total <= s.tally.most
}
