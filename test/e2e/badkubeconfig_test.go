package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

func badKubeconfigs(t *testing.T, w *world) {
	executed := filepath.Join(w.temp, "the-plugin-was-executed")
	bad := []struct {
		spoke      string
		kubeconfig []byte
		want       string
		says       []string
	}{
		{"unreadable", []byte("\x00{ this is no kubeconfig"), "False/KubeconfigInvalid: ", []string{"not a kubeconfig", "Config"}},
		{"plugin", w.pluginKubeconfig(t, executed), "False/KubeconfigForbidden: ", []string{"exec", "token"}},
		{"nothing", nil, "False/KubeconfigInvalid: ", []string{"no kubeconfig", "key kubeconfig"}},
	}
	w.wantUnchanged(t, func() {
		for _, b := range bad {
			w.register(t, b.spoke, b.kubeconfig)
		}
		for _, b := range bad {
			w.wantSpoke(t, b.spoke, b.want, b.says)
		}
	})
	for _, b := range bad {
		w.deregister(t, b.spoke)
	}
	if _, err := os.Stat(executed); !os.IsNotExist(err) {
		t.Errorf("the hub has executed the kubeconfig's plugin (%v)", err)
	}
	w.wantPluginWorks(t)
}

// pluginKubeconfig leads to eu-west, with a credential plugin that makes the file marker.
func (w *world) pluginKubeconfig(t *testing.T, marker string) []byte {
	t.Helper()
	file, err := clientcmd.LoadFromFile(w.env["KUBECONFIG"])
	if err != nil {
		t.Fatal(err)
	}
	user := file.AuthInfos[file.Contexts[euWest].AuthInfo]
	*user = clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: "touch", Args: []string{marker},
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}
	file.CurrentContext = euWest
	content, err := clientcmd.Write(*file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// tokenIn is the token of a kubeconfig's only user.
func tokenIn(t *testing.T, kubeconfig []byte) string {
	t.Helper()
	file, err := clientcmd.Load(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range file.AuthInfos {
		if user.Token != "" {
			return user.Token
		}
	}
	t.Fatal("the kubeconfig holds no token")
	return ""
}

// wantPluginWorks shows that the plugin runs where kubeconfigs are trusted: that it has not run
// before is the hub's doing.
func (w *world) wantPluginWorks(t *testing.T) {
	t.Helper()
	marker := filepath.Join(w.temp, "the-plugin-works")
	config, err := clientcmd.RESTConfigFromKubeConfig(w.pluginKubeconfig(t, marker))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("the plugin gives no credential, and yet eu-west answers")
	}
	if _, err := os.Stat(marker); err != nil {
		t.Errorf("the plugin of this test does not work: %v", err)
	}
}

// register makes the Secret that makes a spoke.
func (w *world) register(t *testing.T, name string, kubeconfig []byte) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, Labels: map[string]string{v1alpha1.LabelKubeconfig: "true"}},
		Data:       map[string][]byte{v1alpha1.KubeconfigKey: kubeconfig},
	}
	if err := w.hub.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// deregister removes that Secret and waits for its Spoke to follow.
func (w *world) deregister(t *testing.T, name string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
	if err := w.hub.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "Spoke "+name+" goes with its Secret", func() error {
		return gone(w.hub.Get(t.Context(), client.ObjectKeyFromObject(secret), &v1alpha1.Spoke{}))
	})
}

// wantSpoke waits until a Spoke's condition Ready begins with want and holds each of the words.
func (w *world) wantSpoke(t *testing.T, name, want string, says []string) {
	t.Helper()
	eventually(t, patience, "Spoke "+name+" shows what is wrong", func() error {
		s := &v1alpha1.Spoke{}
		err := w.hub.Get(t.Context(), client.ObjectKey{Namespace: system, Name: name}, s)
		if apierrors.IsNotFound(err) {
			return err
		}
		if err != nil {
			t.Fatal(err)
		}
		got := condition(s.Status.Conditions, v1alpha1.ConditionReady)
		for _, words := range append(says, want) {
			if !strings.Contains(got, words) {
				return fmt.Errorf("Ready is %s, want %s… with %q", got, want, says)
			}
		}
		return nil
	})
}
