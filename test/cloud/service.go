package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// finalizer is what the controllers of real clouds use.
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// wanted says whether a Service is to have a load balancer, as things are.
func wanted(service *corev1.Service) bool {
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && service.DeletionTimestamp == nil
}

// reconcile makes the world agree with what the watch says of one Service.
func (c *cloud) reconcile(ctx context.Context, name cache.ObjectName) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	service, b := c.service(name), c.balancers[name]
	if b != nil && (service == nil || service.UID != b.uid || !wanted(service)) {
		c.log.Info("the load balancer ends", "service", name.String(), "address", b.address)
		c.close(name)
		b = nil
	}
	if service == nil || service.Spec.LoadBalancerClass != nil {
		return nil
	}
	if !wanted(service) {
		return c.letGo(ctx, service)
	}
	// Before the first thing that the Service's deletion must wait for.
	service, err := c.hold(ctx, service)
	if err != nil {
		return err
	}
	if b == nil {
		b = newBalancer(service.UID)
		c.balancers[name] = b
	}
	if err := c.place(ctx, b, service); err != nil {
		return err
	}
	// A port that cannot be had keeps the others from nothing.
	return errors.Join(c.listen(name, b, service), c.announce(ctx, b, service))
}

// hold puts the finalizer on a Service.
func (c *cloud) hold(ctx context.Context, service *corev1.Service) (*corev1.Service, error) {
	if slices.Contains(service.Finalizers, finalizer) {
		return service, nil
	}
	return c.patch(ctx, service, map[string]any{"metadata": map[string]any{
		"finalizers": append(slices.Clone(service.Finalizers), finalizer),
	}})
}

// letGo takes from a Service what this package has put there.
func (c *cloud) letGo(ctx context.Context, service *corev1.Service) error {
	i := slices.Index(service.Finalizers, finalizer)
	if i < 0 {
		return nil
	}
	if service.DeletionTimestamp == nil && len(service.Status.LoadBalancer.Ingress) > 0 {
		var err error
		if service, err = c.patch(ctx, service, statusWith(nil), "status"); err != nil {
			return err
		}
	}
	_, err := c.patch(ctx, service, map[string]any{"metadata": map[string]any{
		"finalizers": slices.Delete(slices.Clone(service.Finalizers), i, i+1),
	}})
	return err
}

// announce writes where the load balancer is into the Service's status.
func (c *cloud) announce(ctx context.Context, b *balancer, service *corev1.Service) error {
	ingress := corev1.LoadBalancerIngress{IP: b.address.String()}
	if c.options.Hostname != nil {
		if hostname := c.options.Hostname(service, b.address); hostname != "" {
			ingress = corev1.LoadBalancerIngress{Hostname: hostname}
		}
	}
	// The API server adds more to it.
	now := service.Status.LoadBalancer.Ingress
	if len(now) == 1 && now[0].IP == ingress.IP && now[0].Hostname == ingress.Hostname {
		return nil
	}
	if _, err := c.patch(ctx, service, statusWith([]corev1.LoadBalancerIngress{ingress}), "status"); err != nil {
		return err
	}
	c.log.Info("the load balancer is there", "service", service.Namespace+"/"+service.Name,
		"address", b.address, "hostname", ingress.Hostname)
	return nil
}

func statusWith(ingress []corev1.LoadBalancerIngress) map[string]any {
	return map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}}
}

// patch merges into a Service, as long as it is the version that the patch was made from: that
// keeps a finalizer of somebody else from being lost, and a namesake from being meant.
func (c *cloud) patch(ctx context.Context, service *corev1.Service, patch map[string]any, subresource ...string) (*corev1.Service, error) {
	metadata, ok := patch["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		patch["metadata"] = metadata
	}
	metadata["uid"], metadata["resourceVersion"] = service.UID, service.ResourceVersion
	content, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return c.core.Services(service.Namespace).Patch(ctx, service.Name, types.MergePatchType, content,
		metav1.PatchOptions{}, subresource...)
}

// chosen is the address that somebody has chosen for a Service; the zero Addr if nobody has.
func (c *cloud) chosen(service *corev1.Service) netip.Addr {
	if address, err := netip.ParseAddr(service.Annotations[AddressAnnotation]); err == nil {
		return address
	}
	if c.options.Address != nil {
		return c.options.Address(service)
	}
	return netip.Addr{}
}
