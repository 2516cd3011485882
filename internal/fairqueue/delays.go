package fairqueue

// delays is a heap (container/heap) of the delayed entries, the earliest first.
type delays[T comparable] []*entry[T]

func (d delays[T]) Len() int { return len(d) }

func (d delays[T]) Less(i, j int) bool {
	if d[i].at.Equal(d[j].at) {
		return d[i].asked < d[j].asked
	}
	return d[i].at.Before(d[j].at)
}

func (d delays[T]) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

func (d *delays[T]) Push(x any) {
	e := x.(*entry[T])
	e.index = len(*d)
	*d = append(*d, e)
}

func (d *delays[T]) Pop() any {
	last := len(*d) - 1
	e := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return e
}
