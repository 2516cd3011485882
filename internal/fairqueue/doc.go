// Package fairqueue is a workqueue for a controller whose workers are shared
// between groups: the spokes of a fleet. A group gets its turn however much the
// others have waiting, and never has more than so many items under way at once;
// one that is full, or hangs, leaves the other workers to the others.
//
// Items are deduplicated as a workqueue does: an item waits at most once, has at
// most one worker, and is taken again after Done when it was added meanwhile. Get
// goes round by group. Within a group items of normal priority come before those
// of low, negative priority (what handlers give to the initial list and resyncs),
// but for every fourth; within a level first in is first out. An item has one ready time, the
// earliest that was asked for, and the highest priority that was asked for.
//
// It is own code over one mutex, one cond, a heap and a timer. client-go's
// workqueue takes a custom order (TypedQueueConfig.Queue), but that order is not
// told of Done and cannot wake a Get: a worker that sleeps because a group is full
// would sleep on when the group has room again. controller-runtime's priorityqueue
// has a fixed order, and looks past items that may not be taken one by one, which
// for a full group of 100,000 means all of them. What is left of client-go is the
// metrics, see meter.
//
// Traded away: fairness is between groups, not between the items of a group; exact priorities are kept and returned, but order in two levels only; metric
// workqueue_depth does not tell priorities apart. A group that hangs still holds
// Most workers: as many hanging groups as it takes to hold all of them stop
// everybody until their passes time out. Adds take the one lock of the queue, and
// Group is called under it.
package fairqueue
