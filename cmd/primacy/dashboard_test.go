//go:build linux

package main

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/page"
)

// The page is served where the API is. On the socket the kernel says who asks; elsewhere it is a
// certificate, or a login.
func TestServeThePage(t *testing.T) {
	w := newWorld(t)
	w.stands("web-1", "billing")
	cert, key := selfSigned(t, w.dir)
	addr := freeAddr(t)
	s := w.serve("side", "--listen", addr, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert, "--ui",
		"--ui-actions")
	w.eventually("the page shows billing", func() bool {
		_, text := s.ask("GET", "/ui/", "")
		return strings.Contains(text, "web-1")
	})
	if code, text := s.ask("GET", "/ui/", "", "Accept", "application/json"); code != 200 ||
		!strings.Contains(text, `"id":"web-1"`) {
		t.Errorf("%d: %s", code, text)
	}
	token := decode[stateJSON](w, w.start("leader", "billing", "-o", "json").done()).Leader.Token
	form := "/ui/act?verb=resign&name=billing&token=" + token.String()
	if code, text := s.ask("GET", form, ""); code != 200 || !strings.Contains(text, "Asked for by <strong>root@") &&
		os.Getuid() == 0 {
		t.Errorf("%d: %s", code, text)
	}
	if out := w.curlTLS(cert, "https://"+addr)("/ui/store", "--cert", cert, "--key", key); !strings.HasPrefix(out,
		"HTTP/1.1 200") {
		t.Errorf("with a certificate: %s", out)
	}
	out, err := exec.Command("curl", "-sS", "--cacert", cert, "https://"+addr+"/ui/").CombinedOutput()
	if err == nil {
		t.Errorf("who has no certificate sees %s", out)
	}
	s.signal(syscall.SIGTERM).ends(0)
}

// The token to look at the page is worth nothing at the API, which ends terms by other requests
// than the page's.
func TestWhoMayLookMayNotAct(t *testing.T) {
	w := newWorld(t)
	w.stands("web-1", "billing")
	tokens := map[string]string{}
	for _, of := range []string{"api", "page"} {
		tokens[of] = strings.Repeat("0123456789"+of, 2)
		if err := os.WriteFile(filepath.Join(w.dir, of), []byte(tokens[of]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := freeAddr(t)
	s := w.serve("side", "--listen", addr, "--token-file", filepath.Join(w.dir, "api"), "--ui", "--ui-token-file",
		filepath.Join(w.dir, "page"))
	for _, c := range []struct {
		as, method, path string
		status           int
	}{
		{"page", "GET", "/ui/", 200},
		{"api", "GET", "/ui/", 401},
		{"page", "POST", "/v1/elections/billing/resign", 401},
		{"page", "POST", "/v1/elections/billing/campaign", 401},
		{"page", "DELETE", "/v1/locks/nightly", 401},
		{"page", "POST", "/v1/fence/disk", 401},
		{"page", "GET", "/v1/elections", 401},
		{"page", "GET", "/metrics", 401},
		{"api", "POST", "/v1/elections/billing/resign", 202},
	} {
		r, err := http.NewRequest(c.method, "http://"+addr+c.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+tokens[c.as])
		r.Header.Set("Accept", "application/json")
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("with the token of the %s, %s %s: %d %s, want %d", c.as, c.method, c.path, resp.StatusCode, text,
				c.status)
		}
	}
	s.signal(syscall.SIGTERM).ends(0)
}

// Who comes with a certificate has a name even if the certificate has none: else he could give any.
func TestACertificateAlwaysNamesWhoAsks(t *testing.T) {
	at, err := url.Parse("spiffe://fleet/ops")
	if err != nil {
		t.Fatal(err)
	}
	hash := fmt.Sprintf("certificate sha256:%x", sha256.Sum256([]byte("der")))
	for want, c := range map[string]*x509.Certificate{
		"ann":                    {Subject: pkix.Name{CommonName: "ann"}, DNSNames: []string{"other"}},
		"ops.internal":           {DNSNames: []string{"ops.internal"}},
		"ann@example.org":        {Subject: pkix.Name{CommonName: " "}, EmailAddresses: []string{"ann@example.org"}},
		"spiffe://fleet/ops":     {URIs: []*url.URL{at}},
		"10.0.0.1":               {IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}},
		"a·b":                    {Subject: pkix.Name{CommonName: "a\nb"}},
		strings.Repeat("é", 127): {Subject: pkix.Name{CommonName: strings.Repeat("é", 200)}},
		hash:                     {Raw: []byte("der")},
	} {
		r := httptest.NewRequest("POST", "/ui/act", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c},
			VerifiedChains: [][]*x509.Certificate{{c}}}
		if got := asker(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Tabs are connections too: as many as there may be take no room from clients.
func TestTabsTakeNoConnectionsFromClients(t *testing.T) {
	conns := func(ui bool) int {
		s := &server{app: &app{}, serveOptions: serveOptions{clients: 1, streams: 1, ui: uiServing{on: ui}}}
		if _, err := s.options(); err != nil {
			t.Fatal(err)
		}
		return s.secured.Conns
	}
	if more := conns(true) - conns(false); more < pageStreams {
		t.Errorf("a page with %d tabs has room for %d more connections", pageStreams, more)
	}
}

// No page is served where nobody asked for one.
func TestServeNoPage(t *testing.T) {
	w := newWorld(t)
	s := w.serve("side")
	if code, _ := s.ask("GET", "/ui/", ""); code != 404 {
		t.Errorf("/ui/ answers %d", code)
	}
}

// The address that the dashboard prints is all that is needed, and nothing is seen without it.
func TestTheDashboard(t *testing.T) {
	w := newWorld(t)
	w.stands("web-1", "billing")
	p := w.start("dashboard")
	p.until(func() bool { return strings.Contains(p.out.String(), "\n") }, "prints its address")
	at, token, _ := strings.Cut(strings.TrimSpace(p.out.String()), "login#")
	if !strings.HasPrefix(at, "http://127.0.0.1:") || !strings.HasSuffix(at, page.Path) || len(token) < 20 {
		t.Fatalf("the address is %s", p.out.String())
	}
	ask := func(token string) (int, string) {
		r, err := http.NewRequest("GET", at, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	w.eventually("the page shows billing", func() bool {
		_, text := ask(token)
		return strings.Contains(text,
			"web-1")
	})
	if code, text := ask("x"); code != 401 || strings.Contains(text, "web-1") {
		t.Errorf("without the token: %d %s", code, text)
	}
	// a stream that is open does not hold up the end
	r, err := http.NewRequest("GET", at+"events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line := bufio.NewScanner(resp.Body); !line.Scan() || !strings.HasPrefix(line.Text(), "retry:") {
		t.Errorf("the stream begins with %q", line.Text())
	}
	p.signal(syscall.SIGINT).ends(0)
	w.start("dashboard", "--listen", "0.0.0.0:0").ends(exitUsage).inOneLine().complains("use primacy serve --ui")
}

// What a reader types: each line of docs/page.md is one that this program knows.
func TestThePagesPageHolds(t *testing.T) {
	for _, line := range typedLines(t, filepath.Join("..", "..", "docs", "page.md")) {
		if line != "primacy dashboard" {
			t.Errorf("docs/page.md has %q, which no test types", line)
		}
	}
}
