package rest

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/proxyfleet/proxy-operator/hub/lease"
)

func TestRetryAfterIsNeverEarlyByRounding(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1: "1", time.Second - 1: "1", time.Second: "1", time.Second + 1: "2", 29*time.Second + time.Millisecond: "30", time.Hour: "3600",
	} {
		w := httptest.NewRecorder()
		retryAfter(&exchange{ResponseWriter: w}, d)
		if got := w.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestAHalfSentAnswerIsCutOffRatherThanFinished(t *testing.T) {
	s := New(Options{Leases: lease.New(lease.Options{})})
	s.answer = s.recovered(s.logged(func(x *exchange) {
		_, _ = x.Write([]byte(`{"proxies":[`))
		panic("boom")
	}))
	defer func() {
		cause := recover()
		if err, ok := cause.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			t.Errorf("recovered %v: net/http would end the answer as if it were whole", cause)
		}
	}()
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/proxies", nil))
}
