package controlplane

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenLifetime is longer than any demo is left running.
const tokenLifetime = 7 * 24 * time.Hour

// Token asks the TokenRequest API for a token of a ServiceAccount, which must exist. It lasts
// for a week and dies with the ServiceAccount.
func (c *ControlPlane) Token(ctx context.Context, namespace, serviceAccount string) (string, error) {
	clients, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return "", err
	}
	seconds := int64(tokenLifetime.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	answer, err := clients.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of %s/%s in %s: %w", namespace, serviceAccount, c.name, err)
	}
	return answer.Status.Token, nil
}

// ServiceAccount returns the configuration of a client that is that ServiceAccount, by a token
// of its own.
func (c *ControlPlane) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	token, err := c.Token(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(c.admin)
	config.BearerToken = token
	return config, nil
}

// Context is a named way into a cluster.
type Context struct {
	Name   string
	Config *rest.Config
}

// Kubeconfig writes a kubeconfig file with these contexts, the first being the current one.
// All data is inline: it refers to no file and runs no plugin, as the hub demands.
func Kubeconfig(contexts ...Context) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	for i, entry := range contexts {
		if i == 0 {
			config.CurrentContext = entry.Name
		}
		config.Clusters[entry.Name] = &clientcmdapi.Cluster{
			Server:                   entry.Config.Host,
			CertificateAuthorityData: entry.Config.CAData,
		}
		config.AuthInfos[entry.Name] = &clientcmdapi.AuthInfo{
			Token:                 entry.Config.BearerToken,
			ClientCertificateData: entry.Config.CertData,
			ClientKeyData:         entry.Config.KeyData,
		}
		config.Contexts[entry.Name] = &clientcmdapi.Context{Cluster: entry.Name, AuthInfo: entry.Name}
	}
	content, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig: %w", err)
	}
	return content, nil
}
