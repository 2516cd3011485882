package validation

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// everything is a spec with all fields, as the contract shows it.
const everything = `
mode: Managed
provider: kubernetes
protocol: https
port: 3128
tls:
  serverName: proxy.example
  caSecretRef: {name: ca, key: ca.crt}
  secretRef: {name: px-tls}
attributes: {region: eu, tier: datacenter, a: A.b_c-1, x.y_z-0: "1"}
maxLeases: 10
authSecretRef: {name: eu-1.auth}
cloudInit: {secretRef: {name: proxy-init, key: user-data}}
kubernetes:
  image: registry.example:5000/proxy@sha256:0000
  command: [/proxy, ""]
  args: [-v, same, same]
  env:
  - {name: PLAIN, value: a}
  - {name: EMPTY}
  - {name: empty.too, value: "", valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: SECRET, valueFrom: {secretKeyRef: {name: a, key: b}}}
  - {name: CONFIG, valueFrom: {configMapKeyRef: {name: a, key: b, optional: true}}}
  - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  resources:
    requests: {cpu: 100m, memory: 64Mi, example.com/device: 1}
    limits: {cpu: 1, memory: 64Mi, example.com/device: 1}
  nodeSelector: {kubernetes.io/os: linux, pool: "", topology.kubernetes.io/zone: eu-west1-b}
  tolerations:
  - {operator: Exists}
  - {key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  - {key: a, value: b, effect: PreferNoSchedule}
  - {key: a, operator: Equal, value: b}
  imagePullSecrets: [{name: a}, {name: b}]
  serviceAccountName: proxy
  podLabels: {team: crawl, example.com/Team_1: "", app.kubernetes.io/part-of: crawl-1}
  podAnnotations: {example.com/owner: "anybody, at all", note: ""}
  expose: LoadBalancer
  securityContext: {runAsUser: 1000, runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
healthCheck:
  url: https://www.gstatic.com/generate_204
  intervalSeconds: 60
  timeoutSeconds: 5
  expectedStatuses: [204, 200]
  successThreshold: 2
  failureThreshold: 4
  insecureSkipVerify: true
`

var accepted = map[string]string{
	"all fields":                                   everything,
	"a Managed one in one line":                    managed,
	"an External one in one line":                  external,
	"an External one with what it may":             "{mode: External, endpoint: {host: 203.0.113.7, port: 65535}, authSecretRef: {name: a}, attributes: {a: b}, maxLeases: 1, healthCheck: {url: 'http://a.example:8080/b?c=d'}}",
	"any 2xx, verified, written out":               "{provider: kubernetes, healthCheck: {expectedStatuses: [], insecureSkipVerify: false}}",
	"a url with the first port":                    "{provider: kubernetes, healthCheck: {url: 'http://[2001:db8::1]:1'}}",
	"a url with the last port":                     "{provider: kubernetes, healthCheck: {url: 'https://a.example:65535/b', insecureSkipVerify: true}}",
	"an IPv6 address":                              "{mode: External, endpoint: {host: '2001:db8::1', port: 1}}",
	"a host with a dot at its end":                 "{mode: External, endpoint: {host: proxy.example., port: 1}}",
	"cloudInit in the Proxy":                       "{provider: kubernetes, cloudInit: {inline: '#cloud-config'}}",
	"empty maps and lists":                         "{provider: kubernetes, attributes: {}, healthCheck: {}, kubernetes: {command: [], args: [], env: [], resources: {}, nodeSelector: {}, tolerations: [], imagePullSecrets: [], serviceAccountName: '', podLabels: {}, podAnnotations: {}, securityContext: {}}}",
	"https with an image that has its certificate": "{provider: kubernetes, protocol: https, kubernetes: {image: a}}",
	"https with a certificate alone":               "{provider: kubernetes, protocol: https, tls: {secretRef: {name: a}}}",
	"an External one over TLS":                     "{mode: External, protocol: https, endpoint: {host: proxy.example, port: 443}}",
	"an External one over TLS, with what it may":   "{mode: External, protocol: https, endpoint: {host: 203.0.113.7, port: 443}, tls: {serverName: '2001:db8::1', caSecretRef: {name: a}}}",
	"SOCKS5 on a node's port":                      "{provider: kubernetes, protocol: socks5, kubernetes: {expose: HostPort}}",
	"a privileged container":                       "{provider: kubernetes, kubernetes: {securityContext: {privileged: true, allowPrivilegeEscalation: true}}}",
	"resources in whole numbers":                   "{provider: kubernetes, kubernetes: {resources: {requests: {cpu: 1, memory: 1000}, limits: {cpu: 1, memory: 1k, ephemeral-storage: 1Gi}}}}",
	"a request without limit and around":           "{provider: kubernetes, kubernetes: {resources: {requests: {cpu: 8}, limits: {memory: 1Gi}}}}",
}

func (a *api) testAccepted(t *testing.T) {
	for name, spec := range accepted {
		t.Run(name, func(t *testing.T) {
			if refusal := a.judge(t, proxy(parse(t, spec)), client.DryRunAll); refusal != "" {
				t.Error(refusal)
			}
		})
	}
}

