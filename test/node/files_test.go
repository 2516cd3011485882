package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/proxyfleet/proxy-operator/internal/testkit/origin"
)

// credentialItems are two of a Secret's keys under the names that a proxy looks for.
var credentialItems = []corev1.KeyToPath{{Key: "user", Path: "username"}, {Key: "password", Path: "password", Mode: ptr.To[int32](0o400)}}

func mountedSecret(t *testing.T, c *cluster) {
	c.createSecret(t, "mounted", map[string]string{"user": "crawler", "password": "hush", "other": "x"})
	c.create(t, proxyPod("mounted", mount("mounted", func(s *corev1.SecretVolumeSource) { s.Items = credentialItems })))
	pod := c.untilReady(t, "mounted")

	dir := c.files(pod)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("the pod's files: %v, %v", entries, err)
	}
	for path, want := range map[string]os.FileMode{"..": 0o700, ".": 0o700, "username": 0o644, "password": 0o400} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %s", path, info, err, want)
		}
	}

	site := origin.Start(t)
	ask := func(user *url.Userinfo) error {
		transport := &http.Transport{
			Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(pod.Status.PodIP, "3128"), User: user}),
			TLSClientConfig: &tls.Config{RootCAs: site.CertPool()},
		}
		defer transport.CloseIdleConnections()
		_, err := origin.Fetch(t.Context(), &http.Client{Transport: transport}, site.URL)
		return err
	}
	if err := ask(url.UserPassword("crawler", "hush")); err != nil {
		t.Errorf("with the Secret's content: %v", err)
	}
	if err := ask(nil); err == nil {
		t.Error("the proxy took no notice of its files")
	}

	c.delete(t, "mounted", nil)
	c.until(t, "mounted", "gone", isGone)
	untilNot(t, "the pod's files outlive it", func() bool { _, err := os.Stat(dir); return err == nil })
}

func optionalSecret(t *testing.T, c *cluster) {
	c.create(t, proxyPod("optional", mount("nowhere", func(s *corev1.SecretVolumeSource) { s.Optional = ptr.To(true) })))
	pod := c.untilReady(t, "optional")
	if entries, err := os.ReadDir(c.files(pod)); err != nil || len(entries) > 0 {
		t.Errorf("the pod's files: %v, %v", entries, err)
	}
}

func missingMountedSecret(t *testing.T, c *cluster) {
	c.create(t, proxyPod("unmounted", mount("later", func(s *corev1.SecretVolumeSource) { s.Items = credentialItems })))
	says := func(what string) func(*corev1.Pod) bool {
		return func(pod *corev1.Pod) bool {
			return isWaiting("CreateContainerConfigError")(pod) &&
				strings.Contains(pod.Status.ContainerStatuses[0].State.Waiting.Message, what)
		}
	}
	c.until(t, "unmounted", "told that the Secret is missing", says(`secret pods/later: secrets "later" not found`))
	secret := c.createSecret(t, "later", map[string]string{"user": "crawler"})
	c.until(t, "unmounted", "told that a key is missing", says("password of secret pods/later"))
	secret.StringData = map[string]string{"password": "hush"}
	if _, err := c.core.Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.untilReady(t, "unmounted")
}

// mount has a pod find a Secret's content where the operator puts it.
func mount(secret string, modify func(*corev1.SecretVolumeSource)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		source := &corev1.SecretVolumeSource{SecretName: secret}
		if modify != nil {
			modify(source)
		}
		pod.Spec.Volumes = []corev1.Volume{{Name: "files", VolumeSource: corev1.VolumeSource{Secret: source}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "files", MountPath: "/etc/proxy-operator", ReadOnly: true}}
	}
}

func (c *cluster) createSecret(t *testing.T, name string, content map[string]string) *corev1.Secret {
	t.Helper()
	secret, err := c.core.Secrets(namespace).Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: content}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// files is the directory of a pod's files.
func (c *cluster) files(pod *corev1.Pod) string {
	return filepath.Join(c.dir, "pods", nodeName+".files", string(pod.UID))
}
