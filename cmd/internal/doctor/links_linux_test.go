package doctor

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/open"
)

func TestWhereNoNameFitsAllServersTheLinksAreLeftOut(t *testing.T) {
	r := &run{name: "n", o: Torture{URL: "etcds://127.0.0.1:1,127.0.0.2:1"}}
	begun := time.Now()
	if _, _, err := r.reach(t.Context()); !errors.Is(err, errNames) {
		t.Errorf("got %v, want %v", err, errNames)
	}
	if took := time.Since(begun); took > 40*time.Second {
		t.Errorf("it took %v", took)
	}
	for url, want := range map[string]error{"embedded:/x": errNoNetwork, "etcd://a,b": nil,
		"etcds://a,b?server-name=c": nil,
		"postgres:///x?host=/run":   errNoNetwork, "postgres://a/b": nil,
		"postgres://a/b?sslmode=verify-full": errNames, "redis://a,b?cluster=true": errElsewhere, "zk://a,b,c": nil} {
		r.o.URL = url
		if u, conf, err := r.reach(t.Context()); !errors.Is(err, want) || conf.Name != "n" || err == nil &&
			u.String() != url {
			t.Errorf("%s: %q, %+v, %v", url, u.String(), conf, err)
		}
	}
}

// A member behind an address that its certificate does not have, as each has behind a proxy of
// ours.
func TestANameThatTheCertificateHasIsFound(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{TLS: etcdtest.NewCert(t, time.Now().Add(time.Hour))})
	conn, err := tls.Dial("tcp", srv.Addr(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	cert := conn.ConnectionState().PeerCertificates[0].Raw
	conn.Close()
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &run{o: Torture{URL: "etcds://" + elsewhere(t, srv.Addr()) + "?ca=" + ca}}
	u, _, err := r.reach(t.Context())
	if err != nil || !strings.Contains(u.query, "server-name=") {
		t.Fatalf("%q, %v, want a name", u.query, err)
	}
	l, err := proxy.Listen(u.addr(0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	st, err := open.Open(t.Context(), through(u, []*proxy.Proxy{l}).String())
	if err != nil {
		t.Fatalf("behind a proxy, under %q: %v", u.query, err)
	}
	defer st.Close()
	if got := names(storeURL{hosts: []string{"b:1", "a:2", "a:3"}}); !slices.Equal(got,
		[]string{"a", "b", "localhost", "127.0.0.1"}) {
		t.Errorf("names to try: %q", got)
	}
}

// elsewhere passes connections to 127.0.0.2 on to addr.
func elsewhere(t *testing.T, addr string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", addr)
			if err != nil {
				c.Close()
				continue
			}
			go func() { _, _ = io.Copy(s, c); s.Close() }()
			go func() { _, _ = io.Copy(c, s); c.Close() }()
		}
	}()
	return ln.Addr().String()
}
