package proxy

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// vault is an API server with Secrets, and a watch that may be behind it.
type vault struct {
	client.Reader
	secrets map[string]*corev1.Secret
	watched map[string]*corev1.Secret
	reads   int
}

// Get reads a Secret, or what the watch knows of it.
func (v *vault) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if meta, bare := o.(*metav1.PartialObjectMetadata); bare {
		s, there := v.watched[key.Name]
		if !there {
			return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
		}
		meta.UID, meta.ResourceVersion = s.UID, s.ResourceVersion
		return nil
	}
	v.reads++
	s, there := v.secrets[key.Name]
	if !there {
		return errors.New("gone")
	}
	s.DeepCopyInto(o.(*corev1.Secret))
	return nil
}

// set writes a Secret, which the watch shows if told.
func (v *vault) set(name, uid, version, content string, shown bool) {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: version}, Data: map[string][]byte{"k": []byte(content)}}
	v.secrets[name] = s
	if shown {
		v.watched[name] = s
	}
}

// referTo has a Proxy of the spoke refer to these Secrets.
func referTo(refs *references, spoke string, names ...string) {
	refs.observe(fleet.Change{New: &fleet.Proxy{Key: fleet.Key{Cluster: spoke, Namespace: "crawl", Name: "p"}, References: names}})
}

func TestASecretIsReadOnceForEachVersionOfIt(t *testing.T) {
	v := &vault{secrets: map[string]*corev1.Secret{}, watched: map[string]*corev1.Secret{}}
	refs := newReferences()
	s := newSecrets(refs)
	referTo(refs, "eu", "a", "unwatched", "large")
	read := s.of("eu", "cluster", v, v)
	for _, step := range []struct {
		name    string
		change  func()
		secret  string
		content string
		reads   int
	}{
		{"first", func() { v.set("a", "1", "1", "one", true) }, "a", "one", 1},
		{"again", func() {}, "a", "one", 0},
		{"edited", func() { v.set("a", "1", "2", "two", true) }, "a", "two", 1},
		{"made anew, of the same version", func() { v.set("a", "2", "2", "three", true) }, "a", "three", 1},
		{"edited, and the watch is behind: what it shows next is read", func() { v.set("a", "2", "3", "four", false) }, "a", "three", 0},
		{"the watch has caught up", func() { v.watched["a"] = v.secrets["a"] }, "a", "four", 1},
		{"the watch is behind the read", func() { v.watched["a"] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{UID: "2", ResourceVersion: "2"}} }, "a", "four", 1},
		{"one that is not watched is read every time", func() { v.set("unwatched", "3", "1", "x", false) }, "unwatched", "x", 1},
		{"every time", func() {}, "unwatched", "x", 1},
		{"so is a large one", func() { v.set("large", "4", "1", strings.Repeat("x", maxKept), true) }, "large", strings.Repeat("x", maxKept), 1},
		{"every time, too", func() {}, "large", strings.Repeat("x", maxKept), 1},
	} {
		v.reads = 0
		step.change()
		data, err := read(t.Context(), client.ObjectKey{Namespace: "crawl", Name: step.secret})
		if err != nil || string(data["k"]) != step.content || v.reads != step.reads {
			t.Errorf("%s: %.20q, %d reads, want %.20q and %d (%v)", step.name, data["k"], v.reads, step.content, step.reads, err)
		}
	}
	v.set("a", "2", "9", "of the first", true)
	_, _ = read(t.Context(), client.ObjectKey{Namespace: "crawl", Name: "a"})
	v.set("a", "2", "9", "of the second", true)
	if data, _ := s.of("eu", "another cluster", v, v)(t.Context(), client.ObjectKey{Namespace: "crawl", Name: "a"}); string(data["k"]) != "of the second" {
		t.Errorf("another cluster's Secret: %q", data["k"])
	}
}

func TestSecretsAreKeptOnlyForProxiesThatReferToThem(t *testing.T) {
	v := &vault{secrets: map[string]*corev1.Secret{}, watched: map[string]*corev1.Secret{}}
	refs := newReferences()
	s := newSecrets(refs)
	v.set("a", "1", "1", "x", true)
	read := func(spoke string) {
		t.Helper()
		if _, err := s.of(spoke, "cluster", v, v)(t.Context(), client.ObjectKey{Namespace: "crawl", Name: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	read("eu") // by a pass over a Proxy that has gone meanwhile
	if len(s.kept) != 0 {
		t.Error("one that nobody refers to is kept")
	}
	referTo(refs, "eu", "a")
	referTo(refs, "us", "a")
	read("eu")
	read("us")
	edited := fleet.Change{Old: &fleet.Proxy{Key: fleet.Key{Cluster: "eu", Namespace: "crawl", Name: "p"}, References: []string{"a"}}}
	again := edited
	again.New = edited.Old
	refs.observe(again)
	if len(s.kept) != 2 {
		t.Errorf("%d are kept, want 2", len(s.kept))
	}
	refs.observe(edited)
	if len(s.kept) != 1 || s.bytes["eu"] != 0 || s.bytes["us"] == 0 {
		t.Errorf("kept %d, bytes %v", len(s.kept), s.bytes)
	}
	for i := range maxKeptOfSpoke/maxKept + 10 { // what one spoke has takes all of nobody's memory
		s.put(shared{"us", "crawl", strings.Repeat("n", i)}, version{}, map[string][]byte{"": make([]byte, maxKept)})
	}
	if s.bytes["us"] > maxKeptOfSpoke {
		t.Errorf("%d bytes are kept of one spoke", s.bytes["us"])
	}
}
