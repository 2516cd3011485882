package proxy

import "testing"

func TestAFullLaneTurnsAwayItsOwnSpokeAlone(t *testing.T) {
	l := newLanes(2)
	first, ok1 := l.enter("hung")
	second, ok2 := l.enter("hung")
	_, ok3 := l.enter("hung")
	other, ok4 := l.enter("good")
	if !ok1 || !ok2 || ok3 || !ok4 {
		t.Fatalf("entered %v %v %v %v", ok1, ok2, ok3, ok4)
	}
	first()
	if third, ok := l.enter("hung"); !ok {
		t.Error("a place that was given back is not taken")
	} else {
		third()
	}
	second()
	other()
	if len(l.taken) != 0 {
		t.Errorf("spokes that are not worked on are remembered: %v", l.taken)
	}
}
