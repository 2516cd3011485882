package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
)

// Credentials are what clients must prove themselves with.
type Credentials struct{ Username, Password string }

// ReadCredentials reads the files username and password of a directory, as they
// are, to the byte. Without both of them, or without the directory, there are none:
// nil. What cannot be meant is an error, because a proxy that is open by mistake
// serves everybody. Whether a protocol can carry them is for Check to say.
func ReadCredentials(dir string) (*Credentials, error) {
	username, haveUsername, err := readFile(filepath.Join(dir, "username"))
	if err != nil {
		return nil, err
	}
	password, havePassword, err := readFile(filepath.Join(dir, "password"))
	if err != nil {
		return nil, err
	}
	switch {
	case !haveUsername && !havePassword:
		return nil, nil
	case !havePassword:
		return nil, fmt.Errorf("%s has a file username and no file password: give both, or neither", dir)
	case !haveUsername:
		return nil, fmt.Errorf("%s has a file password and no file username: give both, or neither", dir)
	case username == "" || password == "":
		return nil, fmt.Errorf("username or password in %s is empty: neither may be", dir)
	}
	return &Credentials{username, password}, nil
}

func readFile(name string) (content string, exists bool, err error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return string(data), err == nil, err
}

// proof knows right credentials from wrong ones. Both are compared as hashes, and both
// always, so that the time it takes tells neither them nor their length.
type proof struct{ username, password [sha256.Size]byte }

// newProof returns nil for nil.
func newProof(c *Credentials) *proof {
	if c == nil {
		return nil
	}
	return &proof{sha256.Sum256([]byte(c.Username)), sha256.Sum256([]byte(c.Password))}
}

func (p *proof) isRight(username, password string) bool {
	givenUsername, givenPassword := sha256.Sum256([]byte(username)), sha256.Sum256([]byte(password))
	return subtle.ConstantTimeCompare(givenUsername[:], p.username[:])&subtle.ConstantTimeCompare(givenPassword[:], p.password[:]) == 1
}

// guard lets those requests pass that know the credentials.
func guard(c *Credentials, next http.Handler) http.Handler {
	if c == nil {
		return next
	}
	proof := newProof(c)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, ok := given(r)
		if right := proof.isRight(client.Username, client.Password); !ok || !right {
			w.Header().Set("Proxy-Authenticate", `Basic realm="proxy", charset="UTF-8"`)
			http.Error(w, "This proxy wants to know who you are: send the header Proxy-Authorization: Basic with its username and password.", http.StatusProxyAuthRequired)
			return
		}
		// Nobody further on needs them, least of all the site.
		r.Header.Del("Proxy-Authorization")
		next.ServeHTTP(w, r)
	})
}

// given is what a request proves itself with, if it does so once and well-formed.
func given(r *http.Request) (Credentials, bool) {
	values := r.Header.Values("Proxy-Authorization")
	if len(values) != 1 {
		return Credentials{}, false
	}
	// net/http reads the same syntax from the header for origins alone.
	asOrigin := http.Request{Header: http.Header{"Authorization": values}}
	username, password, ok := asOrigin.BasicAuth()
	return Credentials{username, password}, ok
}
