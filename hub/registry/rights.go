package registry

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"sigs.k8s.io/yaml"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/config"
)

// +kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=proxies.crawl.proxyfleet.dev,verbs=get
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=selfsubjectaccessreviews,verbs=create

// userFormat is what of a user's name is shown.
var userFormat = regexp.MustCompile(`^[0-9A-Za-z@:._/+-]{1,253}$`)

// reviewsAtOnce bounds how many access reviews of one preflight are under way.
const reviewsAtOnce = 8

// rightsFor lists what the hub needs in a spoke, one verb each: what the
// generated roles grant, those of namespaces in each of namespaces, or in all
// where there are none.
func rightsFor(namespaces []string) []authorizationv1.ResourceAttributes {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	rights := slices.Clone(identityRights)
	for _, namespace := range namespaces {
		for _, right := range namespaceRights {
			right.Namespace = namespace
			rights = append(rights, right)
		}
	}
	return rights
}

var (
	identityRights  = mustRights(config.SpokeIdentityRole)
	namespaceRights = mustRights(config.SpokeRole)
)

// mustRights spells a generated role out. The roles are part of the program:
// one that cannot be read is found by any test.
func mustRights(manifest []byte) []authorizationv1.ResourceAttributes {
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(manifest, &role); err != nil || len(role.Rules) == 0 {
		panic(fmt.Sprintf("the embedded role cannot be read: %v", err))
	}
	var rights []authorizationv1.ResourceAttributes
	for _, rule := range role.Rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				resource, subresource, _ := strings.Cut(resource, "/")
				for _, name := range names {
					for _, verb := range rule.Verbs {
						rights = append(rights, authorizationv1.ResourceAttributes{Group: group, Resource: resource, Subresource: subresource, Name: name, Verb: verb})
					}
				}
			}
		}
	}
	return rights
}

// reviewRights asks the API server for each of the rights that the credential
// needs, and tells all that are missing at once.
func (c *connection) reviewRights(ctx context.Context) error {
	reviews, err := authorizationclient.NewForConfigAndClient(c.config, c.http)
	if err != nil {
		return fmt.Errorf("build the client: %w", err)
	}
	rights := rightsFor(c.cred.namespaces)
	allowed := make([]bool, len(rights))
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(reviewsAtOnce)
	for i := range rights {
		group.Go(func() error {
			ctx, cancel := short(each)
			defer cancel()
			answer, err := reviews.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &rights[i]},
			}, metav1.CreateOptions{})
			if err != nil {
				return asked("create selfsubjectaccessreviews", err)
			}
			allowed[i] = answer.Status.Allowed
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	missing := missingRights(rights, allowed)
	if missing == "" {
		return nil
	}
	return &preflightError{v1alpha1.ReasonForbidden, fmt.Sprintf("%s lacks rights in the cluster (%s): it may not %s", c.whoAmI(ctx), c.cred.grant(), missing)}
}

// grant says where the rights come from.
func (c *credential) grant() string {
	switch {
	case c.local:
		return "apply config/rbac/spoke and config/rbac/local-spoke"
	case len(c.namespaces) > 0:
		return "bind ClusterRole proxy-operator-spoke in each namespace, as config/rbac/spoke-namespaced does"
	default:
		return "apply config/rbac/spoke and give a token of its ServiceAccount"
	}
}

// whoAmI is the user that the API server takes the credential for, as far as it says.
func (c *connection) whoAmI(ctx context.Context) string {
	const unknown = "the credential"
	identities, err := authenticationclient.NewForConfigAndClient(c.config, c.http)
	if err != nil {
		return unknown
	}
	ctx, cancel := short(ctx)
	defer cancel()
	answer, err := identities.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return unknown
	}
	name := answer.Status.UserInfo.Username
	if !userFormat.MatchString(name) || c.isSecret(name) {
		return unknown
	}
	return "user " + name
}

// missingRights words what is not allowed, the verbs of a resource together.
func missingRights(rights []authorizationv1.ResourceAttributes, allowed []bool) string {
	var order []string
	verbs := map[string][]string{}
	for i, right := range rights {
		if allowed[i] {
			continue
		}
		resource := right.Resource
		if right.Group != "" {
			resource += "." + right.Group
		}
		if right.Subresource != "" {
			resource += "/" + right.Subresource
		}
		if right.Name != "" {
			resource += " " + right.Name
		}
		if right.Namespace != "" {
			resource += " in namespace " + right.Namespace
		}
		if verbs[resource] == nil {
			order = append(order, resource)
		}
		verbs[resource] = append(verbs[resource], right.Verb)
	}
	for i, resource := range order {
		order[i] = strings.Join(verbs[resource], ", ") + " " + resource
	}
	return strings.Join(order, "; ")
}
