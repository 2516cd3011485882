package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
)

// assetsEnv is envtest's own variable: who has set it has binaries and wants them used.
const assetsEnv = "KUBEBUILDER_ASSETS"

// binary is one program that the nested module can build.
type binary struct {
	name    string // of the file, as envtest expects it
	pkg     string
	lasting string // how long a build takes on two cores with nothing cached, for people
}

var (
	etcd      = binary{"etcd", "go.etcd.io/etcd/server/v3", "about one minute"}
	apiserver = binary{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "about six minutes"}
	kubectl   = binary{"kubectl", "k8s.io/kubernetes/cmd/kubectl", "about half a minute"}
)

// Assets returns a directory that holds etcd and kube-apiserver, and builds them first where
// that has not been done on this machine. Lines of progress go to progress (nil: none).
func Assets(ctx context.Context, progress io.Writer) (string, error) {
	if dir := os.Getenv(assetsEnv); dir != "" {
		for _, b := range []binary{etcd, apiserver} {
			if _, err := os.Stat(filepath.Join(dir, b.name)); err != nil {
				return "", fmt.Errorf("%s is set, but: %w", assetsEnv, err)
			}
		}
		return dir, nil
	}
	return ensure(ctx, progress, etcd, apiserver)
}

// Kubectl returns the path of a kubectl of the same version: the one in KUBEBUILDER_ASSETS if
// there is one, else one that is built like Assets.
func Kubectl(ctx context.Context, progress io.Writer) (string, error) {
	if dir := os.Getenv(assetsEnv); dir != "" {
		path := filepath.Join(dir, kubectl.name)
		_, err := os.Stat(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	dir, err := ensure(ctx, progress, kubectl)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, kubectl.name), nil
}

// ensure builds what is missing in the cache. A lock file makes the test packages that go test
// runs side by side, and other clones on this machine, wait instead of building too; each
// binary is renamed into place when it is whole, so that an interrupted build costs only the
// binary it was at.
func ensure(ctx context.Context, progress io.Writer, wanted ...binary) (string, error) {
	if progress == nil {
		progress = io.Discard
	}
	module, err := moduleDir()
	if err != nil {
		return "", err
	}
	pinned, err := readVersions(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	dir := filepath.Join(cache, "proxy-operator", "controlplane", pinned.key())
	if len(missing(dir, wanted)) == 0 {
		return dir, nil // without the lock: what is in place is whole
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache of control plane binaries: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(dir, "build.lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	for _, b := range missing(dir, wanted) {
		if err := build(ctx, progress, module, pinned, b, dir); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func missing(dir string, wanted []binary) []binary {
	var absent []binary
	for _, b := range wanted {
		if _, err := os.Stat(filepath.Join(dir, b.name)); err != nil {
			absent = append(absent, b)
		}
	}
	return absent
}

// versions is what decides which binaries come out.
type versions struct {
	kubernetes, etcd, digest string
}

// key names the cache directory: versions for people, the digest for every other pin.
func (v versions) key() string {
	return fmt.Sprintf("kubernetes-%s-etcd-%s-%s-%s-%s", v.kubernetes, v.etcd, runtime.GOOS, runtime.GOARCH, v.digest)
}

func readVersions(goMod string) (versions, error) {
	content, err := os.ReadFile(goMod)
	if err != nil {
		return versions{}, fmt.Errorf("read the module of control plane binaries: %w", err)
	}
	find := func(module string) string {
		match := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(content)
		if match == nil {
			return ""
		}
		return string(match[1])
	}
	sum := sha256.Sum256(content)
	v := versions{
		kubernetes: find("k8s.io/kubernetes"),
		etcd:       find("go.etcd.io/etcd/server/v3"),
		digest:     hex.EncodeToString(sum[:6]),
	}
	if v.kubernetes == "" || v.etcd == "" {
		return versions{}, fmt.Errorf("%s does not pin both kubernetes and etcd", goMod)
	}
	return v, nil
}

// moduleDir finds the nested module. It cannot be embedded (go:embed stops at a module's
// border), so it is looked for from the working directory upwards, which fits tests and
// whatever runs in a clone, and then where this file was compiled, which fits a program that
// was started elsewhere.
func moduleDir() (string, error) {
	const below = "test/controlplane/binaries"
	var candidates []string
	if wd, err := os.Getwd(); err == nil {
		for dir := wd; ; dir = filepath.Dir(dir) {
			candidates = append(candidates, filepath.Join(dir, below))
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	if _, file, _, ok := runtime.Caller(0); ok {
		candidates = append(candidates, filepath.Join(filepath.Dir(file), "binaries"))
	}
	for _, dir := range candidates {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no %s above the working directory: run this in a clone of the repository, or set %s", below, assetsEnv)
}
