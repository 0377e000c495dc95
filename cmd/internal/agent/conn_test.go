package agent

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

// relay is a proxy that shows itself nowhere in what it forwards, as nginx and HAProxy do unless
// they are told to. End ends it with all its connections, as the kernel does for a process that is
// killed.
func relay(t *testing.T, network, to string) (addr string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	all := []io.Closer{l}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial(network, to)
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			all = append(all, in, out)
			mu.Unlock()
			go io.Copy(in, out)
			go io.Copy(out, in)
		}
	}()
	end = sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			c.Close()
		}
	})
	t.Cleanup(end)
	return l.Addr().String(), end
}

// post is a POST as a raw client writes it.
func post(path, body string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
		itoa(len(body)) + "\r\n\r\n" + body
}

// The end of a connection is that of its client only where the client says that nothing is in
// between. Of any other it may be that of a proxy: whoever was told that it leads behind it acts
// on.
func TestAnEndThatMayBeAProxysIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, body, won string }{
		{"/v1/elections/n/campaign", `{"id":"one"}`, "elected"},
		{"/v1/locks/n", `{"id":"one","bound":true}`, "acquired"},
	} {
		for _, network := range []string{"unix", "tcp"} {
			t.Run(network+c.path, func(t *testing.T) {
				t.Parallel()
				s := newAgent(t, Options{Session: primacy.Options{TTL: 4 * time.Second}})
				at := s.path
				if network == "tcp" {
					at = hasty(t, s, 0)
				}
				addr, end := relay(t, network, at)
				one := s.request(post(c.path, c.body), "tcp", addr)
				won := one.until(c.won)
				end()
				var told int64
				fmt.Sscan(won.DeadlineBootNS, &told)
				other := strings.NewReplacer("one", "two", "}", `,"wait_ms":60000}`).Replace(c.body)
				two := s.post(c.path, other)
				two.until(c.won)
				if early := time.Duration(told) - boottime.Now(); told == 0 || early > 0 {
					t.Errorf("two has it %v before the time that one was told is over", early)
				}
				two.conn.Close()
			})
		}
	}
}

// A proxy that shows itself is believed more than a client who does not know of it.
func TestAProxyThatShowsItselfIsBelieved(t *testing.T) {
	c := &conn{}
	for _, header := range []string{"Via", "Forwarded", "X-Forwarded-For", "X-Real-IP"} {
		r, _ := http.NewRequest("POST", "http://x/", nil)
		r = r.WithContext(withConn(r.Context(), c))
		if direct(r, true) != c || direct(r, false) != nil {
			t.Fatal("the client's word does not count")
		}
		if r.Header.Set(header, "x"); direct(r, true) != nil {
			t.Errorf("%s is passed over", header)
		}
	}
}

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A client that closes its connection over TLS says so under its key.
func TestAConnectionThatIsClosedOverTLSResignsAtOnce(t *testing.T) {
	t.Parallel()
	s := newAgent(t, Options{Session: primacy.Options{TTL: time.Minute}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, _ := Secured{TLS: &tls.Config{Certificates: []tls.Certificate{certificate(t)}}}.Serve(l, s.Agent,
		log.New(io.Discard, "", 0))
	t.Cleanup(func() { _ = srv.Close() })
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, post("/v1/elections/n/campaign", `{"direct":true}`)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for text := ""; !strings.Contains(text, `"elected"`); {
		if text, err = in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	c.Close()
	eventually(t, "the client that closed its connection has stopped", func() bool { return s.leader("n") == "" })
	if took := time.Since(began); took > 20*time.Second { // the ttl is a minute
		t.Errorf("after %v", took)
	}
}

// From another machine only close_notify is the client's own word: a FIN and a reset can come from
// anything in between.
func TestFromAfarOnlyAGoodbyeUnderTLSIsAnEnd(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conf := &tls.Config{Certificates: []tls.Certificate{certificate(t)}}
	for _, c := range []struct {
		name string
		end  func(raw *net.TCPConn, client *tls.Conn)
		want bool
	}{
		{"close_notify", func(_ *net.TCPConn, client *tls.Conn) { client.Close() }, true},
		{"FIN", func(raw *net.TCPConn, _ *tls.Conn) { raw.Close() }, false},
		{"reset", func(raw *net.TCPConn, _ *tls.Conn) { _ = raw.SetLinger(0); raw.Close() }, false},
		{"nothing", func(*net.TCPConn, *tls.Conn) {}, false},
	} {
		raw, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		own := &conn{Conn: accepted}
		server := tls.Server(own, conf)
		defer server.Close()
		withConn(t.Context(), server)
		read := make(chan error, 1)
		go func() { // as the HTTP server does while it answers
			_, err := io.Copy(io.Discard, server)
			read <- err
		}()
		if _, err := io.WriteString(client, "POST"); err != nil {
			t.Fatal(err)
		}
		if c.end(raw.(*net.TCPConn), client); c.name != "nothing" {
			<-read
		}
		if own.closed() != c.want {
			t.Errorf("%s: closed: %v", c.name, own.closed())
		}
	}
}
