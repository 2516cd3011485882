package provider

import "context"

// Recorder is told of every provider call.
type Recorder interface {
	ProviderRequest(provider, cluster, op, result string)
}

// Observed returns p with every call reported to r: the one place where an
// error's class is taken for the metrics alone.
func Observed(p Provider, r Recorder, name, cluster string) Provider {
	return observed{p, func(op string, err error) { r.ProviderRequest(name, cluster, op, Class(err)) }}
}

type observed struct {
	Provider
	report func(op string, err error)
}

func (o observed) Create(ctx context.Context, req CreateRequest) (Instance, error) {
	inst, err := o.Provider.Create(ctx, req)
	o.report("create", err)
	return inst, err
}

func (o observed) Get(ctx context.Context, ref Ref) (Instance, error) {
	inst, err := o.Provider.Get(ctx, ref)
	o.report("get", err)
	return inst, err
}

func (o observed) Delete(ctx context.Context, ref Ref, id string) error {
	err := o.Provider.Delete(ctx, ref, id)
	o.report("delete", err)
	return err
}
