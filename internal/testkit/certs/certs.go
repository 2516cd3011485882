// Package certs makes certificate authorities, and certificates of theirs, for
// tests and the demo. An authority's key lives in memory alone.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// validity is that of all that is made here.
const validity = 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	// PEM is its own certificate.
	PEM []byte

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Pair is a certificate and its key, as PEM.
type Pair struct{ Certificate, Key []byte }

// TLS is the pair as a server uses it.
func (p Pair) TLS() (tls.Certificate, error) { return tls.X509KeyPair(p.Certificate, p.Key) }

// NewAuthority makes one of this name, which signs itself.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make an authority's key: %w", err)
	}
	template := around(time.Now(), name)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign an authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read an authority: %w", err)
	}
	return &Authority{block("CERTIFICATE", der), certificate, key}, nil
}

// Issue signs a certificate for these hosts, DNS names and IP addresses.
func (a *Authority) Issue(hosts ...string) (Pair, error) { return a.IssueAt(time.Now(), hosts...) }

// IssueAt is Issue as of another time: one of two years ago has expired.
func (a *Authority) IssueAt(now time.Time, hosts ...string) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key: %w", err)
	}
	template := around(now, "of "+a.certificate.Subject.CommonName)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign a certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("write a key: %w", err)
	}
	return Pair{block("CERTIFICATE", der), block("PRIVATE KEY", secret)}, nil
}

// around is a certificate that begins a little before now, for clients whose clock
// is behind.
func around(now time.Time, name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	begin := now.Add(-time.Hour)
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: begin, NotAfter: begin.Add(validity)}
}

func block(kind string, of []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: of})
}
