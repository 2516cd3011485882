package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// state is the directory of one demo:
//
//	env         for scripts
//	kubeconfig  for people: admin contexts for every cluster
//	run/        data, credentials, the hub's command
//	logs/       of every process; kept after a failure
//	lock        held while the demo runs
//	bin/        the binaries, not the demo's to touch
type state struct {
	dir  string
	lock *os.File
}

var (
	// transient is what a demo makes and removes.
	transient = []string{"env", "kubeconfig", "run", "logs"}
	permanent = []string{"bin", "lock", ".gitignore"}
)

// openState takes a directory for this demo: it makes it, locks it and clears what a killed
// demo has left there. A directory that holds anything else is refused, for it will be made
// private and cleared.
func openState(dir string) (*state, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if !slices.Contains(transient, entry.Name()) && !slices.Contains(permanent, entry.Name()) {
			return nil, fmt.Errorf("%s is no directory of a demo, it holds %s: give --dir one that is empty or does not exist", dir, entry.Name())
		}
	}
	// It may have been made by somebody with another umask, for the binaries.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	s := &state{dir: dir}
	if err := s.takeLock(); err != nil {
		return nil, err
	}
	if err := s.clear(transient...); err != nil {
		_ = s.lock.Close()
		return nil, fmt.Errorf("clear what an earlier demo has left: %w", err)
	}
	for _, sub := range []string{"run", "logs"} {
		if err := os.Mkdir(s.path(sub), 0o700); err != nil {
			_ = s.lock.Close()
			return nil, err
		}
	}
	return s, nil
}

func (s *state) takeLock() error {
	lock, err := os.OpenFile(s.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("another demo runs in %s: end it, or give this one another --dir", s.dir)
		}
		return fmt.Errorf("lock %s: %w", s.dir, err)
	}
	// A demo that ends removes the file while it holds it; then this lock is on no file.
	held, err := lock.Stat()
	if there, statErr := os.Stat(s.path("lock")); err != nil || statErr != nil || !os.SameFile(held, there) {
		_ = lock.Close()
		return fmt.Errorf("another demo in %s is just ending: try again", s.dir)
	}
	s.lock = lock
	return nil
}

func (s *state) path(elements ...string) string {
	return filepath.Join(append([]string{s.dir}, elements...)...)
}

func (s *state) log(name string) string { return s.path("logs", name+".log") }

// write writes a file that only its owner may read, complete or not at all.
func (s *state) write(content []byte, mode fs.FileMode, elements ...string) (string, error) {
	path := s.path(elements...)
	unfinished := path + ".unfinished"
	if err := os.WriteFile(unfinished, content, mode); err != nil {
		return "", err
	}
	return path, os.Rename(unfinished, path)
}

func (s *state) clear(names ...string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, os.RemoveAll(s.path(name)))
	}
	return errors.Join(errs...)
}

// close removes what the demo made, the logs only if they are not to be kept, and the directory
// if nothing else is in it.
func (s *state) close(keepLogs bool) error {
	remove := slices.Clone(transient)
	if keepLogs {
		remove = slices.DeleteFunc(remove, func(name string) bool { return name == "logs" })
	}
	err := s.clear(remove...)
	// Removed while it is held: who opens it from now on makes a new one.
	err = errors.Join(err, os.Remove(s.path("lock")), s.lock.Close())
	if removeErr := os.Remove(s.dir); removeErr != nil && !isNotEmpty(removeErr) {
		err = errors.Join(err, removeErr)
	}
	return err
}

func isNotEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)
}

// variable is a line of the file env.
type variable struct{ name, value string }

// formatEnv writes the file env. Values are as they are wherever a shell takes them so, which
// leaves them right for readers that split at the first "=" too; only one with a blank or
// another character that means something to a shell is quoted.
func formatEnv(variables []variable) []byte {
	var text strings.Builder
	for _, v := range variables {
		fmt.Fprintf(&text, "%s=%s\n", v.name, quote(v.value))
	}
	return []byte(text.String())
}

func quote(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,="
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// variableName makes "PID_" and a process's name into a name of a variable.
func variableName(process string) string {
	return "PID_" + strings.ToUpper(strings.ReplaceAll(process, "-", "_"))
}
