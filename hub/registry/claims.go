package registry

import "time"

// claim is what a spoke has to do with clusters.
type claim struct {
	spoke string
	// created is when the spoke was registered first.
	created time.Time
	// holds is the cluster that it is, or was for a hub before this one; wants is
	// one that it has proven to lead to and is about to be. Empty: none.
	holds, wants string
}

func (c claim) to(clusterUID string) bool {
	return clusterUID != "" && (c.holds == clusterUID || c.wants == clusterUID)
}

// before says that c goes before other: it is older, or of the same age the
// first by name.
func (c claim) before(other claim) bool {
	return c.created.Before(other.created) || c.created.Equal(other.created) && c.spoke < other.spoke
}

// holder names the spoke that a cluster belongs to: of all that claim it the
// oldest, of those the first by name. It is empty when none does.
func holder(claims []claim, clusterUID string) string {
	var best *claim
	for i := range claims {
		c := &claims[i]
		switch {
		case !c.to(clusterUID):
		case best == nil, c.before(*best):
			best = c
		}
	}
	if best == nil {
		return ""
	}
	return best.spoke
}
