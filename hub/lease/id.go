package lease

import (
	"crypto/rand"
	"encoding/base32"
)

// id is a lease's, which nobody can guess. Its text is 26 letters and digits. Whoever
// cuts one off or writes it in lower case has another one.
type id [16]byte

var idText = base32.StdEncoding.WithPadding(base32.NoPadding)

func newID() (i id) {
	_, _ = rand.Read(i[:]) // it never fails
	return i
}

func (i id) String() string { return idText.EncodeToString(i[:]) }

func parseID(text string) (i id, ok bool) {
	if len(text) != idText.EncodedLen(len(i)) {
		return i, false
	}
	if _, err := idText.Decode(i[:], []byte(text)); err != nil {
		return i, false
	}
	return i, i.String() == text // the last letter has two bits more than it needs
}
