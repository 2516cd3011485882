package controlplane

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestCacheKeyChangesWithEveryPin(t *testing.T) {
	const module = "require (\n\tgo.etcd.io/etcd/server/v3 v3.6.8 // indirect\n\tk8s.io/kubernetes v1.36.3 // indirect\n)\n"
	read := func(content string) versions {
		path := filepath.Join(t.TempDir(), "go.mod")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := readVersions(path)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	one, two := read(module), read(module+"// golang.org/x/net moved\n")
	if want := "kubernetes-v1.36.3-etcd-v3.6.8-" + runtime.GOOS + "-" + runtime.GOARCH + "-"; !strings.HasPrefix(one.key(), want) {
		t.Errorf("key is %s, want it to begin with %s", one.key(), want)
	}
	if one.key() == two.key() {
		t.Error("two modules share a key")
	}
}

func TestBuildIsNotBentByTheUsersGoSettings(t *testing.T) {
	env := buildEnv([]string{
		"HOME=/home/me", "GOPROXY=direct", "GOFLAGS=-mod=vendor -trimpath -p=1 --tags=x -modcacherw",
		"GOOS=plan9", "GOARCH=arm", "GOWORK=/tmp/go.work", "CGO_ENABLED=1",
	})
	for _, want := range []string{
		"HOME=/home/me", "GOPROXY=direct", "GOFLAGS=-p=1 -modcacherw -mod=readonly",
		"GOOS=" + runtime.GOOS, "GOARCH=" + runtime.GOARCH, "GOWORK=off", "CGO_ENABLED=0",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is missing in %q", want, env)
		}
	}
	if len(env) != 7 {
		t.Errorf("more than that is set: %q", env)
	}
}

func TestAssetsOfTheUserComeFirst(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(assetsEnv, dir)
	if _, err := Assets(t.Context(), nil); err == nil || !strings.Contains(err.Error(), assetsEnv) || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("an empty directory: %v, want an error that names %s and etcd", err, assetsEnv)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Assets(t.Context(), nil); err != nil || got != dir {
		t.Errorf("Assets: %s, %v", got, err)
	}
	if got, err := Kubectl(t.Context(), nil); err != nil || got != filepath.Join(dir, "kubectl") {
		t.Errorf("Kubectl: %s, %v", got, err)
	}
}

func TestModuleIsFoundFromAnywhere(t *testing.T) {
	inside, err := moduleDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	outside, err := moduleDir()
	if err != nil || outside != inside {
		t.Errorf("found %s (%v) elsewhere, %s here", outside, err, inside)
	}
}