// defaults are specs as they were written and as the API server keeps them.
var defaults = map[string]struct{ written, kept string }{
	"Managed":  {managed, "{mode: Managed, provider: kubernetes, protocol: http, healthCheck: {intervalSeconds: 30, timeoutSeconds: 10, successThreshold: 1, failureThreshold: 3}}"},
	"External": {external, "{mode: External, endpoint: {host: proxy.example, port: 8080}, protocol: http, healthCheck: {intervalSeconds: 30, timeoutSeconds: 10, successThreshold: 1, failureThreshold: 3}}"},
	"authorities": {
		"{mode: External, protocol: https, endpoint: {host: proxy.example, port: 443}, tls: {caSecretRef: {name: a}}}",
		"{mode: External, protocol: https, endpoint: {host: proxy.example, port: 443}, tls: {caSecretRef: {name: a, key: ca.crt}}, healthCheck: {intervalSeconds: 30, timeoutSeconds: 10, successThreshold: 1, failureThreshold: 3}}",
	},
	"in part": {
		"{provider: kubernetes, port: 1, cloudInit: {secretRef: {name: a}}, healthCheck: {timeoutSeconds: 1}}",
		"{mode: Managed, provider: kubernetes, protocol: http, port: 1, cloudInit: {secretRef: {name: a, key: user-data}}, healthCheck: {intervalSeconds: 30, timeoutSeconds: 1, successThreshold: 1, failureThreshold: 3}}",
	},
}

func (a *api) testDefaults(t *testing.T) {
	for name, c := range defaults {
		t.Run(name, func(t *testing.T) {
			p := proxy(parse(t, c.written))
			if refusal := a.judge(t, p, client.DryRunAll); refusal != "" {
				t.Fatal(refusal)
			}
			// Printed, because numbers are read as another type than they are kept as.
			if got, want := fmt.Sprint(p.Object["spec"]), fmt.Sprint(parse(t, c.kept)); got != want {
				t.Errorf("kept: %s\nwant: %s", got, want)
			}
		})
	}
	withDefault := map[string]string{}
	a.crd.walk("", func(path string, s *schema) {
		if s.Default != nil && !isTheirs(path) {
			withDefault[path] = ""
		}
	})
	sameTable(t, "the default of", withDefault, map[string]string{
		"spec.mode": "", "spec.protocol": "", "spec.tls.caSecretRef.key": "", "spec.cloudInit.secretRef.key": "", "spec.healthCheck": "",
		"spec.healthCheck.intervalSeconds": "", "spec.healthCheck.timeoutSeconds": "",
		"spec.healthCheck.successThreshold": "", "spec.healthCheck.failureThreshold": "",
	})
}

// updates change a spec; a want is the refusal, empty where the change is allowed.
var updates = map[string]struct{ from, change, want string }{
	"mode":                    {managed, external, "spec: Invalid value: mode cannot be changed: delete this Proxy and create another one"},
	"mode, the other way":     {external, managed, "mode cannot be changed"},
	"provider goes":           {managed, "{mode: Managed}", "spec: Invalid value: provider cannot be changed: delete this Proxy and create another one"},
	"mode by its default":     {external, "{provider: kubernetes}", "mode cannot be changed"},
	"mode written out":        {managed, "{mode: Managed, provider: kubernetes}", ""},
	"what leases select on":   {managed, "{provider: kubernetes, attributes: {region: us}, maxLeases: 2, healthCheck: {timeoutSeconds: 1}}", ""},
	"what a probe expects":    {everything, strings.NewReplacer("[204, 200]", "[301]", "SkipVerify: true", "SkipVerify: false").Replace(everything), ""},
	"who has signed it":       {everything, strings.Replace(everything, "name: ca,", "name: other,", 1), ""},
	"how clients speak to it": {everything, "{provider: kubernetes, protocol: socks5, kubernetes: {expose: HostPort}}", ""},
	"TLS stays behind":        {everything, strings.Replace(everything, "protocol: https", "protocol: http", 1), "tls belongs to protocol https"},
	"what it is made of":      {everything, "{provider: kubernetes, port: 8080, cloudInit: {inline: a}, kubernetes: {image: b, podLabels: {a: b}}}", ""},
	"where an External is":    {external, "{mode: External, endpoint: {host: 203.0.113.8, port: 1}}", ""},
	"a source of cloudInit":   {everything, "{provider: kubernetes, cloudInit: {inline: a, secretRef: {name: a}}}", "cloudInit takes exactly one source"},
	"an attribute to no use":  {managed, "{provider: kubernetes, attributes: {A: b}}", "an attribute key is"},
}

func (a *api) testUpdates(t *testing.T) {
	for name, c := range updates {
		t.Run(name, func(t *testing.T) {
			p := proxy(parse(t, c.from))
			if refusal := a.judge(t, p); refusal != "" {
				t.Fatal(refusal)
			}
			p.Object["spec"] = parse(t, c.change)
			refusal := a.verdict(t, a.client.Update(t.Context(), p, client.DryRunAll))
			if c.want == "" && refusal != "" {
				t.Error(refusal)
			}
			expect(t, refusal, c.want)
		})
	}
}
