package health

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// greedy is how many proxies want all of the hub's memory at once.
	greedy = 8
	// mostHeld and mostAllocated are what the probe of each may hold and allocate.
	mostHeld, mostAllocated = 4 << 20, 3 << 19
	// mostTaken is what may be read of one that never ends, and what buffers the kernel has
	// on both sides, of which each may grow to some megabytes.
	mostTaken = 16 << 20
)

// inUse is how much of the heap is in use, allocated how much has ever been.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // finalizers have kept some
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func allocated() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.TotalAlloc)
}

// held probes greedy proxies at once and returns how much more is in use for each of the
// probes when behave has returned for all of them. Their connections stay open, and
// each probe must end as reason and words say when it is called off, if not before.
func held(t *testing.T, behave func(i int, conn net.Conn), probe func(ctx context.Context, endpoint string) result, reason, words string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done, over := make(chan struct{}, greedy), make(chan struct{})
	defer close(over)
	endpoints := make([]string, greedy)
	for i := range endpoints {
		endpoints[i] = peer(t, func(conn net.Conn) {
			behave(i, conn)
			done <- struct{}{}
			<-over
		})
	}
	before := inUse()
	results := make([]result, greedy)
	var probes sync.WaitGroup
	for i, at := range endpoints {
		probes.Go(func() { results[i] = probe(ctx, at) })
	}
	for range greedy {
		select {
		case <-done:
		case <-ctx.Done():
			t.Fatal("the proxies do not come so far in time")
		}
	}
	each := (inUse() - before) / greedy
	cancel()
	probes.Wait()
	for _, r := range results {
		if r.reason != reason || !strings.Contains(r.message, words) {
			t.Errorf("%+v, want %s: %s", r, reason, words)
		}
	}
	return each
}

// fat is a certificate of so many bytes of names, of which each takes fifty times its size
// when it is parsed.
func (a *authority) fat(t *testing.T, name string, size int) *tls.Certificate {
	t.Helper()
	const dns, uri = 0x82, 0x86
	names := append([]byte{dns, byte(len(name))}, name...)
	for len(names) < size {
		names = append(names, uri, 1, '/')
	}
	der, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: names})
	if err != nil {
		t.Fatal(err)
	}
	return a.issue(t, name, func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: der}}
	})
}

func TestCertificatesFullOfNamesDoNotFillTheHub(t *testing.T) {
	ca := newAuthority(t)
	grants := script(readHead, saysText("HTTP/1.1 200 OK\r\n\r\n"))
	for _, tc := range []struct {
		name, reason, words string
		size                int
	}{
		{"as many as are read", "Timeout", "no answer", maxHandshake - 2<<10},
		{"more than are read", "TLSFailed", "too large", 255 << 10},
	} {
		all := make([]*tls.Certificate, greedy) // equal ones would be kept once for all
		for i := range all {
			all[i] = ca.fat(t, "fat.test", tc.size)
		}
		shows := func(i int, conn net.Conn) { inTLS(all[i], script(readHead))(conn) }
		for who, each := range map[string]int64{
			"the proxy": held(t, shows, func(ctx context.Context, endpoint string) result {
				return local(nil).probe(ctx, via("https", endpoint, nil, verifying("fat.test", ca)), aim{url: "https://site.test/"})
			}, tc.reason, tc.words),
			"the site": held(t, func(i int, conn net.Conn) { grants(conn); shows(i, conn) }, func(ctx context.Context, endpoint string) result {
				return local(ca.Pool).probe(ctx, via("http", endpoint, nil), aim{url: "https://fat.test/"})
			}, tc.reason, strings.TrimPrefix(tc.words, "no ")),
		} {
			if each > mostHeld {
				t.Errorf("%s, of %s: each probe holds %d KiB", tc.name, who, each>>10)
			}
		}
	}
}

func TestHeadersOfShortLinesDoNotFillTheHub(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		size         int
	}{
		{"as many as are read", "ProbeSucceeded", maxHeader},
		{"more than are read", "ConnectRefused", 64 << 10},
	} {
		var text strings.Builder
		text.WriteString("HTTP/1.1 204 No Content\r\n")
		for i := 0x3000; text.Len() < tc.size-8; i++ { // each has a name of its own
			fmt.Fprintf(&text, "%X:\n", i)
		}
		text.WriteString("\r\n")
		answers := script(readHead, saysText(text.String()), hangs)
		at := peer(t, answers)
		before := allocated()
		for range greedy {
			if r := local(nil).probe(t.Context(), via("http", at, nil), aim{url: "http://site.test/"}); r.reason != tc.reason {
				t.Errorf("%s: %+v, want %s", tc.name, r, tc.reason)
			}
		}
		if each := (allocated() - before) / greedy; each > mostAllocated {
			t.Errorf("%s: each probe allocates %d KiB", tc.name, each>>10)
		}
	}
}

