package proxy

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Of RFC 1928.
const (
	socks5Version = 5

	noProof       = 0x00
	passwordProof = 0x02
	noneOfThese   = 0xFF

	commandConnect = 1

	addressIPv4   = 1
	addressDomain = 3
	addressIPv6   = 4
)

// Of RFC 1929.
const (
	passwordVersion = 1
	passwordRight   = 0
	passwordWrong   = 1
)

// reply is what a request is answered with.
type reply byte

const (
	succeeded reply = iota
	generalFailure
	notAllowed
	networkUnreachable
	hostUnreachable
	connectionRefused
	ttlExpired
	commandNotSupported
	addressTypeNotSupported
)

var replies = [...]string{
	"succeeded", "general failure", "not allowed", "network unreachable", "host unreachable",
	"connection refused", "TTL expired", "command not supported", "address type not supported",
}

func (r reply) String() string { return replies[r] }

// message is the reply with the address that the target sees, which is nil with a failure.
func (r reply) message(bound net.Addr) []byte {
	address := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	if tcp, ok := bound.(*net.TCPAddr); ok {
		address = tcp.AddrPort()
	}
	ip, kind := address.Addr().Unmap(), byte(addressIPv4)
	if ip.Is6() {
		kind = addressIPv6
	}
	return slices.Concat([]byte{socks5Version, byte(r), 0, kind}, ip.AsSlice(),
		[]byte{byte(address.Port() >> 8), byte(address.Port())})
}

// refusal is the last that a client is sent.
type refusal []byte

func (refusal) Error() string { return "refused" }

func refuse(r reply) refusal { return r.message(nil) }

// authenticate agrees on how the client proves itself, and lets it. Nil proof: it need not.
func authenticate(client io.ReadWriter, proof *proof) error {
	var head [2]byte
	if _, err := io.ReadFull(client, head[:]); err != nil {
		return err
	}
	if looksLikeHTTP(head[:]) {
		return refusal(notHTTP("This is a SOCKS5 proxy: write socks5h:// in its URL."))
	}
	if head[0] != socks5Version {
		return refusal(nil) // there is no answer that another protocol's client would know
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(client, methods); err != nil {
		return err
	}
	method := byte(noProof)
	if proof != nil {
		method = passwordProof
	}
	if !bytes.Contains(methods, []byte{method}) {
		return refusal{socks5Version, noneOfThese}
	}
	if _, err := client.Write([]byte{socks5Version, method}); err != nil {
		return err
	}
	if proof == nil {
		return nil
	}
	return login(client, proof)
}

func login(client io.ReadWriter, proof *proof) error {
	var version [1]byte
	if _, err := io.ReadFull(client, version[:]); err != nil {
		return err
	}
	if version[0] != passwordVersion {
		return refusal{passwordVersion, passwordWrong}
	}
	username, err := readCounted(client)
	if err != nil {
		return err
	}
	password, err := readCounted(client)
	if err != nil {
		return err
	}
	if !proof.isRight(username, password) {
		return refusal{passwordVersion, passwordWrong}
	}
	_, err = client.Write([]byte{passwordVersion, passwordRight})
	return err
}

// readRequest returns the target of a CONNECT as host:port; the error is a refusal if the
// request can be answered.
func readRequest(client io.Reader) (address string, err error) {
	var head [4]byte // version, command, reserved, address type
	if _, err := io.ReadFull(client, head[:]); err != nil {
		return "", err
	}
	if head[0] != socks5Version {
		return "", refuse(generalFailure)
	}
	host, err := readHost(client, head[3])
	if err != nil {
		return "", err
	}
	var port [2]byte
	if _, err := io.ReadFull(client, port[:]); err != nil {
		return "", err
	}
	n := int(port[0])<<8 | int(port[1])
	switch {
	case head[1] != commandConnect:
		return "", refuse(commandNotSupported)
	case host == "" || n == 0: // an empty host would be this one
		return "", refuse(generalFailure)
	case !possible(host):
		return "", refuse(hostUnreachable)
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}

func readHost(client io.Reader, kind byte) (string, error) {
	var ip [16]byte
	switch kind {
	case addressIPv4:
		_, err := io.ReadFull(client, ip[:4])
		return netip.AddrFrom4([4]byte(ip[:4])).String(), err
	case addressIPv6:
		_, err := io.ReadFull(client, ip[:])
		return netip.AddrFrom16(ip).String(), err
	case addressDomain:
		return readCounted(client)
	}
	return "", refuse(addressTypeNotSupported)
}

// possible says whether a host could be meant by these bytes. Some clients write addresses
// as names; other colons and brackets would be taken for the syntax of host:port. All else
// is for the resolver to know.
func possible(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || !strings.ContainsAny(host, ":[]")
}

// readCounted reads a string that its length, one byte, precedes.
func readCounted(client io.Reader) (string, error) {
	var length [1]byte
	if _, err := io.ReadFull(client, length[:]); err != nil {
		return "", err
	}
	text := make([]byte, length[0])
	if _, err := io.ReadFull(client, text); err != nil {
		return "", err
	}
	return string(text), nil
}
