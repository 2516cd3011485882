package proxy

import (
	"sync"
	"time"
)

// pauses remembers when a Proxy whose quota was exceeded is to be tried again:
// a pass may come for many reasons before. After a restart each is tried once.
type pauses struct {
	mu    sync.Mutex
	byUID map[string]pause
	swept time.Time
}

type pause struct {
	inputs string // it holds for these alone
	until  time.Time
}

func newPauses() *pauses { return &pauses{byUID: map[string]pause{}} }

// left is how long the pause still lasts; zero for none.
func (s *pauses) left(uid string, inputs string, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.byUID[uid]
	if !ok || p.inputs != inputs {
		return 0
	}
	return max(0, p.until.Sub(now))
}

func (s *pauses) put(uid string, inputs string, now time.Time, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byUID[uid] = pause{inputs, now.Add(d)}
	if now.Sub(s.swept) < pollQuota {
		return
	}
	// Those of Proxies that went away without a word.
	s.swept = now
	for uid, p := range s.byUID {
		if now.After(p.until) {
			delete(s.byUID, uid)
		}
	}
}

func (s *pauses) forget(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byUID, uid)
}
