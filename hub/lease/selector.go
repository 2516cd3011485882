package lease

import (
	"fmt"
	"slices"
	"strings"
)

// maxPairs is how many attributes a Proxy can have.
const maxPairs = 32

// isKey and isValue say that an attribute's key or value is as the contract has it.
// Byte by byte, since every request with a selector comes through here.
func isKey(s string) bool {
	return len(s) >= 1 && len(s) <= 63 && isPlain(s[0]) && isPlain(s[len(s)-1]) && !strings.ContainsFunc(s, func(r rune) bool {
		return r > 127 || !isPlain(byte(r)) && !strings.ContainsRune("._-", r)
	})
}

func isPlain(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func isValue(s string) bool {
	return len(s) >= 1 && len(s) <= 63 && !strings.ContainsFunc(s, func(r rune) bool {
		return r > 127 || !isPlain(byte(r)) && (r < 'A' || r > 'Z') && !strings.ContainsRune("._-", r)
	})
}

// CheckAttribute refuses what no Proxy can have. Without it a client that
// writes Region for region would wait for ever for a match. field is what the
// client calls the place; the error is an *InvalidError.
func CheckAttribute(field, key, value string) error {
	if !isKey(key) {
		return &InvalidError{Field: field, Message: fmt.Sprintf(
			"has a key %.80q that no Proxy can have: write 1 to 63 of lower-case letters, digits, '.', '_' and '-', with a letter or digit at each end", key)}
	}
	if !isValue(value) {
		return &InvalidError{Field: field, Message: fmt.Sprintf(
			"has a value %.80q of %s that no Proxy can have: write 1 to 63 of letters, digits, '.', '_' and '-'", value, key)}
	}
	return nil
}

// sortedKeys are the selector's, so that the same selector is the same query, and the
// same mistake reads the same. The error is an *InvalidError.
func sortedKeys(selector map[string]string) ([]string, error) {
	if len(selector) > maxPairs {
		return nil, &InvalidError{Field: "selector", Message: fmt.Sprintf("has %d pairs, and no Proxy has more than %d attributes: write fewer", len(selector), maxPairs)}
	}
	keys := make([]string, 0, len(selector))
	for key := range selector {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if err := CheckAttribute("selector", key, selector[key]); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// Selects says that attributes hold every pair of the selector.
func Selects(selector, attributes map[string]string) bool {
	for key, want := range selector {
		if have, ok := attributes[key]; !ok || have != want {
			return false
		}
	}
	return true
}
