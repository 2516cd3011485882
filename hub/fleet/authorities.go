package fleet

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// Authorities sign the certificate of a proxy. They are public.
type Authorities struct {
	// PEM holds their certificates and nothing else.
	PEM string
	// Pool verifies with them; it is not to be changed.
	Pool *x509.CertPool
}

// Equal says that both are the same, or that there are none.
func (a *Authorities) Equal(o *Authorities) bool {
	return a == o || a != nil && o != nil && a.PEM == o.PEM
}

// ParseAuthorities reads the certificates in a PEM file. Whatever else is there is
// left out, as it may be a key. The error quotes nothing.
func ParseAuthorities(data []byte) (*Authorities, error) {
	a := &Authorities{Pool: x509.NewCertPool()}
	n := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		n++
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d in it cannot be read", n)
		}
		a.Pool.AddCert(certificate)
		a.PEM += string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
	}
	if n == 0 {
		return nil, errors.New("there is no PEM certificate in it")
	}
	return a, nil
}
