package validation

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	managed  = "{provider: kubernetes}"
	external = "{mode: External, endpoint: {host: proxy.example, port: 8080}}"
)

// refused are bad specs. A want says where, and what to write instead.
var refused = []struct{ name, spec, want string }{
	{"nothing at all", "{}", "spec: Invalid value: a Managed Proxy needs provider: write provider: kubernetes"},
	{"Managed with endpoint", "{provider: kubernetes, endpoint: {host: a.example, port: 1}}", "spec: Invalid value: endpoint belongs to mode External: remove endpoint, or write mode: External"},
	{"External without endpoint", "{mode: External}", "spec: Invalid value: an External Proxy needs endpoint: write endpoint: {host: …, port: …}"},
	{"External with provider", "{mode: External, provider: kubernetes, endpoint: {host: a.example, port: 1}}", "spec: Invalid value: provider belongs to mode Managed: remove provider, or write mode: Managed"},
	{"External with kubernetes", "{mode: External, kubernetes: {}, endpoint: {host: a.example, port: 1}}", "spec: Invalid value: kubernetes belongs to mode Managed: remove kubernetes, or write mode: Managed"},
	{"External with port", "{mode: External, port: 1, endpoint: {host: a.example, port: 1}}", "spec: Invalid value: port belongs to mode Managed: remove port, and write endpoint: {host: …, port: …}"},
	{"External with cloudInit", "{mode: External, cloudInit: {inline: a}, endpoint: {host: a.example, port: 1}}", "spec: Invalid value: cloudInit belongs to mode Managed: remove cloudInit, or write mode: Managed"},

	{"a key in upper case", "{attributes: {Region: eu}}", "spec.attributes: Invalid value: an attribute key is 1 to 63 lower-case letters, digits, '.', '_' and '-', with a letter or digit at each end: write for example region"},
	{"an empty key", "{attributes: {'': eu}}", "an attribute key is 1 to 63"},
	{"a key that ends in a dot", "{attributes: {region.: eu}}", "an attribute key is 1 to 63"},
	{"a key of 64", "{attributes: {" + strings.Repeat("k", 64) + ": eu}}", "an attribute key is 1 to 63"},
	{"a value with a space", "{attributes: {region: e u}}", "spec.attributes: Invalid value: an attribute value is 1 to 63 letters, digits, '.', '_' and '-': write for example eu-west"},
	{"an empty value", "{attributes: {region: ''}}", "an attribute value is 1 to 63"},
	{"a number for a value", "{attributes: {region: 1}}", `spec.attributes.region: Invalid value: "integer": spec.attributes.region in body must be of type string`},

	{"credentials of no possible Secret", "{authSecretRef: {name: My_Secret}}", `spec.authSecretRef.name: Invalid value: "My_Secret": name is the metadata.name of a Secret of this namespace: lower-case letters, digits, '-' and '.'`},
	{"an empty name of a Secret", "{authSecretRef: {name: ''}}", "name is the metadata.name of a Secret"},
	{"no source of cloudInit", "{cloudInit: {}}", "spec.cloudInit: Invalid value: cloudInit takes exactly one source: write either inline: … or secretRef: {name: …}"},
	{"two sources of cloudInit", "{cloudInit: {inline: a, secretRef: {name: a}}}", "cloudInit takes exactly one source"},
	{"cloudInit of no possible Secret", "{cloudInit: {secretRef: {name: a/b}}}", `spec.cloudInit.secretRef.name: Invalid value: "a/b": name is the metadata.name of a Secret`},
	{"cloudInit of no possible key", "{cloudInit: {secretRef: {name: a, key: user/data}}}", `spec.cloudInit.secretRef.key: Invalid value: "user/data": key is one of the keys in the Secret's data: letters, digits, '-', '_' and '.', for example user-data`},

	{"TLS with a proxy that speaks none", "{tls: {serverName: a.example}}", "spec: Invalid value: tls belongs to protocol https: remove tls, or write protocol: https"},
	{"TLS with SOCKS5", "{protocol: socks5, tls: {secretRef: {name: a}}}", "tls belongs to protocol https"},
	{"https without a certificate", "{protocol: https}", "spec: Invalid value: protocol https needs a certificate: write tls: {secretRef: {name: …}}, or kubernetes: {image: …} of a proxy that brings its own"},
	{"https with a name alone", "{protocol: https, tls: {serverName: a.example, caSecretRef: {name: a}}}", "protocol https needs a certificate"},
	{"External with a certificate", "{mode: External, protocol: https, tls: {secretRef: {name: a}}, endpoint: {host: a.example, port: 1}}", "spec: Invalid value: tls.secretRef is the certificate of a Managed instance: remove it; whoever runs an External proxy gives it one"},
	{"a certificate of no possible Secret", "{protocol: https, tls: {secretRef: {name: A}}}", `spec.tls.secretRef.name: Invalid value: "A": name is the metadata.name of a Secret`},
	{"authorities of no possible Secret", "{protocol: https, tls: {secretRef: {name: a}, caSecretRef: {name: a_b}}}", `spec.tls.caSecretRef.name: Invalid value: "a_b": name is the metadata.name of a Secret`},
	{"authorities of no possible key", "{protocol: https, tls: {secretRef: {name: a}, caSecretRef: {name: a, key: a/b}}}", `spec.tls.caSecretRef.key: Invalid value: "a/b": key is one of the keys in the Secret's data: letters, digits, '-', '_' and '.', for example ca.crt`},
	{"a serverName with port", "{protocol: https, tls: {secretRef: {name: a}, serverName: 'a.example:443'}}", `spec.tls.serverName: Invalid value: "a.example:443": serverName is the DNS name or IP address in the proxy's certificate: write for example proxy.example`},
	{"a serverName with a wildcard", "{protocol: https, tls: {secretRef: {name: a}, serverName: '*.example'}}", "serverName is the DNS name or IP address"},

	{"a host with scheme", "{mode: External, endpoint: {host: 'http://a.example', port: 1}}", `spec.endpoint.host: Invalid value: "http://a.example": host is a DNS name or an IP address: write it without scheme, port, brackets or path`},
	{"a host with port", "{mode: External, endpoint: {host: 'a.example:1', port: 1}}", "host is a DNS name or an IP address"},
	{"a host in brackets", "{mode: External, endpoint: {host: '[2001:db8::1]', port: 1}}", "host is a DNS name or an IP address"},
	{"a host with path", "{mode: External, endpoint: {host: a.example/b, port: 1}}", "host is a DNS name or an IP address"},
	{"a url without scheme", "{healthCheck: {url: www.gstatic.com/generate_204}}", `spec.healthCheck.url: Invalid value: "www.gstatic.com/generate_204": url is an absolute http:// or https:// URL: write for example https://www.gstatic.com/generate_204`},
	{"a url of another scheme", "{healthCheck: {url: 'ftp://a.example/b'}}", "url is an absolute http:// or https:// URL"},
	{"a url without host", "{healthCheck: {url: 'https:///b'}}", "url is an absolute http:// or https:// URL"},
	{"a url with a port that there is not", "{healthCheck: {url: 'https://127.0.0.1:99999/'}}", `spec.healthCheck.url: Invalid value: "https://127.0.0.1:99999/": a port in url is 1 to 65535: write for example https://www.gstatic.com:443/generate_204`},
	{"a url with the port after the last", "{healthCheck: {url: 'http://a.example:65536'}}", "a port in url is 1 to 65535"},
	{"a url with port 0", "{healthCheck: {url: 'http://[2001:db8::1]:0/b'}}", "a port in url is 1 to 65535"},
	{"a url with a port beyond all numbers", "{healthCheck: {url: 'https://a.example:99999999999999999999/'}}", "a port in url is 1 to 65535"},
	{"any certificate of the hub's page", "{healthCheck: {insecureSkipVerify: true}}", "spec.healthCheck: Invalid value: insecureSkipVerify needs a url of its own, since the hub's --health-url is verified always: write url: …, or remove insecureSkipVerify"},
	{"a status that is no final answer", "{healthCheck: {expectedStatuses: [204, 101]}}", "spec.healthCheck.expectedStatuses[1]: Invalid value: 101: a status in expectedStatuses is that of a final answer, 200 to 599: write for example [204], or remove expectedStatuses, so that any 2xx passes"},
	{"a status that there is not", "{healthCheck: {expectedStatuses: [2040]}}", "a status in expectedStatuses is that of a final answer"},
	{"a status twice", "{healthCheck: {expectedStatuses: [204, 200, 204]}}", "spec.healthCheck.expectedStatuses[2]: Duplicate value: 204"},
	{"a class of statuses", "{healthCheck: {expectedStatuses: [2xx]}}", `spec.healthCheck.expectedStatuses[0]: Invalid value: "string": spec.healthCheck.expectedStatuses[0] in body must be of type integer`},
	{"a status that is no list", "{healthCheck: {expectedStatuses: 204}}", "spec.healthCheck.expectedStatuses in body must be of type array"},
	{"a word for yes", "{healthCheck: {insecureSkipVerify: 'true'}}", "spec.healthCheck.insecureSkipVerify in body must be of type boolean"},

	{"an image with a space", "{kubernetes: {image: 'a b'}}", `spec.kubernetes.image: Invalid value: "a b": image is the reference of a container image, without spaces: write for example registry.example/proxy:1`},
	{"an image with a line end", `{kubernetes: {image: "a\n"}}`, "image is the reference of a container image"},
	{"an empty image", "{kubernetes: {image: ''}}", "image is the reference of a container image"},
	{"env sets the port", "{kubernetes: {env: [{name: PROXY_PORT, value: '1'}]}}", "spec.kubernetes.env: Invalid value: env may not set PROXY_PORT: write spec.port instead"},
	{"env sets the protocol", "{kubernetes: {env: [{name: PROXY_PROTOCOL, value: http}]}}", "env may not set PROXY_PROTOCOL: write spec.protocol instead"},
	{"a variable twice", "{kubernetes: {env: [{name: A, value: a}, {name: A, value: b}]}}", `spec.kubernetes.env[1]: Duplicate value: {"name":"A"}`},
	{"a variable without name", "{kubernetes: {env: [{value: a}]}}", "spec.kubernetes.env[0].name: Required value"},
	{"a variable with an empty name", "{kubernetes: {env: [{name: '', value: a}]}}", "a variable in env needs a name: write name: …"},
	{"a variable with two values", "{kubernetes: {env: [{name: A, value: a, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}}", "a variable in env has one value: write either value: … or valueFrom: {…}"},
	{"a variable from nowhere", "{kubernetes: {env: [{name: A, valueFrom: {}}]}}", "valueFrom in env takes exactly one source: write secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef"},
	{"a variable from two places", "{kubernetes: {env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}, secretKeyRef: {name: a, key: b}}}]}}", "valueFrom in env takes exactly one source"},
	{"a variable from a file of no volume", "{kubernetes: {env: [{name: A, valueFrom: {fileKeyRef: {volumeName: a, path: b, key: c}}}]}}", "valueFrom in env takes exactly one source"},
	{"a variable of no Secret", "{kubernetes: {env: [{name: A, valueFrom: {secretKeyRef: {key: b}}}]}}", "secretKeyRef in env needs the name of a Secret: write secretKeyRef: {name: …, key: …}"},
	{"a variable of no ConfigMap", "{kubernetes: {env: [{name: A, valueFrom: {configMapKeyRef: {key: b}}}]}}", "configMapKeyRef in env needs the name of a ConfigMap: write configMapKeyRef: {name: …, key: …}"},

	{"claims that nothing meets", "{kubernetes: {resources: {claims: [{name: a}]}}}", "spec.kubernetes.resources: Invalid value: resources.claims cannot be met, a proxy's pod has no resourceClaims: remove claims"},
	{"more memory asked for than allowed", "{kubernetes: {resources: {requests: {memory: 1Gi}, limits: {memory: 1023Mi}}}}", "spec.kubernetes.resources: Invalid value: resources.requests may not be more than resources.limits: lower the request, or raise the limit"},
	{"more cpu asked for than allowed", "{kubernetes: {resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}}}", "resources.requests may not be more than resources.limits"},
	{"no quantity", "{kubernetes: {resources: {requests: {memory: much}}}}", "spec.kubernetes.resources.requests.memory: Invalid value"},
	{"a nodeSelector of no possible label", "{kubernetes: {nodeSelector: {my zone: a}}}", "spec.kubernetes.nodeSelector: Invalid value: a key of nodeSelector is that of a node's label: write for example topology.kubernetes.io/zone"},
	{"a nodeSelector of no possible value", "{kubernetes: {nodeSelector: {zone: " + strings.Repeat("a", 64) + "}}}", "spec.kubernetes.nodeSelector: Invalid value: a value of nodeSelector is that of a node's label, at most 63 characters"},
	{"an unknown operator", "{kubernetes: {tolerations: [{key: a, operator: In}]}}", "spec.kubernetes.tolerations: Invalid value: the operator of a toleration is Equal or Exists"},
	{"an unknown effect", "{kubernetes: {tolerations: [{key: a, effect: NoRun}]}}", "the effect of a toleration is NoSchedule, PreferNoSchedule or NoExecute; absent: all of them"},
	{"a toleration of nothing", "{kubernetes: {tolerations: [{effect: NoExecute}]}}", "a toleration without key is for every taint: write operator: Exists with it, or write key: …"},
	{"a toleration with a value too many", "{kubernetes: {tolerations: [{key: a, operator: Exists, value: b}]}}", "a toleration with operator Exists takes no value: remove value, or write operator: Equal"},
	{"a toleration that never ends", "{kubernetes: {tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 1}]}}", "tolerationSeconds belongs to effect NoExecute: remove tolerationSeconds, or write effect: NoExecute"},
	{"imagePullSecrets without name", "{kubernetes: {imagePullSecrets: [{}]}}", "spec.kubernetes.imagePullSecrets: Invalid value: an item of imagePullSecrets needs the name of a Secret: write - name: …"},
	{"imagePullSecrets twice", "{kubernetes: {imagePullSecrets: [{name: a}, {name: a}]}}", `spec.kubernetes.imagePullSecrets[1]: Duplicate value: {"name":"a"}`},
	{"no possible ServiceAccount", "{kubernetes: {serviceAccountName: Proxy}}", `spec.kubernetes.serviceAccountName: Invalid value: "Proxy": serviceAccountName is the metadata.name of a ServiceAccount of this namespace: lower-case letters, digits, '-' and '.'`},

	{"a label of the hub's", "{kubernetes: {podLabels: {proxy-operator-uid: a}}}", "spec.kubernetes.podLabels: Invalid value: podLabels may not begin with proxy-operator-, which marks whose the pod is: choose another key"},
	{"a label with two slashes", "{kubernetes: {podLabels: {a/b/c: d}}}", "spec.kubernetes.podLabels: Invalid value: a key of podLabels is a label's: at most 63 letters, digits, '-', '_' and '.', after a domain and '/' if it has one: write for example team or example.com/team"},
	{"a label with 64 letters", "{kubernetes: {podLabels: {" + strings.Repeat("a", 64) + ": b}}}", "a key of podLabels is a label's"},
	{"a label with a domain in upper case", "{kubernetes: {podLabels: {Example.com/a: b}}}", "a key of podLabels is a label's"},
	{"a label with a space in its value", "{kubernetes: {podLabels: {a: b c}}}", "spec.kubernetes.podLabels: Invalid value: a value of podLabels is a label's: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at each end: write for example crawl-1"},
	{"a label with a dash at its value's end", "{kubernetes: {podLabels: {a: b-}}}", "a value of podLabels is a label's"},
	{"an annotation of the hub's", "{kubernetes: {podAnnotations: {crawl.proxyfleet.dev/spoke: a}}}", "spec.kubernetes.podAnnotations: Invalid value: podAnnotations may not begin with crawl.proxyfleet.dev/, which is the hub's: choose another key"},
	{"an annotation with a space", "{kubernetes: {podAnnotations: {a b: c}}}", "spec.kubernetes.podAnnotations: Invalid value: a key of podAnnotations is an annotation's: at most 63 letters, digits, '-', '_' and '.', after a domain and '/' if it has one: write for example example.com/owner"},
	{"privileged and not", "{kubernetes: {securityContext: {privileged: true, allowPrivilegeEscalation: false}}}", "spec.kubernetes.securityContext: Invalid value: securityContext cannot have privileged: true with allowPrivilegeEscalation: false: remove one of them"},
}

func (a *api) testRefusals(t *testing.T) {
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			spec := parse(t, c.spec)
			// All but what is about mode and provider is about a Managed one.
			if spec["mode"] == nil && len(spec) > 0 {
				spec["provider"] = "kubernetes"
			}
			expect(t, a.judge(t, proxy(spec), client.DryRunAll), c.want)
		})
	}
}
