package kubeconfig

import (
	"encoding/base64"
	"fmt"

	"sigs.k8s.io/yaml"
)

// unreadable says what the parser could not read, in words of our own: its may
// quote the file.
func unreadable(raw []byte) string {
	var file struct {
		Clusters []struct{ Cluster map[string]any }
		Users    []struct{ User map[string]any }
	}
	if yaml.Unmarshal(raw, &file) == nil {
		for _, c := range file.Clusters {
			if bad := notBase64(c.Cluster); bad != "" {
				return bad
			}
		}
		for _, u := range file.Users {
			if bad := notBase64(u.User); bad != "" {
				return bad
			}
		}
	}
	return "this is not a kubeconfig: write YAML or JSON of kind Config, apiVersion v1, with one cluster, user and context each"
}

// notBase64 names the field that is to be base64 and is not.
func notBase64(fields map[string]any) string {
	for _, name := range []string{"certificate-authority-data", "client-certificate-data", "client-key-data"} {
		text, isText := fields[name].(string)
		if _, err := base64.StdEncoding.DecodeString(text); fields[name] != nil && (!isText || err != nil) {
			return fmt.Sprintf("%s is not base64: write the base64 of the PEM, on one line", name)
		}
	}
	return ""
}
