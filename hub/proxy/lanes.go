package proxy

import "sync"

// lanes bounds how many passes one spoke may have under way, so that a spoke
// whose API server hangs or is busy leaves workers to the others. It trades a
// little delay within a spoke for that: what finds its lane full comes again.
type lanes struct {
	most int

	mu    sync.Mutex
	taken map[string]int
}

func newLanes(most int) *lanes { return &lanes{most: most, taken: map[string]int{}} }

// enter takes a place, and says how to give it back; false when all are taken.
func (l *lanes) enter(spoke string) (leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken[spoke] >= l.most {
		return nil, false
	}
	l.taken[spoke]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.taken[spoke]--; l.taken[spoke] == 0 {
			delete(l.taken, spoke)
		}
	}, true
}
