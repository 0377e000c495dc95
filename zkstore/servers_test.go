package zkstore_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/internal/zktest"
	"github.com/primacy-go/primacy/zkstore"
)

func TestServersThatRefuseAreToldAtOnce(t *testing.T) {
	begun := time.Now()
	_, err := zkstore.Open(within(t, time.Minute), zkstore.Config{Servers: []string{"127.0.0.1:1", "127.0.0.1:2"}})
	if err == nil || driver.IsFinal(err) || !strings.Contains(err.Error(), "127.0.0.1:1,127.0.0.1:2") || time.Since(begun) > 30*time.Second {
		t.Errorf("Open = %v after %v, want an error at once that names the servers", err, time.Since(begun))
	}
}

// A length that begins with "HTTP" is more than a gigabyte, which go-zookeeper would make room for,
// again and again.
func TestAServerOfAnotherKindIsToldAtOnce(t *testing.T) {
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	go func() {
		for c, err := web.Accept(); err == nil; c, err = web.Accept() {
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.(*net.TCPConn).CloseWrite()
		}
	}()
	begun := time.Now()
	_, err = zkstore.Open(within(t, time.Minute), zkstore.Config{Servers: []string{web.Addr().String()}})
	if !errors.Is(err, driver.ErrRefused) || time.Since(begun) > 30*time.Second {
		t.Errorf("Open = %v after %v, want it refused at once", err, time.Since(begun))
	}
}

func TestAnOddAnswerIsNoCrash(t *testing.T) {
	if _, err := zkstore.Open(within(t, time.Second), zkstore.Config{}); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Open without servers = %v", err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert := zktest.NewCert(t)
	srv := zktest.Start(t, zktest.Options{NoSync: true, TLS: cert, Config: long})
	s := openWith(t, zkstore.Config{Servers: []string{srv.Addr()}, TLS: cert.Client})
	defer s.Close()
	l := grantAt(t, s, "a", 60*time.Second) // outlives a restart on a busy machine
	if p := enterAt(t, l, "job", "one"); !p.Held {
		t.Errorf("place = %+v", p)
	}
	srv.Restart()
	if err := l.Renew(within(t, time.Minute)); err != nil {
		t.Errorf("Renew after a restart: %v", err)
	}
}

func TestAPasswordKeepsOthersOutAndIsNeverShown(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := zktest.Start(t, zktest.Options{NoSync: true, Config: long})
	const secret = "pa55-w0rd"
	s := openWith(t, zkstore.Config{Servers: []string{srv.Addr()}, Username: "u", Password: secret})
	defer s.Close()
	l := grantAt(t, s, "a", 60*time.Second) // outlives a restart on a busy machine
	if p := enterAt(t, l, "job", "one"); !p.Held {
		t.Errorf("place = %+v", p)
	}
	if err := l.Renew(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	for _, c := range []zkstore.Config{{}, {Username: "u", Password: "other-" + secret}} {
		c.Servers = []string{srv.Addr()}
		_, err := zkstore.Open(within(t, time.Minute), c)
		if !errors.Is(err, driver.ErrRefused) || strings.Contains(err.Error(), secret) {
			t.Errorf("Open as %q = %v, want it refused without the password in the error", c.Username, err)
		}
	}
	srv.Restart() // go-zookeeper logs in again
	if err := l.Renew(within(t, time.Minute)); err != nil {
		t.Errorf("Renew after a restart: %v", err)
	}
	if f := s.Examine(within(t, time.Minute), "job"); len(f) != 4 || f[0].Level != driver.Fine || f[2].Level != driver.Fine {
		t.Errorf("findings = %+v", f)
	}
}
