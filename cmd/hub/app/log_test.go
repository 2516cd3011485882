package app

import (
	"bytes"
	"context"
	"flag"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func TestLibrariesDoNotWriteBodiesAtAnyVerbosity(t *testing.T) {
	for _, flags := range [][]string{nil, {"--zap-log-level=debug"}, {"--zap-log-level=4"}, {"--zap-log-level=10"}, {"--zap-devel"}, {"--zap-devel", "--zap-log-level=10"}} {
		var out bytes.Buffer
		o := zap.Options{DestWriter: &out}
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		o.BindFlags(fs)
		if err := fs.Parse(flags); err != nil {
			t.Fatal(err)
		}
		log := newLogger(&o)
		// As client-go does it.
		inner := klog.FromContext(logr.NewContext(context.Background(), log))
		for v := range 12 {
			inner.V(v).Info("said", "at", v)
		}
		said := strings.Count(out.String(), "said")
		want := map[string]int{"": 1, "--zap-log-level=debug": 2, "--zap-devel": 2}
		expected, known := want[strings.Join(flags, " ")]
		if !known {
			expected = maxVerbosity + 1
		}
		if said != expected {
			t.Errorf("%v: %d of 12 verbosities are written, want %d", flags, said, expected)
		}
	}
}
