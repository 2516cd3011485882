package fleet

import (
	"maps"
	"reflect"
	"slices"
	"sync"
)

// Change is one Proxy before and after. Old is nil when it joined the fleet,
// New when it left. Old is the very value that was New in the change before, so that
// a follower may know a Proxy by it.
type Change struct {
	Old, New *Proxy
}

// Options configure a Fleet. The zero value works.
type Options struct {
	// AllowLocal takes endpoints on addresses that are Forbidden otherwise.
	AllowLocal bool
}

// Fleet holds the Proxies. Create it with New; all methods may be called from
// any goroutine, but not from a follower.
type Fleet struct {
	options Options

	mu        sync.Mutex
	clusters  map[string]map[Key]*Proxy
	routable  map[string]bool   // whose pod networks are the hub's to dial
	rivals    map[string]rivals // who contends for an endpoint
	followers []func(Change)
	judged    bool // by this hub, from here on
}

// New returns an empty fleet.
func New(o Options) *Fleet {
	return &Fleet{options: o, clusters: map[string]map[Key]*Proxy{}, routable: map[string]bool{}, rivals: map[string]rivals{}}
}

// SetRoutable says whether addresses of the cluster's pods are the hub's to dial.
// Until that is said they are not.
func (f *Fleet) SetRoutable(cluster string, routable bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.routable[cluster] == routable {
		return
	}
	if delete(f.routable, cluster); routable {
		f.routable[cluster] = true
	}
	// Who contends for what first, then what each is told: in between nobody is free
	// who has a rival before and after.
	var moved []*Proxy
	var told []Key
	keys := slices.SortedFunc(maps.Keys(f.clusters[cluster]), Key.Compare)
	if !routable {
		slices.Reverse(keys) // of many rivals the last comes and goes most cheaply
	}
	for _, key := range keys {
		if old := f.clusters[cluster][key]; old.PodNetwork {
			p := *old
			told = append(told, f.contendLocked(p.Key, holds(old), f.claims(&p))...)
			moved = append(moved, &p)
		}
	}
	for _, p := range moved {
		f.storeLocked(f.clusters[cluster][p.Key], p)
	}
	f.tellLocked(told)
}

// Follow calls f now for every Proxy in the fleet, and then for every change.
// See the package's documentation for what f may do.
func (f *Fleet) Follow(follower func(Change)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.allLocked() {
		follower(Change{New: p})
	}
	f.followers = append(f.followers, follower)
}

