package k8sstore_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/k8sstore"
)

// saying leads to a server that says what f returns, or a Status with that code.
func saying(t *testing.T, f func(r *http.Request) (code int, body string)) k8sstore.Config {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		code, body := f(r)
		if code >= 300 && body == "" {
			body = fmt.Sprintf(`{"kind":"Status","status":"Failure","message":"no","code":%d}`, code)
		}
		w.Header().Set("Content-Type", "application/json")
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "0")
		}
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(srv.Close)
	return k8sstore.Config{URL: srv.URL, Namespace: "n"}
}

func newStore(t *testing.T, c k8sstore.Config) *k8sstore.Store {
	t.Helper()
	s, err := k8sstore.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// What a list does not say is not that there is nothing: a lease that lives would be taken for one
// that has ended.
func TestAListThatIsRefusedIsNoEmptyOne(t *testing.T) {
	t.Parallel()
	r := newStore(t, saying(t, func(*http.Request) (int, string) { return http.StatusGone, "" })).Register()
	for _, known := range []string{"", "u|7|||"} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if value, version, err := r.Watch(ctx, "lease.x", known); err == nil && version != known {
			t.Errorf("of %q it tells %q under %q", known, value, version)
		}
	}
}

// A server, or a proxy before it, that asks to be asked again at once is not asked all the time.
func TestAskAgainAtOnceIsNotAskAllTheTime(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	r := newStore(t, saying(t, func(*http.Request) (int, string) {
		calls.Add(1)
		return http.StatusTooManyRequests, ""
	})).Register()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, _, err := r.Get(ctx, "lease.x"); err == nil {
		t.Error("it is read")
	}
	if n := calls.Load(); n > 30 {
		t.Errorf("it was asked %d times in a second", n)
	}
}

// A certificate that has ended is refused on a connection that was made with it, and a renewal each
// second keeps that connection: the next try must make another one.
func TestACertificateThatRotates(t *testing.T) {
	t.Parallel()
	var pairs []tls.Certificate
	for range 2 {
		srv := k8stest.StartFake(t)
		pair, err := tls.X509KeyPair(srv.Cert, srv.Key)
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, pair)
	}
	var now atomic.Int64
	lease := `{"kind":"Lease","metadata":{"name":"primacy.line-x","uid":"u","resourceVersion":"1"}}`
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if string(r.TLS.PeerCertificates[0].Raw) != string(pairs[now.Load()].Certificate[0]) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"kind":"Status","message":"Unauthorized","code":401}`)
			return
		}
		fmt.Fprint(w, lease)
	}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	r := newStore(t, k8sstore.Config{URL: srv.URL, Namespace: "n", TLS: &tls.Config{RootCAs: pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &pairs[now.Load()], nil
		}}}).Register()
	for i := range pairs {
		now.Store(int64(i))
		if _, _, err := r.Get(minute(t), "line.x"); err != nil {
			t.Errorf("with certificate %d: %v", i, err)
		}
	}
}
