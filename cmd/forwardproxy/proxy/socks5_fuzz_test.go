package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

// FuzzSOCKS5Handshake: whatever comes in, the answer is a target that can be dialled, a refusal
// or a connection that ends; and what follows the request is not touched.
func FuzzSOCKS5Handshake(f *testing.F) {
	const welcome = "\x05\x02\x00\x02\x01\x01u\x01p"
	for _, seed := range []string{
		"", "\x05", "\x05\x00", "\x05\xff", "GET / HTTP/1.1\r\n\r\n", "\x04\x01\x00\x50\x7f\x00\x00\x01\x00",
		hello + connectToName("example.com", 443) + "early",
		hello + connectToName("::1", 443),
		hello + connectToName("a]b:c", 1),
		"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
		"\x05\x01\x00\x05\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50",
		"\x05\x01\x00\x05\x01\x00\x09",
		welcome + connectToName("example.com", 443), "\x05\x01\x02\x01\x00\x00", "\x05\x01\x02\x02",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, sent []byte, guarded bool) {
		var proof *proof
		if guarded {
			proof = newProof(&Credentials{"u", "p"})
		}
		address, rest, err := shake(sent, proof)
		var no refusal
		switch {
		case err == nil:
			host, port, err := net.SplitHostPort(address)
			if err != nil || host == "" || !validPort(port) {
				t.Errorf("a target %q that cannot be dialled: %v", address, err)
			}
			used := sent[:len(sent)-rest]
			if again, _, err := shake(used, proof); err != nil || again != address {
				t.Errorf("%q without what follows it: %q, %v", address, again, err)
			}
			if _, _, err := shake(used[:len(used)-1], proof); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%q is taken without its last byte: %v", address, err)
			}
			if guarded && !bytes.Contains(sent, []byte("\x01\x01u\x01p")) {
				t.Error("let in without the credentials")
			}
		case address != "":
			t.Errorf("a target %q and an error: %v", address, err)
		case !errors.As(err, &no) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			t.Errorf("neither refused nor ended: %v", err)
		}
	})
}

// shake is a handshake with a client that sends this and closes; rest is how much of it was
// not read.
func shake(sent []byte, proof *proof) (address string, rest int, err error) {
	from := bytes.NewReader(sent)
	client := struct {
		io.Reader
		io.Writer
	}{from, io.Discard}
	if err := authenticate(client, proof); err != nil {
		return "", from.Len(), err
	}
	address, err = readRequest(client)
	return address, from.Len(), err
}
