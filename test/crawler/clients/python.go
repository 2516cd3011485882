package clients

import (
	"context"
	"errors"
	"os/exec"
)

// findPython looks for requests. The python3 that comes first in the PATH is often one without
// the distribution's packages.
func findPython(ctx context.Context) (Client, error) {
	path, err := script("python.py")
	if err != nil {
		return nil, err
	}
	found := scripted{name: "python", script: path, programs: map[string]string{}, lacks: "an interpreter with PySocks, in Debian the package python3-socks"}
	var errs []error
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		program, err := exec.LookPath(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		protocols, err := probe(ctx, program, path)
		if err != nil {
			errs = append(errs, err)
		}
		for _, protocol := range protocols {
			if found.programs[protocol] == "" {
				found.programs[protocol] = program
			}
		}
	}
	if len(found.programs) == 0 {
		return nil, onOneLine(errs)
	}
	return found, nil
}

func onOneLine(errs []error) error { return errors.New(oneLine(errors.Join(errs...).Error())) }
