package fleet

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func ready(edits ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	probed := metav1.NewTime(time.Unix(1_800_000_000, 0))
	p := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "crawl", Name: "a", UID: "uid-a"},
		Spec: v1alpha1.ProxySpec{Mode: v1alpha1.ModeManaged, Provider: v1alpha1.ProviderKubernetes, Protocol: v1alpha1.ProtocolHTTP,
			HealthCheck: v1alpha1.HealthCheck{IntervalSeconds: 30, TimeoutSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}},
		Status: v1alpha1.ProxyStatus{
			Phase: v1alpha1.PhaseReady, ProviderID: "crawl/proxy-uid-a/pod-1", IP: "10.0.0.1", Endpoint: "10.0.0.1:3128",
			Access:        &v1alpha1.Access{Protocol: v1alpha1.ProtocolHTTP, Expose: v1alpha1.ExposeHostPort},
			LatencyMillis: 40, LastHealthCheckTime: &probed,
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionTrue},
				{Type: v1alpha1.ConditionHealthy, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProbeSucceeded},
			},
		},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func TestFromObjectReadsWhatCrawlersNeed(t *testing.T) {
	limit := int32(7)
	p := FromObject("eu", ready(func(p *v1alpha1.Proxy) {
		p.Spec.MaxLeases = &limit
		p.Spec.Attributes = map[string]v1alpha1.AttributeValue{"region": "eu"}
	}))
	if p.Key.String() != "eu/crawl/a" || p.Endpoint() != "10.0.0.1:3128" || p.MaxLeases != 7 || p.Attributes["region"] != "eu" {
		t.Errorf("read %+v", p)
	}
	if !p.Offerable() || p.Verdict.Latency != 40*time.Millisecond {
		t.Errorf("the status's claim was lost: %+v", p.Verdict)
	}
}

func TestAnEditedPortDoesNotMoveTheRunningInstance(t *testing.T) {
	p := FromObject("eu", ready(func(p *v1alpha1.Proxy) { p.Spec.Port = 8888 }))
	if p.Port != 3128 {
		t.Errorf("crawlers are sent to port %d, where nothing listens yet", p.Port)
	}
}

func TestAClaimAboutAnotherEndpointIsNotTakenOver(t *testing.T) {
	p := FromObject("eu", ready(func(p *v1alpha1.Proxy) {
		p.Spec.Mode, p.Spec.Provider = v1alpha1.ModeExternal, ""
		p.Spec.Endpoint = &v1alpha1.Endpoint{Host: "2001:db8::1", Port: 8080}
	}))
	if p.Endpoint() != "[2001:db8::1]:8080" || p.Instance != p.Endpoint() {
		t.Errorf("endpoint %q, instance %q", p.Endpoint(), p.Instance)
	}
	if p.Verdict.Health != Unknown {
		t.Error("an edited endpoint inherits the verdict of the one before it")
	}
}

func TestNoAddressYetIsNoEndpoint(t *testing.T) {
	p := FromObject("eu", ready(func(p *v1alpha1.Proxy) { p.Status = v1alpha1.ProxyStatus{} }))
	if p.Endpoint() != "" || p.Probeable() || p.Verdict.Health != Unknown {
		t.Errorf("read %+v", p)
	}
}

func TestAPhaseThatThereIsNotIsNone(t *testing.T) {
	phase := func(written v1alpha1.Phase) (kept, shown string) {
		p := FromObject("eu", ready(func(p *v1alpha1.Proxy) { p.Status = v1alpha1.ProxyStatus{Phase: written} }))
		return p.StatusPhase, p.Phase()
	}
	for _, known := range []v1alpha1.Phase{"Pending", "Provisioning", "Probing", "Ready", "Unhealthy", "Replacing", "Deleting", "Failed"} {
		if kept, shown := phase(known); kept != string(known) || shown != string(known) {
			t.Errorf("%s is kept as %q and shown as %q", known, kept, shown)
		}
	}
	for _, other := range []v1alpha1.Phase{"", "ready", "Ready ", "Pending-1", "\xff"} {
		if kept, shown := phase(other); kept != "" || shown != "Pending" {
			t.Errorf("%q is kept as %q and shown as %q", other, kept, shown)
		}
	}
}

