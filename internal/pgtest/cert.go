package pgtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// certify makes a certificate for loopback, signed by itself, and lets in only who uses TLS.
func (s *Server) certify() {
	s.tb.Helper()
	cert, key, err := pair()
	if err != nil {
		s.tb.Fatalf("pgtest: %v", err)
	}
	s.write(filepath.Join(s.dir, "key.pem"), key)
	s.write(s.CertFile(), cert)
	hba := filepath.Join(s.data(), "pg_hba.conf")
	b, err := os.ReadFile(hba)
	if err == nil {
		err = os.Chmod(s.CertFile(), 0o644)
	}
	if err != nil {
		s.tb.Fatalf("pgtest: %v", err)
	}
	s.write(hba, []byte(strings.ReplaceAll(string(b), "\nhost ", "\nhostssl ")))
}

func pair() (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "postgres"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), nil
}
