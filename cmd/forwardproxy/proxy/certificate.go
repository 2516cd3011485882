package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

const (
	certificateFile = "tls.crt"
	keyFile         = "tls.key"
)

// ReadCertificate reads the files tls.crt and tls.key of a directory: in PEM, a certificate
// with those that lead to its CA after it, and its private key. An error says which file to
// put right, and nothing of what is in them.
func ReadCertificate(dir string) (*tls.Certificate, error) {
	certificate, haveCertificate, err := readFile(filepath.Join(dir, certificateFile))
	if err != nil {
		return nil, err
	}
	key, haveKey, err := readFile(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, err
	}
	missing := ""
	switch {
	case !haveCertificate && !haveKey:
		missing = "neither is there"
	case !haveCertificate:
		missing = certificateFile + " is missing"
	case !haveKey:
		missing = keyFile + " is missing"
	default:
		pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
		if err != nil {
			return nil, fmt.Errorf("%s and %s in %s: %w", certificateFile, keyFile, dir, whatIsWrong([]byte(certificate), []byte(key)))
		}
		return &pair, nil
	}
	return nil, fmt.Errorf("https needs a certificate and its private key, in PEM, as the files %s and %s in %s: %s",
		certificateFile, keyFile, dir, missing)
}

// whatIsWrong finds out again why a pair was refused: the errors of crypto/tls may quote
// the files.
func whatIsWrong(certificate, key []byte) error {
	chain, keys := blocks(certificate, "CERTIFICATE"), blocks(key, "PRIVATE KEY")
	if len(chain) == 0 {
		return fmt.Errorf("%s has no certificate in PEM: put one there", certificateFile)
	}
	if _, err := x509.ParseCertificate(chain[0]); err != nil {
		return fmt.Errorf("%s has a certificate that cannot be read: put another there", certificateFile)
	}
	if len(keys) == 0 {
		return fmt.Errorf("%s has no private key in PEM: put the certificate's there", keyFile)
	}
	_, errPKCS8 := x509.ParsePKCS8PrivateKey(keys[0])
	_, errPKCS1 := x509.ParsePKCS1PrivateKey(keys[0])
	_, errEC := x509.ParseECPrivateKey(keys[0])
	if errPKCS8 != nil && errPKCS1 != nil && errEC != nil {
		return fmt.Errorf("%s has a private key that cannot be read: put the certificate's there, not encrypted", keyFile)
	}
	return errors.New("the private key is not the certificate's: put both of one pair there")
}

// blocks are those PEM blocks whose type ends so.
func blocks(text []byte, suffix string) [][]byte {
	var found [][]byte
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return found
		}
		if strings.HasSuffix(block.Type, suffix) {
			found = append(found, block.Bytes)
		}
	}
}
