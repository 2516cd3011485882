package app_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func hundredSpokes(t *testing.T, r *registrations) {
	const spokes = 100
	name := func(i int) string { return fmt.Sprintf("crowd-%d", i) }
	port := r.forwardProxy()
	for i := range spokes {
		r.standIn.Cluster(name(i)).Put(external("px", port))
	}
	heap, goroutines := r.heapNow(), settled()
	began := time.Now()
	for i := range spokes {
		r.add(name(i), r.standIn.Cluster(name(i)).Kubeconfig("token-of-"+name(i)))
	}
	registered := time.Since(began)
	want := map[string]string{"eu": "Connected", "us": "Connected"}
	for i := range spokes {
		want[name(i)] = "Connected"
	}
	r.clustersSay(want)
	connected := time.Since(began)
	r.eventually("every Spoke says so", func() error {
		var list v1alpha1.SpokeList
		if err := r.hub.List(t.Context(), &list, client.InNamespace(system)); err != nil {
			return err
		}
		for i := range list.Items {
			if got := condition(list.Items[i].Status.Conditions, v1alpha1.ConditionReady); !strings.HasPrefix(got, "True/Connected") {
				return fmt.Errorf("%s is %s", list.Items[i].Name, got)
			}
		}
		if len(list.Items) != len(want) {
			return fmt.Errorf("%d Spokes, want %d", len(list.Items), len(want))
		}
		return nil
	})
	t.Logf("%d spokes: the Secrets made after %s, all connected after %s, told after %s; %d KiB of heap and %d goroutines each, the stand-in's part included",
		spokes, registered.Round(time.Millisecond), connected.Round(time.Millisecond), time.Since(began).Round(time.Millisecond),
		(r.heapNow()-heap)>>10/spokes, (settled()-goroutines)/spokes)
	if listed := r.listed("?limit=5000"); listed["crowd-99/px"].Name == "" {
		t.Errorf("%d Proxies are listed, not that of the last spoke", len(listed))
	}
	began = time.Now()
	for i := range spokes {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name(i)}}
		if err := r.hub.Delete(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually("all are gone", func() error {
		for key := range r.listed("?limit=5000") {
			if strings.HasPrefix(key, "crowd-") {
				return fmt.Errorf("%s is listed", key)
			}
		}
		for i := range spokes {
			if n := r.standIn.Cluster(name(i)).Watches(); n > 0 {
				return fmt.Errorf("%s is watched", name(i))
			}
		}
		return nil
	})
	t.Logf("deregistered after %s", time.Since(began).Round(time.Millisecond))
}

// nothingLeaked looks for everything of every kubeconfig of these tests in all
// that the hub has written, plain and in base64.
func nothingLeaked(t *testing.T, r *registrations) {
	var spokes v1alpha1.SpokeList
	var events eventsv1.EventList
	for _, list := range []client.ObjectList{&spokes, &events} {
		if err := r.hub.List(t.Context(), list, client.InNamespace(system)); err != nil {
			t.Fatal(err)
		}
	}
	written := map[string]string{
		"the Spokes": string(must[[]byte](t)(json.Marshal(spokes))), "the Events": string(must[[]byte](t)(json.Marshal(events))),
	}
	for i, log := range append(r.logs, r.log) {
		written[fmt.Sprintf("log %d", i)] = log.String()
	}
	if len(events.Items) == 0 || len(written["log 0"]) < 1000 || len(r.secrets) < 300 {
		t.Fatalf("nothing to look at, or for: %d Events, %d bytes of log, %d secrets", len(events.Items), len(written["log 0"]), len(r.secrets))
	}
	for where, text := range written {
		for _, secret := range r.secrets {
			if secret == "" {
				continue
			}
			for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
				if at := strings.Index(text, form); at >= 0 {
					t.Errorf("%s shows something of a kubeconfig: …%s…", where, text[max(0, at-200):at])
					break
				}
			}
		}
		t.Logf("%s: %d KiB looked through", where, len(text)>>10)
	}
}
