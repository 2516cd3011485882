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

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// watcher is where one watch is in the course of changes.
type watcher struct {
	namespace string
	list      bool // begins with what is there
	bookmark  bool // and is told when it has it all
	position  int64
	round     *round
}

func (c *Cluster) watchProxies(w http.ResponseWriter, r *http.Request, query url.Values) {
	wa := watcher{namespace: r.PathValue("namespace")}
	wa.bookmark, _ = strconv.ParseBool(query.Get("sendInitialEvents"))
	from := query.Get("resourceVersion")
	wa.list = wa.bookmark || from == "" || from == "0"
	var err error
	if wa.position, err = strconv.ParseInt(from, 10, 64); err != nil && !wa.list {
		refuse(w, badRequest("resourceVersion %q is none of this server's", from))
		return
	}
	if wa.round, err = c.opened(); err != nil {
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
		case <-r.Context().Done():
			return
		case <-c.server.done:
			panic(http.ErrAbortHandler)
		}
	}
}

// opened counts a watch. What cuts watches and lasts is looked at in the same
// instant, or a watch on its way in could escape it.
func (c *Cluster) opened() (*round, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.unavailable:
		panic(http.ErrAbortHandler)
	case !c.crd.present:
		return nil, errNoCRD()
	}
	c.round.open++
	return c.round, nil
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
	switch {
	case c.muted || wa.round != c.round: // or cut, which changed must not overtake
		return nil, c.changed, false
	case wa.list:
		for _, p := range c.sorted(wa.namespace) {
			lines = append(lines, line(watch.Added, p))
		}
		if wa.bookmark {
			lines = append(lines, line(watch.Bookmark, &v1alpha1.Proxy{TypeMeta: proxyType, ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: c.resourceVersion(), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			}}))
		}
		wa.list, wa.position = false, c.revision
		return lines, c.changed, false
	case wa.position < c.forgotten:
		expired := apierrors.NewResourceExpired("too old resource version").ErrStatus
		expired.TypeMeta = statusType
		return [][]byte{line(watch.Error, &expired)}, nil, true
	}
	first, _ := slices.BinarySearchFunc(c.history, wa.position+1, func(h change, revision int64) int { return cmp.Compare(h.revision, revision) })
	for _, h := range c.history[first:] {
		if wa.namespace == "" || h.namespace == wa.namespace {
			lines = append(lines, h.line)
		}
	}
	wa.position = c.revision
	return lines, c.changed, false
}
