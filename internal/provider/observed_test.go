package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// failing answers every call with its error.
type failing struct{ err error }

func (f failing) Create(context.Context, CreateRequest) (Instance, error) { return Instance{}, f.err }
func (f failing) Get(context.Context, Ref) (Instance, error)              { return Instance{}, f.err }
func (f failing) Delete(context.Context, Ref, string) error               { return f.err }

type seen []string

func (s *seen) ProviderRequest(provider, cluster, op, result string) {
	*s = append(*s, fmt.Sprint(provider, " ", cluster, " ", op, " ", result))
}

func TestEveryCallIsRecordedWithItsClassAndItsErrorPassedOn(t *testing.T) {
	var calls seen
	cause := fmt.Errorf("create: %w", ErrPermanent)
	p := Observed(failing{cause}, &calls, "kubernetes", "eu")
	_, createErr := p.Create(t.Context(), CreateRequest{})
	_, getErr := Observed(failing{ErrNotFound}, &calls, "kubernetes", "eu").Get(t.Context(), Ref{})
	deleteErr := Observed(failing{nil}, &calls, "kubernetes", "eu").Delete(t.Context(), Ref{}, "id")
	if !errors.Is(createErr, cause) || !errors.Is(getErr, ErrNotFound) || deleteErr != nil {
		t.Errorf("errors %v, %v, %v", createErr, getErr, deleteErr)
	}
	want := seen{"kubernetes eu create permanent", "kubernetes eu get not_found", "kubernetes eu delete ok"}
	if !slices.Equal(calls, want) {
		t.Errorf("recorded %v, want %v", calls, want)
	}
}
