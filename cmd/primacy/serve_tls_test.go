//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pemPair makes a certificate for 127.0.0.1 and localhost.
func pemPair(t *testing.T) (cert, key []byte) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})
}

// What is secret is in no output, page, figure, argument list or environment of anybody else.
func TestServeSecrets(t *testing.T) {
	w := newWorld(t)
	const canary = "CANARY-0123456789abcdef"
	file := filepath.Join(w.dir, "token")
	if err := os.WriteFile(file, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := selfSigned(t, w.dir)
	// the server has no users: it takes any
	store := strings.Replace(w.store, "etcd://", "etcd://nobody:"+canary+"@", 1)
	addr := freeAddr(t)
	a := w.with("PRIMACY_STORE="+store).serve("a", "-v", "--ttl", "2s", "--listen", addr, "--token-file", file,
		"--tls-cert", cert, "--tls-key", key)
	var texts []string
	see := func(method, path, body string, headers ...string) int {
		code, text := a.ask(method, path, body, headers...)
		texts = append(texts, text)
		return code
	}
	tls := w.curlTLS(cert, "https://"+addr)
	for token, want := range map[string]string{canary: "200", "wrong-0123456789abcdef": "401", "": "401"} {
		out := tls("/v1/elections", "-H", "Authorization: Bearer "+token)
		if !strings.HasPrefix(out, "HTTP/1.1 "+want) {
			t.Errorf("with token %q: %s", token, out)
		}
		texts = append(texts, out)
	}
	for _, path := range []string{"/metrics", "/v1/elections", "/livez", "/readyz", "/openapi.json",
		"/v1/elections/n", "/leader/n", "/nothing", "/v1/cron"} {
		see("GET", path, "")
	}
	see("POST", "/v1/locks/n", `{"id":5}`)
	see("POST", "/v1/locks/n", `{}`)
	see("DELETE", "/v1/locks/n", "", "Primacy-Token", "1", "Authorization", "Bearer "+canary)
	one := a.campaign("one")
	one.next("elected")
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", a.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	a.signal(syscall.SIGTERM)
	one.next("ended")
	a.ends(0)
	texts = append(texts, string(cmdline), a.out.String(), a.err.String())
	if len(texts) < 15 || !strings.Contains(a.err.String(), "elected") {
		t.Errorf("looked at %d texts; the log is %q", len(texts), clip(a.err.String()))
	}
	for _, text := range texts {
		if strings.Contains(text, "CANARY") {
			t.Errorf("a secret is in %q", clip(text))
		}
	}
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// curlTLS returns what asks a server with that certificate, and shows the head of the answer too.
func (w *world) curlTLS(cert, base string) func(path string, args ...string) string {
	return func(path string, args ...string) string {
		out, err := exec.Command("curl", append([]string{"-sSi", "--cacert", cert, base + path},
			args...)...).CombinedOutput()
		if err != nil {
			w.Errorf("curl %s: %v: %s", path, err, out)
		}
		return string(out)
	}
}

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T, dir string) (cert, key string) {
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM, keyPEM := pemPair(t)
	for path, b := range map[string][]byte{cert: certPEM, key: keyPEM} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
