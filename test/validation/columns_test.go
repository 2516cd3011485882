package validation

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

const status = `
phase: Ready
conditions:
- {type: Provisioned, status: "True", reason: Created, message: "", lastTransitionTime: "2026-01-02T15:04:05Z"}
- {type: Ready, status: "True", reason: ProbeSucceeded, message: "", lastTransitionTime: "2026-01-02T15:04:05Z"}
providerID: crawl/px-1/uid
ip: 10.2.3.4
endpoint: 10.2.3.4:3128
latencyMillis: 41
`

// columns are those of kubectl get proxies, and of -o wide from Reason on, with what they
// show of the Proxy above. The age is counted by the second.
var columns = [][2]string{
	{"Name", "eu-1"}, {"Phase", "Ready"}, {"Provider", "kubernetes"}, {"Endpoint", "10.2.3.4:3128"}, {"Latency", "41"}, {"Age", "*"},
	{"Reason (wide)", "ProbeSucceeded"}, {"ProviderID (wide)", "crawl/px-1/uid"}, {"Attributes (wide)", `{"region":"eu"}`},
}

// table is what the API server answers kubectl get with.
func (a *api) table(t *testing.T, name string) metav1.Table {
	t.Helper()
	url := fmt.Sprintf("%s/apis/%s/namespaces/%s/proxies/%s", strings.TrimSuffix(a.config.Host, "/"), v1alpha1.GroupVersion, namespace, name)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := a.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var table metav1.Table
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	return table
}

func (a *api) testColumns(t *testing.T) {
	p := proxy(parse(t, "{provider: kubernetes, attributes: {region: eu}}"))
	p.SetName("eu-1")
	if refusal := a.judge(t, p); refusal != "" {
		t.Fatal(refusal)
	}
	p.Object["status"] = parse(t, status)
	if err := a.client.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	table := a.table(t, "eu-1")
	var got [][2]string
	for i, column := range table.ColumnDefinitions {
		name, cell := column.Name, fmt.Sprint(table.Rows[0].Cells[i])
		if column.Priority > 0 {
			name += " (wide)"
		}
		if column.Name == "Age" {
			cell = "*"
		}
		got = append(got, [2]string{name, cell})
	}
	if !slices.Equal(got, columns) {
		t.Errorf("columns: %v\nwant:    %v", got, columns)
	}
}

func (a *api) testNames(t *testing.T) {
	c, err := discovery.NewDiscoveryClientForConfigAndClient(a.config, a.http)
	if err != nil {
		t.Fatal(err)
	}
	served, err := c.ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "proxies" })
	if i < 0 {
		t.Fatalf("proxies are not among %v", served.APIResources)
	}
	r := served.APIResources[i]
	if !slices.Equal(r.ShortNames, []string{"px"}) || !slices.Equal(r.Categories, []string{"crawl"}) || r.SingularName != "proxy" || !r.Namespaced {
		t.Errorf("served as %+v", r)
	}
}
