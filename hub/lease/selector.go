package lease

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
)

var (
	attributeKey   = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
	attributeValue = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)
)

// CheckAttribute refuses what no Proxy can have. Without it a client that
// writes Region for region would wait for ever for a match. field is what the
// client calls the place; the error is an *InvalidError.
func CheckAttribute(field, key, value string) error {
	if !attributeKey.MatchString(key) {
		return &InvalidError{Field: field, Message: fmt.Sprintf(
			"has a key %.80q that no Proxy can have: write 1 to 63 of lower-case letters, digits, '.', '_' and '-', with a letter or digit at each end", key)}
	}
	if !attributeValue.MatchString(value) {
		return &InvalidError{Field: field, Message: fmt.Sprintf(
			"has a value %.80q of %s that no Proxy can have: write 1 to 63 of letters, digits, '.', '_' and '-'", value, key)}
	}
	return nil
}

// checkSelector goes by sorted keys, so that the same mistake reads the same.
func checkSelector(selector map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if err := CheckAttribute("selector", key, selector[key]); err != nil {
			return err
		}
	}
	return nil
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
