package clients

import (
	"context"
	"fmt"
	"os/exec"
)

func findNode(ctx context.Context) (Client, error) {
	path, err := script("node.mjs")
	if err != nil {
		return nil, err
	}
	program, err := exec.LookPath("node")
	if err != nil {
		return nil, err
	}
	protocols, err := probe(ctx, program, path)
	if err != nil {
		return nil, fmt.Errorf("%w (its packages come with: cd test/crawler && npm ci --ignore-scripts)", err)
	}
	found := scripted{name: "node", script: path, programs: map[string]string{}}
	for _, protocol := range protocols {
		found.programs[protocol] = program
	}
	return found, nil
}
