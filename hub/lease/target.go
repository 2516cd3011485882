package lease

import (
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// maxHost is the longest name that DNS can carry.
const maxHost = 253

// NormalizeTarget makes of a target, which may be a whole URL, what targets
// are compared by: the lower-case host name, without scheme, user, port, path
// and trailing dot. Empty stays empty. A name in another script is the one that
// browsers make of it for DNS, so that both spellings are one target.
// The error is an *InvalidError.
func NormalizeTarget(target string) (string, error) {
	s := strings.TrimSpace(target)
	if s == "" {
		return "", nil
	}
	if _, rest, found := strings.Cut(s, "://"); found && !strings.ContainsAny(s[:len(s)-len(rest)-3], "/?#") {
		s = rest
	} else {
		s = strings.TrimPrefix(s, "//")
	}
	if end := strings.IndexAny(s, `/?#\`); end >= 0 {
		s = s[:end]
	}
	s = s[strings.LastIndexByte(s, '@')+1:]
	host, ok := dropPort(s)
	if !ok {
		return "", badTarget()
	}
	if isAddress(host) {
		if addr, err := netip.ParseAddr(host); err == nil {
			return addr.WithZone("").String(), nil
		}
	}
	host = strings.TrimSuffix(host, ".")
	if !utf8.ValidString(host) {
		return "", badTarget()
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r >= utf8.RuneSelf }) {
		if ascii, err := idna.Lookup.ToASCII(host); err == nil {
			host = ascii
		}
	}
	host = strings.ToLower(host)
	if !isHost(host) {
		return "", badTarget()
	}
	return host, nil
}

func badTarget() error {
	return &InvalidError{Field: "target", Message: "must be a host name or a URL: write for example example.com"}
}

// dropPort takes host, host:port, [v6], [v6]:port or a bare v6 address.
func dropPort(s string) (host string, ok bool) {
	port := ""
	switch {
	case strings.HasPrefix(s, "["):
		host, port, ok = strings.Cut(s[1:], "]")
		if !ok || (port != "" && port[0] != ':') || !strings.Contains(host, ":") {
			return "", false
		}
		port = strings.TrimPrefix(port, ":")
	case strings.Count(s, ":") == 1:
		host, port, _ = strings.Cut(s, ":")
	default:
		host = s
	}
	return host, strings.Trim(port, "0123456789") == ""
}

// isAddress says that a host may be one and is worth parsing: no name ends in a digit that
// DNS would resolve, and few do at all.
func isAddress(host string) bool {
	return strings.Contains(host, ":") || host != "" && host[len(host)-1] >= '0' && host[len(host)-1] <= '9'
}

// isHost is generous (underscores, any script): the name is compared, never dialled.
func isHost(host string) bool {
	if len(host) > maxHost {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" {
			return false
		}
	}
	return !strings.ContainsFunc(host, func(r rune) bool {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-', r == '_', r == '.':
			return false // as nearly all are
		}
		return !unicode.In(r, unicode.L, unicode.M, unicode.N)
	})
}
