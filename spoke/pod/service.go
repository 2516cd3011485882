package pod

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/internal/provider"
)

// +kubebuilder:rbac:groups="",resources=services,verbs=get;create;delete;patch

// A load balancer in front of an instance is a Service of the pod's name. It
// outlives a replacement of the pod, so that clients keep their address; hence it
// is not named by the hash, and is corrected where a Secret is made anew.

const (
	// labelInstance marks a pod by its name, and is what a Service selects it by. It
	// is no mark of ownership, and stays on a pod that is abandoned.
	labelInstance = "app.kubernetes.io/instance"
	// portName is the one port of a container and of a Service.
	portName = "proxy"
)

// buildService makes the Service in front of an instance. Like build, it shares
// nothing with the request.
func buildService(req provider.CreateRequest) *corev1.Service {
	meta := ownedMeta(req, req.Ref.Name)
	delete(meta.Labels, v1alpha1.LabelSpecHash) // of one instance, and it is for all that follow
	return &corev1.Service{ObjectMeta: meta, Spec: front(req.Ref.Name, req.Spec.ListenPort())}
}

// front is what of a Service is the hub's to say. The rest is for the cluster and
// its administrators: they add node ports, annotations, a class, finalizers.
func front(name string, port int32) corev1.ServiceSpec {
	return corev1.ServiceSpec{
		Type:     corev1.ServiceTypeLoadBalancer,
		Selector: map[string]string{labelInstance: name},
		Ports:    []corev1.ServicePort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(port)}},
	}
}

// deviation names the fields in which a Service is not the wanted one; empty for
// none.
func deviation(have, want corev1.ServiceSpec) string {
	var fields []string
	if have.Type != want.Type {
		fields = append(fields, "type")
	}
	if !maps.Equal(have.Selector, want.Selector) {
		fields = append(fields, "selector")
	}
	if !slices.EqualFunc(have.Ports, want.Ports, samePort) {
		fields = append(fields, "ports")
	}
	return strings.Join(fields, ", ")
}

func samePort(a, b corev1.ServicePort) bool {
	return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port && a.TargetPort == b.TargetPort
}

// corrected is have with what is the hub's to say. What others have added to its
// port stays as well, or a cloud would have to find it at another node port.
func corrected(have, want corev1.ServiceSpec) corev1.ServiceSpec {
	have.Type, have.Selector = want.Type, want.Selector
	ports := slices.Clone(want.Ports)
	for i := range ports {
		old := slices.IndexFunc(have.Ports, func(p corev1.ServicePort) bool { return p.Name == ports[i].Name })
		if old >= 0 {
			ports[i].NodePort, ports[i].AppProtocol = have.Ports[old].NodePort, have.Ports[old].AppProtocol
		}
	}
	have.Ports = ports
	return have
}

// entrance is where clients reach an instance.
type entrance struct {
	// host is empty while there is none, and why says what is waited for then.
	host, why string
	// lacks is provider.Instance.Lacks.
	lacks string
}

// balanced says that a Service has the address of this pod's instance. One that
// goes or has stopped is dialled by nobody, and must not have to wait for a Service
// that cannot be read.
func balanced(p *corev1.Pod) bool {
	access := accessOf(p)
	return access != nil && access.Expose == v1alpha1.ExposeLoadBalancer && p.DeletionTimestamp.IsZero() && !stopped(p)
}

// behind is the entrance of a pod behind its load balancer; s is the Service of its
// name, nil where there is none.
func behind(p *corev1.Pod, s *corev1.Service) entrance {
	at := entrance{why: "the load balancer has no address yet"}
	if s == nil {
		at.lacks = "its Service is missing"
		return at
	}
	if ownerOf(s) != ownerOf(p) {
		at.lacks = "the Service of its name is not what the hub made"
		return at
	}
	at.host = balancer(s)
	at.why = joinReason(at.why, conditions(s))
	if !s.DeletionTimestamp.IsZero() {
		at.lacks = "its Service is being deleted"
	} else if fields := deviation(s.Spec, front(p.Name, listenPort(p))); fields != "" {
		at.lacks = "its Service differs in " + fields + " from what it needs"
	}
	return at
}