// padder is what a TLS 1.3 server writes to. It knows AES alone, which Go chooses
// wherever the processor has it.
type padder struct {
	net.Conn
	early bool         // it is what the server would send first encrypted that is padded
	keys  bytes.Buffer // what the server logs of its keys
	wrote *atomic.Int64
}

func (p *padder) Write(b []byte) (int, error) {
	const encrypted, handshake, extensions = 23, 22, 8
	if !p.early {
		return p.Conn.Write(b)
	}
	if b[0] == encrypted {
		return p.pads("SERVER_HANDSHAKE_TRAFFIC_SECRET", handshake, append([]byte{extensions, 0, 0xff, 0xff}, make([]byte, 0xffff)...))
	}
	n := min(5+(int(b[3])<<8|int(b[4])), len(b)) // one record in the clear
	if n, err := p.Conn.Write(b[:n]); err != nil || n == len(b) {
		return n, err
	}
	more, err := p.Write(b[n:])
	return n + more, err
}

// pads sends a message in records of a kind, of which each has one byte of it and else
// padding. They are the first that are protected with a secret.
func (p *padder) pads(secret string, kind byte, message []byte) (int, error) {
	var traffic []byte
	for s := bufio.NewScanner(bytes.NewReader(p.keys.Bytes())); s.Scan(); {
		if f := strings.Fields(s.Text()); f[0] == secret {
			traffic, _ = hex.DecodeString(f[2])
		}
	}
	block, err := aes.NewCipher(expandLabel(traffic, "key", 16))
	if err != nil {
		return 0, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return 0, err
	}
	iv := expandLabel(traffic, "iv", aead.NonceSize())
	plain := make([]byte, 1<<14+1)
	size := len(plain) + aead.Overhead()
	for i, b := range message {
		plain[0], plain[1] = b, kind
		nonce := bytes.Clone(iv)
		binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^uint64(i))
		head := []byte{23, 3, 3, byte(size >> 8), byte(size)}
		n, err := p.Conn.Write(aead.Seal(head, nonce, plain, head))
		p.wrote.Add(int64(n))
		if err != nil {
			return 0, err
		}
	}
	return len(message), nil
}

// expandLabel is HKDF-Expand-Label of RFC 8446, 7.1, without a context.
func expandLabel(secret []byte, label string, n int) []byte {
	info := append([]byte{byte(n >> 8), byte(n), byte(len("tls13 ") + len(label))}, "tls13 "+label...)
	key, err := hkdf.Expand(sha256.New, secret, string(append(info, 0)), n)
	if err != nil {
		panic(err)
	}
	return key
}

// TLS 1.3 has padding that never comes out of it, so that nothing which is counted behind
// it ever ends it.
func TestPaddingWithoutEndIsNotTaken(t *testing.T) {
	ca := newAuthority(t)
	certificate := ca.issue(t, "site.test")
	for _, tc := range []struct {
		name, reason string
		early        bool
	}{
		{"of the handshake", "TLSFailed", true},
		{"of an answer", "UnexpectedStatus", false},
	} {
		var wrote atomic.Int64
		ended := make(chan struct{})
		at := peer(t, script(readHead, saysText("HTTP/1.1 200 OK\r\n\r\n"), func(conn net.Conn) error {
			defer close(ended)
			p := &padder{Conn: conn, early: tc.early, wrote: &wrote}
			server := tls.Server(p, &tls.Config{Certificates: []tls.Certificate{*certificate}, KeyLogWriter: &p.keys, SessionTicketsDisabled: true})
			if err := server.Handshake(); err != nil {
				return err
			}
			if err := readHead(server); err != nil {
				return err
			}
			_, err := p.pads("SERVER_TRAFFIC_SECRET_0", 23, []byte("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 0xffff)))
			return err
		}))
		r := local(ca.Pool).probe(t.Context(), via("http", at, nil), aim{url: "https://site.test/"})
		<-ended
		if r.reason != tc.reason || !strings.Contains(r.message, "too large") {
			t.Errorf("%s: %+v, want %s", tc.name, r, tc.reason)
		}
		if n := wrote.Load(); n < maxHandshake || n > mostTaken {
			t.Errorf("%s: %d bytes were taken", tc.name, n)
		}
	}
}
