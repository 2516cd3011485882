package agent

import (
	"context"
	"encoding/json"
	"net/netip"
	"runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	leaseSeconds  = 40 // kubelet's
	leaseRenewal  = 10 * time.Second
	registerRetry = time.Second
)

func nodeLabels(name string) map[string]string {
	return map[string]string{
		corev1.LabelHostname:   name,
		corev1.LabelOSStable:   runtime.GOOS,
		corev1.LabelArchStable: runtime.GOARCH,
	}
}

// register makes the Node object, or takes over the one of an earlier life. It tries until it
// succeeds or ctx ends.
func (n *node) register(ctx context.Context) error {
	for {
		err := n.tryRegister(ctx)
		if err == nil {
			n.log.Info("registered")
			return nil
		}
		n.log.Warn("cannot register, trying again", "error", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(registerRetry):
		}
	}
}

func (n *node) tryRegister(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	registered, err := n.core.Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		registered, err = n.core.Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: nodeLabels(n.name)},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	if err := n.acquireAddress(ctx, registered); err != nil {
		return err
	}
	patch, err := statusPatch(map[string]any{}, nodeStatus(n.name, n.hostIP, metav1.Now()))
	if err != nil {
		return err
	}
	_, err = n.core.Nodes().Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// acquireAddress gives the node the address that its options ask for or else, if it can be had,
// the one that its clients know.
func (n *node) acquireAddress(ctx context.Context, registered *corev1.Node) error {
	if n.hostIP != "" {
		return nil
	}
	if n.given.IsValid() {
		if err := n.own.Hold(ctx, n.given); err != nil {
			return err
		}
		n.hostIP = n.given.String()
		return nil
	}
	var earlier netip.Addr
	for _, a := range registered.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			earlier, _ = netip.ParseAddr(a.Address)
		}
	}
	address, err := n.own.Acquire(ctx, earlier, n.name)
	if err != nil {
		return err
	}
	n.hostIP = address.String()
	return nil
}

func (n *node) releaseAddress() {
	if address, err := netip.ParseAddr(n.hostIP); err == nil {
		n.own.Release(address)
	}
}

func nodeStatus(name, hostIP string, now metav1.Time) corev1.NodeStatus {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse("16Gi"), // nobody counts
		corev1.ResourcePods:   resource.MustParse("2000"),
	}
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return corev1.NodeStatus{
		Capacity:    capacity,
		Allocatable: capacity,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: hostIP},
			{Type: corev1.NodeHostName, Address: name},
		},
		Conditions: []corev1.NodeCondition{
			condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
		},
		NodeInfo: corev1.NodeSystemInfo{
			OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
			KubeletVersion: "stand-in", ContainerRuntimeVersion: "process://1",
		},
	}
}

// keepLease renews the node's heartbeat until ctx ends. A heartbeat that fails is tried again
// at the next beat, as long as the lease lasts nobody minds.
func (n *node) keepLease(ctx context.Context) {
	ticker := time.NewTicker(leaseRenewal)
	defer ticker.Stop()
	for {
		if err := n.renewLease(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("cannot renew the node's lease", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (n *node) renewLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	leases := n.leases.Leases(corev1.NamespaceNodeLease)
	spec := coordinationv1.LeaseSpec{
		HolderIdentity:       ptr.To(n.name),
		LeaseDurationSeconds: ptr.To[int32](leaseSeconds),
		RenewTime:            ptr.To(metav1.NowMicro()),
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	_, err = leases.Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: spec}
	_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	// A young cluster's API server has not made the namespace yet.
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}}
	if _, err := n.core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	return err
}
