package provider

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestEveryErrorHasItsClassHoweverDeepItIsWrapped(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"no error", nil, "ok"},
		{"not found", ErrNotFound, "not_found"},
		{"exists", ErrExists, "exists"},
		{"quota", ErrQuotaExceeded, "quota"},
		{"permanent", ErrPermanent, "permanent"},
		{"transient", ErrTransient, "transient"},
		{"lasting", ErrLasting, "transient"},
		{"no class at all", errors.New("anything else"), "transient"},
		{"deadline", context.DeadlineExceeded, "transient"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Class(tc.err); got != tc.want {
				t.Errorf("class %q, want %q", got, tc.want)
			}
			if tc.err == nil {
				return
			}
			for _, wrapped := range []error{
				fmt.Errorf("create pod: %w", fmt.Errorf("%w: %w", tc.err, errors.New("the server said no"))),
				errors.Join(errors.New("the server said no"), tc.err),
			} {
				if got := Class(wrapped); got != tc.want {
					t.Errorf("class %q, want %q for %q", got, tc.want, wrapped)
				}
			}
		})
	}
}

func TestWhatLastsIsTransientAndNotEverythingTransientLasts(t *testing.T) {
	if wrapped := fmt.Errorf("list pods: %w", ErrLasting); !errors.Is(wrapped, ErrTransient) || !errors.Is(wrapped, ErrLasting) {
		t.Errorf("%v is not both", wrapped)
	}
	if errors.Is(ErrTransient, ErrLasting) {
		t.Error("a hiccup would be tried again slowly")
	}
}
