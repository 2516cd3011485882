package proxy

import (
	"errors"
	"fmt"
	"strings"
)

// Protocol is what clients speak to the proxy.
type Protocol uint8

// The protocols.
const (
	HTTP   Protocol = iota // CONNECT and absolute-form requests
	HTTPS                  // the same inside TLS
	SOCKS5                 // RFC 1928, CONNECT only
)

// maxSOCKS5Length is what the length of a username or a password, one byte, can say.
const maxSOCKS5Length = 255

// ParseProtocol is the inverse of String. Empty means HTTP.
func ParseProtocol(name string) (Protocol, error) {
	switch name {
	case "", "http":
		return HTTP, nil
	case "https":
		return HTTPS, nil
	case "socks5":
		return SOCKS5, nil
	}
	return HTTP, errors.New("must be http, https or socks5")
}

func (p Protocol) String() string {
	switch p {
	case HTTP:
		return "http"
	case HTTPS:
		return "https"
	case SOCKS5:
		return "socks5"
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// Check reports what of the credentials no client can send by a protocol. None, nil, are
// fine with each.
func (c *Credentials) Check(p Protocol) error {
	switch {
	case c == nil:
		return nil
	case p != SOCKS5 && strings.Contains(c.Username, ":"):
		return fmt.Errorf("the username has a colon in it, which no client can send over %s: choose one without", p)
	case p == SOCKS5 && len(c.Username) > maxSOCKS5Length:
		return fmt.Errorf("the username has %d bytes: socks5 can send at most %d", len(c.Username), maxSOCKS5Length)
	case p == SOCKS5 && len(c.Password) > maxSOCKS5Length:
		return fmt.Errorf("the password has %d bytes: socks5 can send at most %d", len(c.Password), maxSOCKS5Length)
	}
	return nil
}

// check reports options that no proxy can be made of.
func (o *Options) check() error {
	switch {
	case o.Protocol > SOCKS5:
		return fmt.Errorf("unknown protocol %s", o.Protocol)
	case o.Protocol == HTTPS && (o.Certificate == nil || len(o.Certificate.Certificate) == 0):
		return errors.New("https needs a certificate")
	case o.Protocol != HTTPS && o.Certificate != nil:
		return fmt.Errorf("a certificate is given, and the protocol is %s: clients would not be encrypted to", o.Protocol)
	}
	return o.Credentials.Check(o.Protocol)
}
