package apiserver

import (
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func events() *resource {
	return &resource{
		kind: eventsv1.SchemeGroupVersion.WithKind("Event"), plural: "events",
		blank: func() client.Object { return &eventsv1.Event{} },
		keep:  func(_, _ client.Object, _ bool) error { return nil },
		stamp: func(_, _ client.Object) {},
	}
}

// Events are copies of the Events of a namespace, or of all if it is empty, in order of their
// names. They stay: unlike a real server's, they do not expire.
func (c *Cluster) Events(namespace string) []*eventsv1.Event {
	return allCopied[*eventsv1.Event](c, c.events, namespace)
}
