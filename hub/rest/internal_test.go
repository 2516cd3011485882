package rest

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
	"github.com/proxyfleet/proxy-operator/hub/lease"
)

func TestRetryAfterIsNeverEarlyByRounding(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1: "1", time.Second - 1: "1", time.Second: "1", time.Second + 1: "2", 29*time.Second + time.Millisecond: "30", time.Hour: "3600",
	} {
		w := httptest.NewRecorder()
		retryAfter(w, d)
		if got := w.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestAHalfSentAnswerIsCutOffRatherThanFinished(t *testing.T) {
	s := New(Options{Fleet: fleet.New(fleet.Options{AllowLocal: true}), Leases: lease.New(lease.Options{})})
	handler := s.recovered(s.logged(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"proxies":[`))
		panic("boom")
	})))
	defer func() {
		cause := recover()
		if err, ok := cause.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			t.Errorf("recovered %v: net/http would end the answer as if it were whole", cause)
		}
	}()
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/proxies", nil))
}
