package lease

// instant is a point in time, in nanoseconds since the store began, by the monotonic
// clock: leases get neither longer nor shorter when somebody sets the clock.
type instant int64

// deadlines is a heap of things that end, the first to end on top. Each is told its
// place, so that one which ends early leaves at once: lazily dropped entries would pile
// up under clients that take long leases and release them.
type deadlines[T interface{ moved(place int) }] struct{ h []deadline[T] }

type deadline[T any] struct {
	at   instant
	what T
}

func (d *deadlines[T]) len() int { return len(d.h) }

// first is when the next ends; ok says that there is one.
func (d *deadlines[T]) first() (at instant, ok bool) {
	if len(d.h) == 0 {
		return 0, false
	}
	return d.h[0].at, true
}

// due is the next to end if its instant has come.
func (d *deadlines[T]) due(now instant) (next deadline[T], ok bool) {
	if len(d.h) == 0 || d.h[0].at > now {
		return next, false
	}
	return d.h[0], true
}

func (d *deadlines[T]) add(at instant, what T) {
	d.h = append(d.h, deadline[T]{at, what})
	d.settle(len(d.h) - 1)
}

func (d *deadlines[T]) move(place int, at instant) {
	d.h[place].at = at
	d.settle(place)
}

// drop takes out what is at the place.
func (d *deadlines[T]) drop(place int) {
	last := len(d.h) - 1
	d.h[place] = d.h[last]
	d.h[last] = deadline[T]{} // or the array would keep it alive
	d.h = d.h[:last]
	if place < last {
		d.settle(place)
	}
}

// settle moves what is at the place up or down to where it belongs. container/heap would
// put every entry that is added into an allocation of its own.
func (d *deadlines[T]) settle(place int) {
	d.h[place].what.moved(place)
	for place > 0 && d.earlier(place, (place-1)/2) {
		d.swap(place, (place-1)/2)
		place = (place - 1) / 2
	}
	for {
		first := 2*place + 1
		if right := first + 1; right < len(d.h) && d.earlier(right, first) {
			first = right
		}
		if first >= len(d.h) || !d.earlier(first, place) {
			return
		}
		d.swap(first, place)
		place = first
	}
}

func (d *deadlines[T]) earlier(i, j int) bool { return d.h[i].at < d.h[j].at }

func (d *deadlines[T]) swap(i, j int) {
	d.h[i], d.h[j] = d.h[j], d.h[i]
	d.h[i].what.moved(i)
	d.h[j].what.moved(j)
}
