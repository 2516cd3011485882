package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// inherited are the variables that a client gets: what it takes to run. Not those that name
// proxies and CAs, or change what a client does, and no secret of whoever runs us.
var inherited = []string{"PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "SYSTEMROOT"}

// run runs a program to its end. What it writes to stderr is the second result.
func run(ctx context.Context, input []byte, program string, args ...string) (stdout, stderr []byte, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{}
	for _, name := range inherited {
		if value, set := os.LookupEnv(name); set {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errs
	cmd.WaitDelay = time.Second // for what a killed wrapper leaves behind
	err = cmd.Run()
	if ended := context.Cause(ctx); ended != nil && err != nil {
		err = ended
	}
	return out.Bytes(), errs.Bytes(), err
}

// scripted is a client that is a script beside this file; see python.py for what it reads and prints.
type scripted struct {
	name, script string
	// programs are the interpreters, by the protocol that they can use.
	programs map[string]string
	// lacks is what an interpreter without a protocol needs.
	lacks string
}

func (s scripted) Name() string { return s.name }

func (s scripted) Supports(protocol string) (ok bool, why string) {
	if s.programs[protocol] == "" {
		return false, "it needs for " + protocol + ": " + s.lacks
	}
	return true, ""
}

func (s scripted) fetch(ctx context.Context, j job) (status int, body []byte, err error) {
	document, err := j.lease.document()
	if err != nil {
		return 0, nil, err
	}
	args := []string{s.script, j.page}
	if len(j.siteCA) > 0 {
		file := filepath.Join(j.dir, "site-ca.pem")
		if err := os.WriteFile(file, j.siteCA, 0o600); err != nil {
			return 0, nil, err
		}
		args = append(args, file)
	}
	stdout, _, err := run(ctx, document, s.programs[j.lease.Protocol], args...)
	var answer struct {
		Status      int    `json:"status"`
		Body        []byte `json:"body"`
		Error       string `json:"error"`
		Credentials bool   `json:"credentials"`
	}
	switch {
	case err != nil:
		// The script answers whatever happens. What is on stderr then is a stack with values in it.
		return 0, nil, &Error{Client: s.name, Said: j.lease.quote("no answer: " + err.Error())}
	case json.Unmarshal(stdout, &answer) != nil:
		return 0, nil, &Error{Client: s.name, Said: "its answer is no JSON"}
	case answer.Error != "":
		return 0, nil, &Error{Client: s.name, Refused: answer.Credentials, Said: j.lease.quote(answer.Error)}
	}
	return answer.Status, answer.Body, nil
}

// probe asks a script what it can do with an interpreter. There is no lease yet whose secrets
// it could tell.
func probe(ctx context.Context, program, script string) (protocols []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	stdout, stderr, err := run(ctx, nil, program, script, "probe")
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, reason(stderr))
	}
	var answer struct {
		Protocols []string `json:"protocols"`
	}
	if err := json.Unmarshal(stdout, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	return answer.Protocols, nil
}

// reason is the line of a stack that names the error: python has it last, node somewhere.
func reason(stderr []byte) string {
	found := ""
	for line := range strings.Lines(string(stderr)) {
		if strings.Contains(line, "Error") {
			found = line
		}
	}
	return oneLine(found)
}

// script is the path of a file beside this one. The scripts are not embedded, because node looks
// for packages in the folders above a script.
func script(name string) (string, error) {
	_, file, _, ok := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(file), name)
	if !ok || !filepath.IsAbs(path) {
		return "", errors.New("its script is not found in a program that is built with -trimpath")
	}
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	return path, nil
}
