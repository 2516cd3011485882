package health

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"

	"github.com/proxyfleet/proxy-operator/api/v1alpha1"
	"github.com/proxyfleet/proxy-operator/hub/fleet"
)

// SOCKS5 as clients speak it: RFC 1928, with usernames and passwords as in RFC
// 1929. Written here, since the libraries tell what went wrong in text alone.
const (
	socksVersion     = 5
	socksAuthVersion = 1

	socksNoAuth       = 0
	socksPassword     = 2
	socksNoneAccepted = 0xff

	socksConnect = 1

	socksIPv4   = 1
	socksDomain = 3
	socksIPv6   = 4

	// socksText is how many bytes there is room for in a name, username or password.
	socksText = 255
)

// socksError is why there is no tunnel, as a condition reason and in our own words:
// nothing that came from the proxy is in it but a reply's number.
type socksError struct{ reason, message string }

func (e *socksError) Error() string { return e.message }

var (
	// errNotSOCKS is an answer that is none of the protocol's.
	errNotSOCKS = &socksError{v1alpha1.ReasonConnectRefused, "what answers is no SOCKS5 proxy"}
	// errSOCKSAuth is a proxy that asks for other credentials than it was shown, or
	// for some.
	errSOCKSAuth = &socksError{v1alpha1.ReasonProxyAuthRequired, "the SOCKS5 proxy asks for a username and a password"}
	// errSOCKSRefused is a proxy that takes none of the methods offered.
	errSOCKSRefused = &socksError{v1alpha1.ReasonProxyAuthRequired, "the SOCKS5 proxy takes neither a username and a password nor none"}
	// errSOCKSLength are credentials that no SOCKS5 client can send.
	errSOCKSLength = &socksError{v1alpha1.ReasonProxyAuthRequired, "SOCKS5 has no room for a username or a password of more than 255 bytes"}
	// errSOCKSTarget is a site that no SOCKS5 client can ask for.
	errSOCKSTarget = &socksError{v1alpha1.ReasonUnexpectedStatus, "the probe's URL is not usable: SOCKS5 has no room for its host or port"}
)

// socksReplies are the names that RFC 1928 has for replies.
var socksReplies = map[byte]string{
	1: "general SOCKS server failure", 2: "connection not allowed by ruleset", 3: "Network unreachable", 4: "Host unreachable",
	5: "Connection refused", 6: "TTL expired", 7: "Command not supported", 8: "Address type not supported",
}

// socksReply is a request that a proxy did not grant.
func socksReply(code byte) *socksError {
	message := fmt.Sprintf("the SOCKS5 proxy answered %d", code)
	if name, known := socksReplies[code]; known {
		message += ", " + name
	}
	return &socksError{v1alpha1.ReasonConnectRefused, message}
}

// socksHandshake has the proxy at the other end of conn grant a request; see
// socksRequest. After an error conn is of no more use.
func socksHandshake(conn io.ReadWriter, request []byte, proof *fleet.Credentials) error {
	methods := []byte{socksNoAuth}
	if proof != nil {
		// Beside none, as clients offer it: a proxy is told the password if it asks.
		methods = append(methods, socksPassword)
	}
	if _, err := conn.Write(append([]byte{socksVersion, byte(len(methods))}, methods...)); err != nil {
		return err
	}
	var answer [2]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	switch method := answer[1]; {
	case answer[0] != socksVersion:
		return errNotSOCKS
	case method == socksNoneAccepted && proof == nil:
		return errSOCKSAuth
	case method == socksNoneAccepted:
		return errSOCKSRefused
	case method == socksPassword && proof != nil:
		if err := socksLogIn(conn, proof); err != nil {
			return err
		}
	case method != socksNoAuth:
		return errNotSOCKS
	}
	if _, err := conn.Write(request); err != nil {
		return err
	}
	return socksAnswer(conn)
}

func socksLogIn(conn io.ReadWriter, proof *fleet.Credentials) error {
	if len(proof.Username) > socksText || len(proof.Password) > socksText {
		return errSOCKSLength
	}
	message := append([]byte{socksAuthVersion, byte(len(proof.Username))}, proof.Username...)
	message = append(append(message, byte(len(proof.Password))), proof.Password...)
	if _, err := conn.Write(message); err != nil {
		return err
	}
	// The first byte of the answer is a version that some proxies take for SOCKS's
	// and others for the login's, wherefore clients do not look at it.
	var answer [2]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if answer[1] != 0 {
		return errSOCKSAuth
	}
	return nil
}

// socksRequest asks for a connection to target, host:port.
func socksRequest(target string) ([]byte, error) {
	host, portText, err := net.SplitHostPort(target)
	if err != nil {
		return nil, errSOCKSTarget
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, errSOCKSTarget
	}
	request := []byte{socksVersion, socksConnect, 0}
	if a, err := netip.ParseAddr(host); err != nil {
		if len(host) > socksText {
			return nil, errSOCKSTarget
		}
		request = append(append(request, socksDomain, byte(len(host))), host...)
	} else if a = a.Unmap(); a.Is4() {
		request = append(append(request, socksIPv4), a.AsSlice()...)
	} else {
		request = append(append(request, socksIPv6), a.AsSlice()...)
	}
	return append(request, byte(port>>8), byte(port)), nil
}

// socksAnswer reads the answer to a request, and with it the address from which
// the proxy connects, which is of no interest. It reads nothing that comes after it.
func socksAnswer(conn io.Reader) error {
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	if head[0] != socksVersion {
		return errNotSOCKS
	}
	if head[1] != 0 {
		return socksReply(head[1])
	}
	var address int64
	switch head[3] {
	case socksIPv4:
		address = 4
	case socksIPv6:
		address = 16
	case socksDomain:
		var length [1]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return err
		}
		address = int64(length[0])
	default:
		return errNotSOCKS
	}
	_, err := io.CopyN(io.Discard, conn, address+2)
	return err
}
