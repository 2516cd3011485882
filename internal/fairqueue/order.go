package fairqueue

import "time"

// place is where an entry is, its being under way apart.
type place int

const (
	nowhere place = iota
	delayed       // in the heap, until its time has come
	ready         // in its group's line; while under way: to be put there by Done
)

// entry is what the queue knows of one item. It lives while the item waits, is
// ready or under way.
type entry[T comparable] struct {
	item     T
	group    *group[T]
	priority int
	place    place
	underWay bool

	// While delayed.
	at    time.Time
	asked uint64 // orders those of one instant
	index int    // in the heap

	// While in a line.
	line       *line[T]
	prev, next *entry[T]
}

// group is one of those that the workers are shared between.
type group[T comparable] struct {
	name        string
	entries     int // of this group that the queue knows, in whatever place
	underWay    int
	normal, low line[T]
	// passed counts the takes from normal while low had something, see lowTurn.
	passed  int
	inTurns bool
}

func (g *group[T]) lineOf(priority int) *line[T] {
	if priority < 0 {
		return &g.low
	}
	return &g.normal
}

// order says who is next. The groups that may be taken from, and only those,
// stand in turns, each once; so that every step is independent of how much waits.
type order[T comparable] struct {
	most    int // under way per group; zero: no bound
	groups  map[string]*group[T]
	turns   []*group[T]
	waiting int // entries in lines
}

// group finds the group of that name for one more entry.
func (o *order[T]) group(name string) *group[T] {
	g := o.groups[name]
	if g == nil {
		g = &group[T]{name: name}
		o.groups[name] = g
	}
	g.entries++
	return g
}

// forget takes an entry away from its group, and the group away with its last.
func (o *order[T]) forget(e *entry[T]) {
	if e.group.entries--; e.group.entries == 0 {
		delete(o.groups, e.group.name)
	}
}

// join puts an entry at the end of its line.
func (o *order[T]) join(e *entry[T]) {
	e.group.lineOf(e.priority).push(e)
	o.waiting++
	o.turn(e.group)
}

// raise moves an entry that stands in a line to the end of the one that its
// priority now asks for, if that is another.
func (o *order[T]) raise(e *entry[T]) {
	if to := e.group.lineOf(e.priority); to != e.line {
		e.line.remove(e)
		to.push(e)
	}
}

// takeable says whether take finds something.
func (o *order[T]) takeable() bool { return len(o.turns) > 0 }

// lowTurn is how many takes of a group there are to one of low priority, where
// both levels wait: what only makes way must not wait for ever.
const lowTurn = 4

// take takes the next entry out of its line and counts it as under way.
func (o *order[T]) take() *entry[T] {
	g := o.turns[0]
	o.turns[0] = nil // the array below keeps it otherwise
	o.turns = o.turns[1:]
	g.inTurns = false
	from := &g.normal
	switch {
	case g.low.first == nil:
		g.passed = 0
	case from.first == nil || g.passed == lowTurn-1:
		from, g.passed = &g.low, 0
	default:
		g.passed++
	}
	e := from.first
	from.remove(e)
	o.waiting--
	g.underWay++
	o.turn(g)
	return e
}

// leave gives back the place of one entry that was under way.
func (o *order[T]) leave(g *group[T]) {
	g.underWay--
	o.turn(g)
}

// turn puts a group at the end of the turns, if it may be taken from and is not
// there. Nothing but take makes that untrue again, and take asks anew.
func (o *order[T]) turn(g *group[T]) {
	full := o.most > 0 && g.underWay >= o.most
	empty := g.normal.first == nil && g.low.first == nil
	if !g.inTurns && !full && !empty {
		g.inTurns = true
		o.turns = append(o.turns, g)
	}
}

// line is a doubly linked list: first in, first out, and out of the middle what
// moves up.
type line[T comparable] struct {
	first, last *entry[T]
}

func (l *line[T]) push(e *entry[T]) {
	e.line, e.prev, e.next = l, l.last, nil
	if l.last == nil {
		l.first = e
	} else {
		l.last.next = e
	}
	l.last = e
}

func (l *line[T]) remove(e *entry[T]) {
	if e.prev == nil {
		l.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.line, e.prev, e.next = nil, nil, nil
}
