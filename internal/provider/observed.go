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
	within Provider
	report func(op string, err error)
}

func (o observed) Create(ctx context.Context, req CreateRequest) (Instance, error) {
	inst, err := o.within.Create(ctx, req)
	o.report("create", err)
	return inst, err
}

func (o observed) Get(ctx context.Context, ref Ref) (Instance, error) {
	inst, err := o.within.Get(ctx, ref)
	o.report("get", err)
	return inst, err
}

func (o observed) Files(ctx context.Context, ref Ref, specHash string) (map[string][]byte, error) {
	files, err := o.within.Files(ctx, ref, specHash)
	o.report("files", err)
	return files, err
}

func (o observed) Repair(ctx context.Context, req CreateRequest) error {
	err := o.within.Repair(ctx, req)
	o.report("repair", err)
	return err
}

func (o observed) Delete(ctx context.Context, ref Ref, id string, forced bool) error {
	err := o.within.Delete(ctx, ref, id, forced)
	o.report("delete", err)
	return err
}

func (o observed) Clear(ctx context.Context, ref Ref, owner Owner) error {
	err := o.within.Clear(ctx, ref, owner)
	o.report("clear", err)
	return err
}

func (o observed) Abandon(ctx context.Context, ref Ref, owner Owner, id string) error {
	err := o.within.Abandon(ctx, ref, owner, id)
	o.report("abandon", err)
	return err
}

func (o observed) ListByTag(ctx context.Context, hub string) (Listing, error) {
	listing, err := o.within.ListByTag(ctx, hub)
	o.report("list", err)
	return listing, err
}