// balancer is the address that the cloud has given a Service: of several the first.
func balancer(s *corev1.Service) string {
	for _, in := range s.Status.LoadBalancer.Ingress {
		if host := cmp.Or(in.IP, in.Hostname); host != "" {
			return host
		}
	}
	return ""
}

// conditions are what the cloud says about a Service, in a line for a person.
func conditions(s *corev1.Service) string {
	var said []string
	for _, c := range s.Status.Conditions {
		said = append(said, c.Type+" is "+joinReason(string(c.Status), joinReason(c.Reason, c.Message)))
	}
	return strings.Join(said, "; ")
}

// listenPort is the port that a pod was made to listen on; 0 where it was not made
// by build.
func listenPort(p *corev1.Pod) int32 {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if c.Name == containerName && port.Name == portName {
				return port.ContainerPort
			}
		}
	}
	return 0
}

// Repair implements provider.Provider. The request is the one that the instance
// was made of: of another, the Service would lead to a port where nobody listens.
func (p Provider) Repair(ctx context.Context, req provider.CreateRequest) error {
	if req.Spec.ExposedAs() != v1alpha1.ExposeLoadBalancer {
		return nil
	}
	return p.expose(ctx, req)
}

// expose makes or corrects the Service in front of an instance.
func (p Provider) expose(ctx context.Context, req provider.CreateRequest) error {
	want := buildService(req)
	have, err := p.service(ctx, req.Ref)
	if err != nil {
		return err
	}
	if have == nil {
		refusal := p.Writer.Create(ctx, want.DeepCopy())
		if refusal == nil {
			return nil
		}
		if apierrors.IsAlreadyExists(refusal) {
			// Somebody else's, or of a hub that led a moment ago.
			if have, err = p.service(ctx, req.Ref); err != nil {
				return err
			}
		}
		if have == nil {
			return fmt.Errorf("create service %s/%s: %w", want.Namespace, want.Name, refusedService(refusal))
		}
	}
	return p.correct(ctx, have, want)
}

// correct makes the Service that is there the wanted one, if it is the hub's.
func (p Provider) correct(ctx context.Context, have, want *corev1.Service) error {
	switch {
	case !have.DeletionTimestamp.IsZero():
		return fmt.Errorf("create service %s/%s: %w", want.Namespace, want.Name, errServiceGoing)
	case ownerOf(have) != ownerOf(want):
		return fmt.Errorf("create service %s/%s: %w", want.Namespace, want.Name, errNotOurService)
	case deviation(have.Spec, want.Spec) == "":
		return nil
	}
	base := have.DeepCopy()
	have.Spec = corrected(have.Spec, want.Spec)
	// The lock: the list of ports is replaced as a whole.
	if err := p.Writer.Patch(ctx, have, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("correct service %s/%s: %w", want.Namespace, want.Name, refusedCorrection(err))
	}
	return nil
}

// service reads the Service of an instance's name; nil where there is none.
func (p Provider) service(ctx context.Context, ref provider.Ref) (*corev1.Service, error) {
	s := &corev1.Service{}
	if err := p.Reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, s); missing(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get service %s/%s: %w", ref.Namespace, ref.Name, Classified(err))
	}
	return s, nil
}

// conceal removes the Service of an instance that has no load balancer, or is
// gone. What a cloud does about it takes minutes, and nobody waits for that.
func (p Provider) conceal(ctx context.Context, ref provider.Ref, owner provider.Owner) error {
	s, err := p.metadata(ctx, "Service", client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name})
	if err != nil || s == nil || ownerOf(s) != owner || !s.DeletionTimestamp.IsZero() {
		return err
	}
	return p.delete(ctx, s, &client.DeleteOptions{})
}
