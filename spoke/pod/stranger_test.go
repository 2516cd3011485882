package pod

import (
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// What is between the hub and an API server, a load balancer or an ingress,
// answers for itself now and then. A 404 of it is no missing instance.
func TestWhatStandsBeforeAnAPIServerKnowsNothingAboutInstances(t *testing.T) {
	b := newBench(t)
	for code, class := range map[int]string{
		http.StatusUnauthorized: "lasting", http.StatusForbidden: "lasting", http.StatusNotFound: "transient", http.StatusConflict: "transient",
		http.StatusBadRequest: "transient", http.StatusRequestEntityTooLarge: "transient", http.StatusUnprocessableEntity: "transient",
		http.StatusBadGateway: "transient",
	} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			balancer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "<html>no backend</html>", code)
			}))
			defer balancer.Close()
			p := b.at(func(config *rest.Config) { config.Host, config.CAData = balancer.URL, authorityOf(balancer) })
			each(t, p, b.request(someFiles), func(t *testing.T, err error) { isOf(t, err, class) })
		})
	}
}

// The words are those of k8s.io/apiserver, pkg/admission/plugin: a server says
// them in its first moments, which no test can wait for.
func TestAnAPIServerThatHasJustBeenStartedIsAskedAgain(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	isOf(t, Classified(apierrors.NewForbidden(pods, "proxy-u-1", errNotReady{})), "transient")
	isOf(t, Classified(apierrors.NewForbidden(pods, "", errNotReady{})), "transient")
}

type errNotReady struct{}

func (errNotReady) Error() string { return "not yet ready to handle request" }
