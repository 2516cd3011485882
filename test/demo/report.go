package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pendingSpokes says why which spoke is not Ready; empty when all are.
func pendingSpokes(expected []string, known []unstructured.Unstructured) string {
	var waiting []string
	for _, name := range expected {
		i := slices.IndexFunc(known, func(spoke unstructured.Unstructured) bool { return spoke.GetName() == name })
		if i < 0 {
			waiting = append(waiting, name+" (not known yet)")
			continue
		}
		if ready, reason := readiness(known[i]); !ready {
			waiting = append(waiting, fmt.Sprintf("%s (%s)", name, cmp.Or(reason, "new")))
		}
	}
	if len(waiting) == 0 {
		return ""
	}
	return "waiting for " + strings.Join(waiting, ", ")
}

// condition is what all our objects report in.
type condition struct{ kind, status, reason, message string }

func conditions(object unstructured.Unstructured) []condition {
	entries, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	var all []condition
	for _, entry := range entries {
		fields, _ := entry.(map[string]any)
		text := func(key string) string {
			value, _ := fields[key].(string)
			return value
		}
		all = append(all, condition{text("type"), text("status"), text("reason"), text("message")})
	}
	return all
}

func readiness(object unstructured.Unstructured) (ready bool, reason string) {
	for _, c := range conditions(object) {
		if c.kind == "Ready" {
			return c.status == "True", c.reason
		}
	}
	return false, ""
}

func listObjects(ctx context.Context, config *rest.Config, kind string) ([]unstructured.Unstructured, error) {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "crawl.proxyfleet.dev", Version: "v1alpha1", Kind: kind})
	if err := c.List(ctx, list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// troubles lists the Spokes and Proxies that are not Ready with their conditions, which say
// more than the REST API does.
func (d *demo) troubles(ctx context.Context) string {
	var text strings.Builder
	if plane := d.planes[hubName]; plane != nil {
		notReady(ctx, &text, "spoke", plane.Admin(), "SpokeList")
	}
	for _, name := range spokeNames {
		if plane := d.planes[name]; plane != nil {
			notReady(ctx, &text, name, plane.Admin(), "ProxyList")
		}
	}
	if text.Len() == 0 {
		return ""
	}
	return "\nnot Ready:\n" + text.String()
}

func notReady(ctx context.Context, text *strings.Builder, what string, config *rest.Config, kind string) {
	objects, err := listObjects(ctx, config, kind)
	if err != nil {
		fmt.Fprintf(text, "  %s: %v\n", what, err)
		return
	}
	for _, object := range objects {
		if ready, _ := readiness(object); ready {
			continue
		}
		fmt.Fprintf(text, "  %s %s/%s\n", what, object.GetNamespace(), object.GetName())
		for _, c := range conditions(object) {
			fmt.Fprintf(text, "    %s=%s %s: %s\n", c.kind, c.status, c.reason, c.message)
		}
	}
}

// writeEnv comes last: whoever waits for the file finds everything in place.
func (d *demo) writeEnv(context.Context) error {
	variables := []variable{
		{"API_URL", d.api.base},
		{"API_TOKEN", d.api.token},
		{"METRICS_URL", d.metrics},
		{"KUBECONFIG", d.state.path("kubeconfig")},
		{"ORIGIN_URL", d.origin.URL},
		{"ORIGIN_PLAIN_URL", d.origin.PlainURL},
		{"ORIGIN_CA_FILE", d.origin.CAFile},
		{"HUB_COMMAND", d.command},
	}
	_, err := d.state.write(formatEnv(append(variables, d.pids()...)), 0o600, "env")
	return err
}

func (d *demo) printWaysIn() {
	d.out.plain(`
The main job is done, and everything stays up until Ctrl-C. To look around:

  set -a; . %[1]s; set +a       all of this as variables, and every process's PID
  kubectl --context eu-west get proxies -A -o wide
  kubectl --context hub get spokes -A
  curl -H "Authorization: Bearer $API_TOKEN" "$API_URL/v1/proxies"
  curl "$METRICS_URL"

  KUBECONFIG  %[2]s   (contexts hub, eu-west, us-east)
  API         %[3]s   token %[4]s
  metrics     %[5]s
  logs        %[6]s

Without a kubectl: make kubectl builds one and prints its path.
Kill what you like: a process that is lost is reported here and ends nothing else;
  sh -c "$HUB_COMMAND"   starts the hub again.

`, quote(d.state.path("env")), d.state.path("kubeconfig"), d.api.base, d.api.token, d.metrics, d.state.path("logs"))
}
