package lease

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// keyLife is how long an idempotency key is remembered.
const keyLife = 10 * time.Minute

// keys are the idempotency keys that clients have used: for ten minutes since they led
// to a lease, or while a request waits for one.
type keys struct {
	of map[clientKey]*remembered
	// spent are those that led to a lease, in the order in which they are forgotten,
	// which is that in which they came: all are remembered equally long. One may have
	// been used again since, or forgotten.
	spent []spentKey
}

type clientKey struct{ client, key string }

type remembered struct {
	request [sha256.Size]byte
	// record is the lease that it led to, until then; nil: none.
	record *record
	until  instant
	// waiter is there while the request waits: for the first time, or since that lease
	// has ended.
	waiter *waiter
}

type spentKey struct {
	key clientKey
	use *remembered
}

func (a ask) key() clientKey { return clientKey{a.client, a.req.Key} }

// fingerprint is the same for the same request.
func (a ask) fingerprint() [sha256.Size]byte {
	text := binary.AppendUvarint(nil, uint64(len(a.query.text)))
	text = append(text, a.query.text...)
	text = binary.AppendVarint(text, int64(a.req.TTL))
	text = binary.AppendVarint(text, int64(a.req.Wait))
	return sha256.Sum256(append(text, a.req.Target...))
}

// find is what the request's key led to, nil when that is not known. The error is
// ErrIdempotencyConflict.
func (k *keys) find(a ask) (*remembered, error) {
	if a.req.Key == "" {
		return nil, nil
	}
	use := k.of[a.key()]
	if use != nil && use.request != a.fingerprint() {
		return nil, ErrIdempotencyConflict
	}
	return use, nil
}

// await notes that a request with this key waits.
func (k *keys) await(a ask, w *waiter) {
	if a.req.Key == "" {
		return
	}
	use := k.of[a.key()]
	if use == nil {
		use = &remembered{request: a.fingerprint()}
		k.of[a.key()] = use
	}
	use.waiter = w
}

// remember notes what the key has led to.
func (k *keys) remember(a ask, r *record, now instant) {
	if a.req.Key == "" {
		return
	}
	use := &remembered{request: a.fingerprint(), record: r, until: now + instant(keyLife)}
	k.of[a.key()] = use
	k.spent = append(k.spent, spentKey{a.key(), use})
}

// giveUp notes that the waiter waits no more and was granted nothing.
func (k *keys) giveUp(w *waiter) {
	use := k.of[w.ask.key()]
	if use == nil || use.waiter != w {
		return
	}
	if use.waiter = nil; use.record == nil {
		delete(k.of, w.ask.key())
	}
}

// forget drops what a key led to if that is a lease that nobody heard of.
func (k *keys) forget(a ask, r *record) {
	use := k.of[a.key()]
	if use == nil || use.record != r {
		return
	}
	if use.record = nil; use.waiter == nil {
		delete(k.of, a.key())
	}
}

// play forgets what is old.
func (k *keys) play(now instant) {
	old := 0
	for ; old < len(k.spent) && k.spent[old].use.until <= now; old++ {
		switch s := k.spent[old]; {
		case k.of[s.key] != s.use:
		case s.use.waiter != nil:
			s.use.record = nil
		default:
			delete(k.of, s.key)
		}
	}
	k.spent = dropFirst(k.spent, old)
}

// dropFirst takes the first n out of a queue, and gives back its memory once it is empty.
func dropFirst[T any](queue []T, n int) []T {
	if n == 0 {
		return queue
	}
	clear(queue[:n])
	queue = queue[n:]
	if len(queue) == 0 {
		return nil
	}
	return queue
}
