package app_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// The steps of TestSpokes about which cluster is whose.

// shows waits until the API lists exactly these Proxies of a spoke.
func (r *registrations) shows(spoke string, names ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("spoke %s lists %v", spoke, names), func() error {
		listed := r.listed("?cluster=" + spoke + "&limit=5000")
		for _, name := range names {
			if _, there := listed[spoke+"/"+name]; !there {
				return fmt.Errorf("%s is missing", name)
			}
		}
		if len(listed) != len(names) {
			return fmt.Errorf("%d are listed", len(listed))
		}
		return nil
	})
}

func otherCluster(t *testing.T, r *registrations) {
	eu, us := r.spokes["eu"], r.spokes["us"]
	r.drop("us")
	r.create(us, external("other", r.forwardProxy()))
	before := len(r.listed("?cluster=eu&limit=5000"))
	uids := map[string]string{}
	for name, s := range r.spokes {
		uids[name] = must[string](t)(s.plane.UID(t.Context()))
	}

	r.rotate("eu", us.kubeconfig)
	r.spokeShows("eu", v1alpha1.ConditionCredentialAccepted, "False/IdentityChanged", v1alpha1.AnnotationAcceptIdentity+"="+uids["us"])
	r.eventHappened("eu", corev1.EventTypeWarning, "CredentialIdentityChanged")
	spoke := r.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "")
	if now := len(r.listed("?cluster=eu&limit=5000")); now != before || spoke.Status.ClusterUID != uids["eu"] {
		t.Errorf("%d listed, %d before; cluster %s", now, before, spoke.Status.ClusterUID)
	}
	accept := func(uid string) {
		r.edit("eu", func(s *corev1.Secret) { s.Annotations[v1alpha1.AnnotationAcceptIdentity] = uid })
	}
	accept("another-uid")
	r.spokeShows("eu", v1alpha1.ConditionCredentialAccepted, "False/IdentityChanged", "")
	accept(uids["us"])
	r.shows("eu", "other")
	spoke = r.spokeShows("eu", v1alpha1.ConditionCredentialAccepted, "True/", "")
	if spoke.Status.ClusterUID != uids["us"] {
		t.Errorf("the spoke shows cluster %s, want %s", spoke.Status.ClusterUID, uids["us"])
	}
	r.rotate("eu", eu.kubeconfig)
	r.spokeShows("eu", v1alpha1.ConditionCredentialAccepted, "False/IdentityChanged", uids["eu"])
	accept(uids["eu"])
	r.spokeShows("eu", v1alpha1.ConditionCredentialAccepted, "True/", "")
	if now := len(r.listed("?cluster=eu&limit=5000")); now != before {
		t.Errorf("%d listed, %d before", now, before)
	}
	behindTheSameName(t, r)
}

// behindTheSameName lets another cluster answer under an address that has not changed.
func behindTheSameName(t *testing.T, r *registrations) {
	turncoat := r.standIn.Cluster("turncoat")
	turncoat.Put(external("before", r.forwardProxy()))
	r.add("turncoat", turncoat.Kubeconfig("token-of-turncoat"))
	r.shows("turncoat", "before")
	turncoat.SetUID("uid-of-another")
	turncoat.Remove(ns, "before")
	turncoat.Put(external("of-another", r.forwardProxy()))
	r.spokeShows("turncoat", v1alpha1.ConditionReady, "False/IdentityChanged", "uid-of-another")
	r.shows("turncoat", "before") // its Proxies may well be there, somewhere
	if mark := turncoat.Get(ns, "of-another").Annotations[v1alpha1.AnnotationHub]; mark != "" {
		t.Error("a Proxy of the other cluster was reconciled")
	}
	turncoat.SetUID("uid-turncoat")
	r.spokeShows("turncoat", v1alpha1.ConditionReady, "True/Connected", "")
	r.shows("turncoat", "of-another")
	r.drop("turncoat")
}

