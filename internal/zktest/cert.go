package zktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// NewCert makes a certificate for servers on loopback.
func NewCert(tb testing.TB) *Cert {
	tb.Helper()
	must := func(err error) {
		if err != nil {
			tb.Fatalf("zktest: certificate: %v", err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "zktest"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	must(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	dir := tb.TempDir()
	c := &Cert{certFile: filepath.Join(dir, "cert.pem"), keyStore: filepath.Join(dir, "key.pem")}
	must(os.WriteFile(c.certFile, cert, 0o600))
	must(os.WriteFile(c.keyStore, append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), cert...), 0o600))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	c.Client = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return c
}
