package open

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

// takeTLS takes the options of TLS and returns its configuration: nil where the scheme asks for
// none. What is not given is left to the system.
func (a *address) takeTLS(secureScheme string) *tls.Config {
	ca, _ := a.take("ca")
	cert, _ := a.take("cert")
	key, _ := a.take("key")
	serverName, _ := a.take("server-name")
	if !a.secure() {
		if ca+cert+key+serverName != "" {
			a.fail("certificates need TLS: use %s://", secureScheme)
		}
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			a.fail("ca: %v", err)
		} else if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			a.fail("ca: %s holds no certificate in PEM form", ca)
		}
	}
	switch {
	case (cert == "") != (key == ""):
		a.fail("cert and key go together")
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			a.fail("cert and key: %v", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}