// Judge says that this hub judges from here on: verdicts are those of SetVerdict, and
// what statuses claim counts at first sight alone. Until then another hub may judge, and
// its verdicts, as the statuses show them, are taken over: of clusters of which current
// says that the fleet shows them as they are now, nil for all. What others' statuses said
// last may be long past.
func (f *Fleet) Judge(current func(cluster string) bool) {
	past := map[string]bool{}
	if current != nil { // is not called under the lock
		for _, p := range f.All() {
			if _, known := past[p.Cluster]; !known {
				past[p.Cluster] = !current(p.Cluster)
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.judged = true
	for _, old := range f.allLocked() {
		if past[old.Cluster] && old.Verdict != (Verdict{}) {
			p := *old
			p.Verdict = Verdict{}
			f.storeLocked(old, &p)
		}
	}
}

// Upsert records a Proxy as its spoke shows it. p.Verdict is what the status claims;
// see Judge.
func (f *Fleet) Upsert(p Proxy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.clusters[p.Cluster][p.Key]
	p = merge(old, p, f.judged)
	if old != nil {
		p.Barred = old.Barred // what stands against it is found out when it is stored
	}
	if old != nil && reflect.DeepEqual(*old, p) {
		return
	}
	f.putLocked(old, &p)
}

// Delete removes the Proxy if it still is the one with this UID. A namesake
// that came after it stays.
func (f *Fleet) Delete(key Key, uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.clusters[key.Cluster][key]; old != nil && old.UID == uid {
		f.removeLocked(old)
	}
}

// Retain removes the cluster's Proxies whose keys are not in keep: what was
// deleted while nobody watched. A nil keep removes them all.
func (f *Fleet) Retain(cluster string, keep map[Key]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var gone []*Proxy
	for key, old := range f.clusters[cluster] {
		if !keep[key] {
			gone = append(gone, old)
		}
	}
	f.removeLocked(gone...)
}

// SetVerdict records the engine's opinion of one subject. It answers false, and
// changes nothing, when that is no longer what the Proxy is, or nobody may dial it.
func (f *Fleet) SetVerdict(key Key, about Subject, v Verdict) bool {
	return f.edit(key, about.Instance, func(p *Proxy) bool {
		if p.Withdrawn || p.Barred.Kind != NotBarred || p.Subject() != about {
			return false
		}
		p.Verdict = v
		return true
	})
}

// SetWithdrawn takes the instance out of service at once, before the
// reconciler deletes it: it is neither probed nor offered from here on. False
// takes that back; the instance then starts without a verdict.
func (f *Fleet) SetWithdrawn(key Key, instance string, withdrawn bool) {
	f.edit(key, instance, func(p *Proxy) bool {
		if p.Withdrawn == withdrawn {
			return false
		}
		p.Withdrawn, p.Verdict = withdrawn, Verdict{}
		return true
	})
}

// Restore puts an instance back into service that was withdrawn for a moment,
// with the verdict that it had.
func (f *Fleet) Restore(key Key, instance string, v Verdict) {
	f.edit(key, instance, func(p *Proxy) bool {
		if !p.Withdrawn {
			return false
		}
		p.Withdrawn, p.Verdict = false, v
		return true
	})
}

// SetCredentials records what the instance asks its clients for, empty for
// nothing; nil takes back that it is known. A Managed instance needs what it was
// made with, whatever the spec says by now. They are kept for a Proxy, too, that needs none as far as the
// fleet knows: whoever resolves them may have seen an edit before the fleet has.
//
// The verdict stays. An External proxy whose password is edited must not drop
// out of service for that: the next probe judges it.
func (f *Fleet) SetCredentials(key Key, instance string, c *Credentials) {
	if c != nil {
		own := *c // what is in the fleet is nobody's to change
		c = &own
	}
	f.edit(key, instance, func(p *Proxy) bool {
		if p.Credentials.Equal(c) {
			return false
		}
		p.Credentials = c
		return true
	})
}

// SetAuthorities records who signs the certificate of the proxy at this instance;
// nil: whoever the system trusts. The verdict stays, as with SetCredentials.
func (f *Fleet) SetAuthorities(key Key, instance string, a *Authorities) {
	f.edit(key, instance, func(p *Proxy) bool {
		if p.Authorities.Equal(a) {
			return false
		}
		p.Authorities = a
		return true
	})
}

// edit applies change to a copy of the Proxy if it still is that instance, and
// stores the copy if change says so.
func (f *Fleet) edit(key Key, instance string, change func(*Proxy) bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.clusters[key.Cluster][key]
	if old == nil || old.Instance != instance {
		return false
	}
	p := *old
	if !change(&p) {
		return false
	}
	f.putLocked(old, &p)
	return true
}

// Get returns the Proxy, or nil.
func (f *Fleet) Get(key Key) *Proxy {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clusters[key.Cluster][key]
}

// All returns every Proxy, in no order.
func (f *Fleet) All() []*Proxy {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.allLocked()
}

// Count returns how many Proxies the cluster has, and how many instances run
// for the Managed ones among them.
func (f *Fleet) Count(cluster string) (proxies, instances int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.clusters[cluster] {
		if p.Managed && p.Instance != "" {
			instances++
		}
	}
	return len(f.clusters[cluster]), instances
}

// putLocked stores p in the place of old, nil for none, after it has found out
// whether p may be dialled.
func (f *Fleet) putLocked(old, p *Proxy) {
	told := f.contendLocked(p.Key, holds(old), f.claims(p))
	f.storeLocked(old, p)
	f.tellLocked(told)
}

// removeLocked removes Proxies. None is told that it is free who goes as well.
func (f *Fleet) removeLocked(gone ...*Proxy) {
	var told []Key
	// The last first: of many rivals it goes most cheaply.
	slices.SortFunc(gone, func(a, b *Proxy) int { return b.Compare(a.Key) })
	for _, old := range gone {
		told = append(told, f.contendLocked(old.Key, holds(old), "")...)
	}
	for _, old := range gone {
		delete(f.clusters[old.Cluster], old.Key)
		if len(f.clusters[old.Cluster]) == 0 {
			delete(f.clusters, old.Cluster)
		}
		f.changedLocked(Change{Old: old})
	}
	f.tellLocked(told)
}

// storeLocked stores p once it is known who contends for what.
func (f *Fleet) storeLocked(old, p *Proxy) {
	p.Barred = f.bar(p)
	if p.Barred.Kind != NotBarred {
		p.Verdict = Verdict{}
	}
	if f.clusters[p.Cluster] == nil {
		f.clusters[p.Cluster] = map[Key]*Proxy{}
	}
	f.clusters[p.Cluster][p.Key] = p
	f.changedLocked(Change{Old: old, New: p})
}

// bar is what stands against dialling p, by itself or for a rival.
func (f *Fleet) bar(p *Proxy) Bar {
	if endpoint := f.claims(p); endpoint != "" {
		if _, rival := f.rivals[endpoint].around(p.Key); rival != p.Key {
			return Bar{Kind: EndpointConflict, Rival: rival}
		}
	}
	return f.barAlone(p)
}

func (f *Fleet) barAlone(p *Proxy) Bar {
	return barAlone(p, f.routable[p.Cluster], f.options.AllowLocal)
}

// claims is the endpoint that p contends for as things are, holds the one that a
// Proxy of the fleet, nil for none, has contended for since it was stored.
func (f *Fleet) claims(p *Proxy) string { return contends(p, f.barAlone(p)) }

func holds(p *Proxy) string {
	if p == nil {
		return ""
	}
	return contends(p, p.Barred)
}

// contendLocked moves a Proxy from one endpoint's rivals to another's and returns
// those others to which that is news.
func (f *Fleet) contendLocked(key Key, from, to string) (told []Key) {
	if from == to {
		return nil
	}
	if from != "" {
		left := f.rivals[from].without(key)
		if f.rivals[from] = left; len(left) == 0 {
			delete(f.rivals, from)
		} else {
			before, _ := left.around(key)
			told = append(told, before)
		}
	}
	if to != "" {
		f.rivals[to] = f.rivals[to].with(key)
		if before, _ := f.rivals[to].around(key); before != key {
			told = append(told, before)
		}
	}
	return told
}

// tellLocked finds out anew whether these Proxies have a rival.
func (f *Fleet) tellLocked(keys []Key) {
	for _, key := range keys {
		old := f.clusters[key.Cluster][key]
		if old == nil || f.bar(old) == old.Barred {
			continue
		}
		p := *old
		f.storeLocked(old, &p)
	}
}

func (f *Fleet) changedLocked(c Change) {
	for _, follower := range f.followers {
		follower(c)
	}
}

func (f *Fleet) allLocked() []*Proxy {
	n := 0
	for _, cluster := range f.clusters {
		n += len(cluster)
	}
	all := make([]*Proxy, 0, n)
	for _, cluster := range f.clusters {
		all = slices.AppendSeq(all, maps.Values(cluster))
	}
	return all
}
