package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// filesPath is the only path that a volume may be mounted at; filesVariable tells the
	// process the directory that stands for it.
	filesPath     = "/etc/proxy-operator"
	filesVariable = "PROXY_FILES_DIR"
)

// filesRoot is the node's directory for the files of its pods, a directory for each by UID.
type filesRoot string

func newFilesRoot(dir, nodeName string) filesRoot {
	return filesRoot(filepath.Join(dir, nodeName+".files"))
}

// make makes it, empty: a node that was killed has left its pods' secrets behind.
func (r filesRoot) make() error {
	if err := os.RemoveAll(string(r)); err != nil {
		return err
	}
	return os.Mkdir(string(r), 0o700)
}

func (r filesRoot) of(uid types.UID) string { return filepath.Join(string(r), string(uid)) }

func (r filesRoot) remove(uid types.UID) { _ = os.RemoveAll(r.of(uid)) }

func (r filesRoot) removeAll() { _ = os.RemoveAll(string(r)) }

// unsupportedVolume says what the container asks to have mounted that this node would not do
// as it says; empty if nothing. A volume that is not mounted is nobody's business.
func unsupportedVolume(spec *corev1.PodSpec) string {
	c := &spec.Containers[0]
	if len(c.VolumeDevices) > 0 {
		return "volume devices"
	}
	for _, mount := range c.VolumeMounts {
		volume := volumeNamed(spec, mount.Name)
		switch {
		case volume == nil || volume.Secret == nil:
			return "volumes of another kind than secret"
		case filepath.Clean(mount.MountPath) != filesPath:
			return "volumes that are mounted elsewhere than at " + filesPath
		case mount.SubPath != "" || mount.SubPathExpr != "":
			return "subPath in volumeMounts"
		case mount.MountPropagation != nil:
			return "mountPropagation in volumeMounts"
		}
	}
	return ""
}

func volumeNamed(spec *corev1.PodSpec, name string) *corev1.Volume {
	i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &spec.Volumes[i]
}

// mount fills the pod's directory, once: what it holds stays until the pod is gone, and a later
// life needs no API server. An error names the Secret; the next attempt begins anew.
func (w *worker) mount(ctx context.Context) error {
	mounts := w.pod.Spec.Containers[0].VolumeMounts
	if w.mounted != "" || len(mounts) == 0 {
		return nil
	}
	// There is one: the API server wants mount paths to differ, and this node knows one path.
	volume := volumeNamed(&w.pod.Spec, mounts[0].Name)
	files, err := w.secretFiles(ctx, w.pod.Namespace, volume.Secret)
	if err == nil {
		err = writeFiles(w.files.of(w.pod.UID), files)
	}
	if err != nil {
		w.files.remove(w.pod.UID)
		return fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", volume.Name, err)
	}
	w.mounted = w.files.of(w.pod.UID)
	return nil
}

// file is one file of a volume.
type file struct {
	content []byte
	mode    os.FileMode
}

// secretFiles are the files of a volume, by their path in it.
func (n *node) secretFiles(ctx context.Context, namespace string, source *corev1.SecretVolumeSource) (map[string]file, error) {
	call, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	optional := source.Optional != nil && *source.Optional
	secret, err := n.core.Secrets(namespace).Get(call, source.SecretName, metav1.GetOptions{})
	switch {
	case optional && apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("secret %s/%s: %w", namespace, source.SecretName, err)
	}
	files := map[string]file{}
	if len(source.Items) == 0 {
		for key, content := range secret.Data {
			files[key] = file{content, fileMode(nil, source.DefaultMode)}
		}
	}
	for _, item := range source.Items {
		content, ok := secret.Data[item.Key]
		switch {
		case ok:
			files[item.Path] = file{content, fileMode(item.Mode, source.DefaultMode)}
		case !optional:
			return nil, fmt.Errorf("references non-existent secret key: %s of secret %s/%s", item.Key, namespace, source.SecretName)
		}
	}
	return files, nil
}

// fileMode is the first mode that the pod gives. Anybody may pass those by who is kept from the
// directory.
func fileMode(modes ...*int32) os.FileMode {
	for _, mode := range modes {
		if mode != nil {
			return os.FileMode(*mode) & os.ModePerm
		}
	}
	return 0o600
}

// writeFiles makes the directory with these files in it. Whatever their paths are, they lead
// nowhere else.
func writeFiles(dir string, files map[string]file) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := root.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := root.WriteFile(path, files[path].content, 0o600); err != nil {
			return err
		}
		// Not with WriteFile, whose mode the umask narrows.
		if err := root.Chmod(path, files[path].mode); err != nil {
			return err
		}
	}
	return nil
}
