package apiserver

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// watcher is where one watch is in the course of a resource's changes.
type watcher struct {
	resource  *resource
	selection selection
	bare      bool // tells metadata alone
	list      bool // begins with what is there
	bookmark  bool // and is told when it has it all
	position  int64
	round     *round
}

func (c *Cluster) watch(w http.ResponseWriter, req *http.Request, r *resource, s selection, query url.Values) {
	wa := watcher{resource: r, selection: s, bare: wantsMetadata(req)}
	wa.bookmark, _ = strconv.ParseBool(query.Get("sendInitialEvents"))
	from := query.Get("resourceVersion")
	wa.list = wa.bookmark || from == "" || from == "0"
	var err error
	if wa.position, err = strconv.ParseInt(from, 10, 64); err != nil && !wa.list {
		refuse(w, badRequest("resourceVersion %q is none of this server's", from))
		return
	}
	if wa.round, err = c.opened(r); err != nil {
		refuse(w, err)
		return
	}
	defer c.closed(wa.round)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := w.(http.Flusher).Flush
	flush()
	for {
		lines, changed, over := c.next(&wa)
		for _, line := range lines {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
		if len(lines) > 0 {
			flush()
		}
		if over {
			return
		}
		select {
		case <-changed:
		case <-wa.round.cut:
			panic(http.ErrAbortHandler)
		case <-req.Context().Done():
			return
		case <-c.server.done:
			panic(http.ErrAbortHandler)
		}
	}
}

// opened counts a watch. What cuts watches and lasts is looked at in the same
// instant, or a watch on its way in could escape it.
func (c *Cluster) opened(r *resource) (*round, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.unavailable:
		panic(http.ErrAbortHandler)
	case r.missing:
		return nil, errMissing()
	}
	r.round.open++
	return r.round, nil
}

func (c *Cluster) closed(r *round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.open--
}

// next is what the watch has not said yet, whether it is over with that, and
// if not, what to wait for.
func (c *Cluster) next(wa *watcher) (lines [][]byte, changed <-chan struct{}, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := wa.resource
	switch {
	case c.muted || wa.round != r.round: // or cut, which changed must not overtake
		return nil, c.changed, false
	case wa.list:
		for _, o := range r.sorted(wa.selection) {
			lines = append(lines, wa.line(watch.Added, o))
		}
		if wa.bookmark {
			end := r.blank()
			end.GetObjectKind().SetGroupVersionKind(r.kind)
			end.SetResourceVersion(c.resourceVersion())
			end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
			lines = append(lines, wa.line(watch.Bookmark, end))
		}
		wa.list, wa.position = false, c.revision
		return lines, c.changed, false
	case wa.position < r.forgotten:
		expired := apierrors.NewResourceExpired("too old resource version").ErrStatus
		expired.TypeMeta = statusType
		return [][]byte{line(watch.Error, &expired)}, nil, true
	}
	first, _ := slices.BinarySearchFunc(r.history, wa.position+1, func(h change, revision int64) int { return cmp.Compare(h.revision, revision) })
	for _, h := range r.history[first:] {
		if kind, o := wa.seen(h); o != nil {
			lines = append(lines, wa.line(kind, o))
		}
	}
	wa.position = c.revision
	return lines, c.changed, false
}

// seen is what a change is for the watch: an object that is not selected any more is gone, and
// one that was not is new. It returns no object if the change is none.
func (wa *watcher) seen(h change) (watch.EventType, client.Object) {
	was := h.old != nil && wa.selection.has(h.old)
	is := !h.gone && wa.selection.has(h.now)
	switch {
	case was && is:
		return watch.Modified, h.now
	case is:
		return watch.Added, h.now
	case was && h.gone:
		return watch.Deleted, h.now
	case was:
		last := copyOf(h.old)
		last.SetResourceVersion(h.now.GetResourceVersion())
		return watch.Deleted, last
	default:
		return "", nil
	}
}

func (wa *watcher) line(kind watch.EventType, o client.Object) []byte {
	return line(kind, shown(o, wa.bare))
}

// line is an event as a watch sends it.
func line(kind watch.EventType, object any) []byte {
	return append(encode(struct {
		Type   watch.EventType `json:"type"`
		Object any             `json:"object"`
	}{kind, object}), '\n')
}