func twoNames(t *testing.T, r *registrations) {
	eu, us := r.spokes["eu"], r.spokes["us"]
	usUID, euUID := must[string](t)(us.plane.UID(t.Context())), must[string](t)(eu.plane.UID(t.Context()))
	r.add("us", us.kubeconfig)
	r.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")
	r.add("us-again", us.hubKubeconfig(t))
	r.spokeShows("us-again", v1alpha1.ConditionReady, "False/DuplicateCluster", "spoke us ")
	r.shows("us", "other")
	r.shows("us-again")
	// The Secret of eu is older than that of us: it takes the cluster from it.
	lead := func(kubeconfig []byte, uid string) {
		r.remember(kubeconfig)
		r.edit("eu", func(s *corev1.Secret) {
			s.Data[v1alpha1.KubeconfigKey] = kubeconfig
			s.Annotations[v1alpha1.AnnotationAcceptIdentity] = uid
		})
	}
	lead(us.hubKubeconfig(t), usUID)
	r.spokeShows("us", v1alpha1.ConditionReady, "False/DuplicateCluster", "spoke eu ")
	r.shows("eu", "other")
	r.shows("us")
	lead(eu.hubKubeconfig(t), euUID)
	r.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")
	r.shows("us", "other")
	r.drop("us")
	r.spokeShows("us-again", v1alpha1.ConditionReady, "True/Connected", "")
	r.drop("us-again")
	r.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "")
}

func twoHubs(t *testing.T, r *registrations) {
	eu, us := r.spokes["eu"], r.spokes["us"]
	us.prepare(t, "crd", "rbac/hub") // it becomes the cluster of a hub of its own
	second := r.runHub(us.plane, "--zap-log-level", "10")
	r.logs = append(r.logs, second.log)
	kubeconfig := eu.hubKubeconfig(t)
	r.remember(kubeconfig)
	r.create(us, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "eu", Labels: map[string]string{v1alpha1.LabelKubeconfig: "true"}},
		Data:       map[string][]byte{v1alpha1.KubeconfigKey: kubeconfig},
	})
	hubID := must[string](t)(r.plane.UID(t.Context()))
	spoke := &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "eu"}}
	r.eventually("the second hub says that the spoke is contested", func() error {
		if err := r.get(us, spoke); err != nil {
			return err
		}
		got := condition(spoke.Status.Conditions, v1alpha1.ConditionContested)
		if !strings.HasPrefix(got, "True/MarkedByAnotherHub") || !strings.Contains(got, hubID) {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	if n := *spoke.Status.Proxies; n != 0 {
		t.Errorf("the second hub counts %d Proxies as its own", n)
	}
	first := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "first"}}
	if err := r.get(eu, first); err != nil || first.Annotations[v1alpha1.AnnotationHub] != hubID {
		t.Errorf("the first hub's Proxy is marked %q, want %q (%v)", first.Annotations[v1alpha1.AnnotationHub], hubID, err)
	}
	if got := condition(r.spokeShows("eu", v1alpha1.ConditionReady, "True/", "").Status.Conditions, v1alpha1.ConditionContested); got != "absent" {
		t.Errorf("the first hub's Spoke is contested before the second has anything there: %s", got)
	}
	second.stop(t)
	// Another hub's mark on one of the first hub's own.
	marked := external("marked", r.forwardProxy())
	marked.Annotations = map[string]string{v1alpha1.AnnotationHub: "hub-of-somebody-else"}
	r.create(eu, marked)
	r.spokeShows("eu", v1alpha1.ConditionContested, "True/MarkedByAnotherHub", "hub-of-somebody-else")
	r.eventHappened("eu", corev1.EventTypeWarning, "MarkedByAnotherHub")
	if err := eu.Delete(t.Context(), marked); err != nil {
		t.Fatal(err)
	}
	r.eventHappened("eu", corev1.EventTypeNormal, "NotContested")
}

