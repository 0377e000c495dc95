package open

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

// tlsFiles names the files of a TLS connection; empty ones are left to the system.
type tlsFiles struct{ ca, cert, key, serverName string }

// takeTLS takes the options of TLS and returns its configuration: nil where the scheme asks for
// none.
func (a *address) takeTLS(secureScheme string) (*tls.Config, error) {
	var f tlsFiles
	f.ca, _ = a.take("ca")
	f.cert, _ = a.take("cert")
	f.key, _ = a.take("key")
	f.serverName, _ = a.take("server-name")
	if a.secure() {
		return f.config()
	}
	if f != (tlsFiles{}) {
		return nil, bad("certificates need TLS: use %s://", secureScheme)
	}
	return nil, nil
}

func (f tlsFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.serverName}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, bad("ca: %v", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, bad("ca: %s holds no certificate in PEM form", f.ca)
		}
	}
	if (f.cert == "") != (f.key == "") {
		return nil, bad("cert and key go together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, bad("cert and key: %v", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
