package lease

import (
	"context"
	"time"
)

// sweepInterval bounds how long an idle store keeps what has ended.
const sweepInterval = 10 * time.Second

// Run sweeps until ctx ends; it always returns nil. Nothing but memory depends
// on it: every other method looks at the clock itself.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.sweep()
		}
	}
}

func (s *Store) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.play(time.Now())
}

// Release ends the client's lease. An id that is unknown, ended or another
// client's does nothing. Reports on it are taken for one more cooldown window.
func (s *Store) Release(client, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.play(now)
	if r := s.find(client, id); r != nil && r.holds != nil {
		s.end(r, now)
	}
}

// find returns the record of the client's lease, ended or not, or nil.
func (s *Store) find(client, id string) *record {
	if r := s.records[id]; r != nil && r.client == client {
		return r
	}
	return nil
}

// play does everything that falls due by now, in order.
func (s *Store) play(now time.Time) {
	for d := s.turns.due(now); d != nil; d = s.turns.due(now) {
		if r := d.what; r.holds != nil {
			s.end(r, d.at) // not at now: a late sweep grants no longer window
		} else {
			s.turns.drop(d)
			delete(s.records, r.id)
		}
	}
	for d := s.rests.due(now); d != nil; d = s.rests.due(now) {
		s.rests.drop(d)
		delete(s.cooldowns, d.what)
	}
}

// end gives the seat back and keeps the record for reports.
func (s *Store) end(r *record, at time.Time) {
	r.seat.active.drop(r.holds)
	r.holds = nil
	s.turns.move(r.turn, at.Add(s.options.CooldownWindow))
	cluster := r.seat.key.Cluster
	if s.byCluster[cluster]--; s.byCluster[cluster] == 0 {
		delete(s.byCluster, cluster)
	}
	s.clear(r.seat)
}