func namespacesOnly(t *testing.T, r *registrations) {
	us := r.spokes["us"]
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "proxy-operator-spoke"}}
	if err := us.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	us.prepare(t, "rbac/spoke-namespaced")
	r.create(us, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}})
	outside := external("outside", r.forwardProxy())
	outside.Namespace = "elsewhere"
	r.create(us, outside)

	r.add("us", us.kubeconfig, v1alpha1.AnnotationNamespaces, "crawl")
	r.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")
	p := external("inside", r.forwardProxy())
	r.create(us, p)
	r.proxyShows(us, p, v1alpha1.PhaseReady)
	r.shows("us", "other", "inside")
	if err := r.get(us, outside); err != nil || len(outside.Annotations) > 0 {
		t.Errorf("a Proxy outside was touched: %v (%v)", outside.Annotations, err)
	}
	annotate := func(namespaces string) {
		r.edit("us", func(s *corev1.Secret) { s.Annotations[v1alpha1.AnnotationNamespaces] = namespaces })
	}
	annotate("crawl, Not A Namespace")
	r.spokeShows("us", v1alpha1.ConditionCredentialAccepted, "False/KubeconfigInvalid", "separate their names by commas")
	annotate("crawl,elsewhere")
	r.spokeShows("us", v1alpha1.ConditionCredentialAccepted, "False/Forbidden", "pods in namespace elsewhere")
	r.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")
	us.prepare(t, "rbac/spoke") // all namespaces again
	r.spokeShows("us", v1alpha1.ConditionCredentialAccepted, "True/", "")
	r.shows("us", "other", "inside", "outside")
}

func localSpoke(t *testing.T, r *registrations) {
	home := &spokeWorld{WithWatch: r.hub, name: "home", plane: r.plane}
	home.prepare(t, "rbac/spoke", "rbac/local-spoke")
	r.create(home, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	r.again("--local-spoke", "home")
	r.spokeShows("home", v1alpha1.ConditionReady, "True/Connected", "")
	p := external("at-home", r.forwardProxy())
	r.create(home, p)
	r.proxyShows(home, p, v1alpha1.PhaseReady)
	r.shows("home", "at-home")
	r.add("home-too", home.hubKubeconfig(t))
	r.spokeShows("home-too", v1alpha1.ConditionReady, "False/DuplicateCluster", "spoke home ")
	r.add("home", r.spokes["us"].kubeconfig)
	r.spokeShows("home", v1alpha1.ConditionCredentialAccepted, "False/KubeconfigInvalid", "--local-spoke")
	r.spokeShows("home", v1alpha1.ConditionReady, "True/Connected", "")
	if err := r.hub.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "home"}}); err != nil {
		t.Fatal(err)
	}
	r.spokeShows("home", v1alpha1.ConditionCredentialAccepted, "True/", "")
	r.drop("home-too")
	r.again()
	r.eventually("its Spoke goes with the flag", func() error {
		if err := r.get(r.hub, &v1alpha1.Spoke{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "home"}}); err == nil {
			return fmt.Errorf("still there")
		}
		return nil
	})
}

// again stops the hub and starts it with other flags.
func (r *registrations) again(flags ...string) {
	r.t.Helper()
	r.logs = append(r.logs, r.log)
	r.stopHub()
	r.startHub(append(flags, "--zap-log-level", "10")...)
}

func restarted(t *testing.T, r *registrations) {
	eu, us := r.spokes["eu"], r.spokes["us"]
	before := readyCondition(r.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", ""))
	r.logs = append(r.logs, r.log)
	r.stopHub()
	r.rotate("eu", us.kubeconfig) // behind the hub's back
	r.startHub("--zap-log-level", "10")
	r.spokeShows("eu", v1alpha1.ConditionReady, "False/IdentityChanged", "")
	r.shows("eu")
	r.clustersSay(map[string]string{"us": "Connected"})
	if after := readyCondition(r.spokeShows("us", v1alpha1.ConditionReady, "True/Connected", "")); after != before {
		t.Errorf("a restart moved the condition from %+v to %+v", before, after)
	}
	r.eventually("a Proxy of the spoke that is well is leased", func() error {
		if status := r.call("POST", "/v1/leases", `{"cluster":"us","selector":{"test":"inside"}}`, nil); status != http.StatusCreated {
			return fmt.Errorf("%d", status)
		}
		return nil
	})
	r.rotate("eu", eu.kubeconfig)
	r.spokeShows("eu", v1alpha1.ConditionReady, "True/Connected", "")
}