func TestNumbersThatNoCRDWouldLetPassAreBroughtWithinBounds(t *testing.T) {
	const huge = 1<<31 - 1
	for _, tc := range []struct {
		given v1alpha1.HealthCheck
		want  Check
	}{
		{v1alpha1.HealthCheck{}, Check{Interval: time.Second, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 1}},
		{
			v1alpha1.HealthCheck{IntervalSeconds: -1, TimeoutSeconds: -1, SuccessThreshold: -1, FailureThreshold: -1},
			Check{Interval: time.Second, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 1},
		},
		{
			v1alpha1.HealthCheck{IntervalSeconds: huge, TimeoutSeconds: huge, SuccessThreshold: huge, FailureThreshold: huge},
			Check{Interval: 24 * time.Hour, Timeout: 5 * time.Minute, SuccessThreshold: 100, FailureThreshold: 100},
		},
		{
			v1alpha1.HealthCheck{IntervalSeconds: 30, TimeoutSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3},
			Check{Interval: 30 * time.Second, Timeout: 10 * time.Second, SuccessThreshold: 1, FailureThreshold: 3},
		},
	} {
		if got := checkOf(tc.given); !got.Equal(tc.want) {
			t.Errorf("%+v becomes %+v, want %+v", tc.given, got, tc.want)
		}
	}
}

func checkOf(h v1alpha1.HealthCheck) Check {
	return FromObject("eu", ready(func(p *v1alpha1.Proxy) { p.Spec.HealthCheck = h })).Check
}

func TestAProbeIsJudgedAsTheProxySays(t *testing.T) {
	check := checkOf(v1alpha1.HealthCheck{URL: "https://a.example/b", ExpectedStatuses: []int32{204}, InsecureSkipVerify: true})
	if check.URL != "https://a.example/b" || !slices.Equal(check.ExpectedStatuses, []int{204}) || !check.InsecureSkipVerify {
		t.Errorf("read %+v", check)
	}
	if check := checkOf(v1alpha1.HealthCheck{}); check.InsecureSkipVerify {
		t.Error("nobody has asked for a site that is not verified")
	}
}

func TestChecksThatExpectTheSameAreEqual(t *testing.T) {
	var seventeen []int32
	for i := range int32(17) {
		seventeen = append(seventeen, 599-i)
	}
	for name, tc := range map[string]struct {
		given []int32
		want  []int
	}{
		"absent":                    {nil, nil},
		"empty":                     {[]int32{}, nil},
		"in any order":              {[]int32{404, 200, 301}, []int{200, 301, 404}},
		"one twice":                 {[]int32{204, 200, 204}, []int{200, 204}},
		"the first and the last":    {[]int32{599, 200}, []int{200, 599}},
		"beside some out of bounds": {[]int32{199, 204, 600, 0, -1, 1<<31 - 1}, []int{204}},
		"all out of bounds":         {[]int32{100, 600}, nil},
		"more than sixteen":         {seventeen, []int{584, 585, 586, 587, 588, 589, 590, 591, 592, 593, 594, 595, 596, 597, 598, 599}},
		"one seventeen times":       {append(slices.Repeat([]int32{204}, 17), 200), []int{200, 204}},
	} {
		written := slices.Clone(tc.given)
		want := checkOf(v1alpha1.HealthCheck{})
		want.ExpectedStatuses = tc.want
		got := checkOf(v1alpha1.HealthCheck{ExpectedStatuses: tc.given})
		if !got.Equal(want) || (got.ExpectedStatuses == nil) != (tc.want == nil) {
			t.Errorf("%s: %#v, want %#v", name, got.ExpectedStatuses, tc.want)
		}
		if !slices.Equal(tc.given, written) {
			t.Errorf("%s: the object, which is the cache's, was changed to %v", name, tc.given)
		}
	}
}
