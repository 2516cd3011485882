package provider

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
)

// scripted answers every call with the same things and keeps its arguments.
type scripted struct {
	ctx     context.Context
	args    []any
	inst    Instance
	files   map[string][]byte
	listing Listing
	err     error
}

func (s *scripted) called(ctx context.Context, args ...any) error {
	s.ctx, s.args = ctx, args
	return s.err
}

func (s *scripted) Create(ctx context.Context, req CreateRequest) (Instance, error) {
	return s.inst, s.called(ctx, "Create", req)
}

func (s *scripted) Get(ctx context.Context, ref Ref) (Instance, error) {
	return s.inst, s.called(ctx, "Get", ref)
}

func (s *scripted) Files(ctx context.Context, ref Ref, specHash string) (map[string][]byte, error) {
	return s.files, s.called(ctx, "Files", ref, specHash)
}

func (s *scripted) Repair(ctx context.Context, req CreateRequest) error {
	return s.called(ctx, "Repair", req)
}

func (s *scripted) Delete(ctx context.Context, ref Ref, id string, forced bool) error {
	return s.called(ctx, "Delete", ref, id, forced)
}

func (s *scripted) Clear(ctx context.Context, ref Ref, owner Owner) error {
	return s.called(ctx, "Clear", ref, owner)
}

func (s *scripted) Abandon(ctx context.Context, ref Ref, owner Owner, id string) error {
	return s.called(ctx, "Abandon", ref, owner, id)
}

func (s *scripted) ListByTag(ctx context.Context, hub string) (Listing, error) {
	return s.listing, s.called(ctx, "ListByTag", hub)
}

// recorded keeps what a Recorder is told.
type recorded []string

func (r *recorded) ProviderRequest(provider, cluster, op, result string) {
	*r = append(*r, fmt.Sprint(provider, " ", cluster, " ", op, " ", result))
}

type inContext struct{}

// calls are all methods of a Provider, with what each is to be called with.
func calls() map[string]struct {
	args []any
	call func(context.Context, Provider) (any, error)
} {
	ref, owner := Ref{"crawl", "proxy-u-1"}, Owner{"u-1", "hub-1", "cluster-1"}
	req := CreateRequest{
		Ref: ref, Owner: owner, SpecHash: "v2-abc", Spoke: "eu", ProxyName: "eu-1",
		Spec: &v1alpha1.ProxySpec{Port: 3128}, Files: map[string][]byte{FileUserData: []byte("x")},
	}
	none := func(err error) (any, error) { return nil, err }
	type call = struct {
		args []any
		call func(context.Context, Provider) (any, error)
	}
	return map[string]call{
		"create": {[]any{"Create", req}, func(ctx context.Context, p Provider) (any, error) { return p.Create(ctx, req) }},
		"get":    {[]any{"Get", ref}, func(ctx context.Context, p Provider) (any, error) { return p.Get(ctx, ref) }},
		"files":  {[]any{"Files", ref, "v2-abc"}, func(ctx context.Context, p Provider) (any, error) { return p.Files(ctx, ref, "v2-abc") }},
		"repair": {[]any{"Repair", req}, func(ctx context.Context, p Provider) (any, error) { return none(p.Repair(ctx, req)) }},
		"delete": {[]any{"Delete", ref, "id-1", true}, func(ctx context.Context, p Provider) (any, error) { return none(p.Delete(ctx, ref, "id-1", true)) }},
		"clear":  {[]any{"Clear", ref, owner}, func(ctx context.Context, p Provider) (any, error) { return none(p.Clear(ctx, ref, owner)) }},
		"abandon": {[]any{"Abandon", ref, owner, "id-1"}, func(ctx context.Context, p Provider) (any, error) {
			return none(p.Abandon(ctx, ref, owner, "id-1"))
		}},
		"list": {[]any{"ListByTag", "hub-1"}, func(ctx context.Context, p Provider) (any, error) { return p.ListByTag(ctx, "hub-1") }},
	}
}

func TestEveryCallIsPassedOnAsItIsAndRecordedOnce(t *testing.T) {
	if methods := reflect.TypeFor[Provider]().NumMethod(); methods != len(calls()) {
		t.Fatalf("a Provider has %d methods, this test %d", methods, len(calls()))
	}
	for op, want := range calls() {
		for _, cause := range []error{nil, ErrNotFound, ErrExists, ErrQuotaExceeded, ErrPermanent, ErrTransient, ErrLasting, context.Canceled} {
			t.Run(fmt.Sprintf("%s %v", op, cause), func(t *testing.T) {
				within := &scripted{
					inst: Instance{ID: "id-1", Host: "10.0.0.1"}, files: map[string][]byte{FilePassword: []byte("p")},
					listing: Listing{Instances: []Instance{{ID: "id-2"}}, Unanswered: []string{"other"}},
				}
				if cause != nil {
					within.err = fmt.Errorf("%s: %w", op, cause)
				}
				var told recorded
				ctx := context.WithValue(t.Context(), inContext{}, op)
				result, err := want.call(ctx, Observed(within, &told, "kubernetes", "eu"))

				if !errors.Is(err, within.err) || (err == nil) != (cause == nil) {
					t.Errorf("error %v, want %v", err, within.err)
				}
				var wantResult any
				switch op {
				case "create", "get":
					wantResult = within.inst
				case "files":
					wantResult = within.files
				case "list":
					wantResult = within.listing
				}
				if !reflect.DeepEqual(result, wantResult) {
					t.Errorf("result %+v, want %+v", result, wantResult)
				}
				if !reflect.DeepEqual(within.args, want.args) || within.ctx.Value(inContext{}) != op {
					t.Errorf("called with %+v, want %+v", within.args, want.args)
				}
				if line := "kubernetes eu " + op + " " + Class(cause); !slices.Equal(told, recorded{line}) {
					t.Errorf("recorded %q, want %q", told, line)
				}
			})
		}
	}
}

func TestAGentleDeletionIsNotForced(t *testing.T) {
	within := &scripted{}
	var told recorded
	if err := Observed(within, &told, "kubernetes", "eu").Delete(t.Context(), Ref{}, "id-1", false); err != nil {
		t.Fatal(err)
	}
	if forced := within.args[len(within.args)-1]; forced != false {
		t.Errorf("forced: %v", forced)
	}
}

func TestAnInstancesNameIsADNSLabelThatComesFromTheUIDAlone(t *testing.T) {
	const uid = "6dd3a3c0-2e1f-4c5c-9a39-0f5b1d1f7a11"
	if got := NameFromUID(uid); got != "proxy-"+uid || len(got) > 63 || got != NameFromUID(uid) {
		t.Errorf("name %q", got)
	}
}
