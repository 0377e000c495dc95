// Package speaks finds out which protocol a server speaks: for the error of a store URL that leads
// to a server of another kind. It sends greetings only, never a password.
package speaks

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/open"
)

// Kind is a protocol, as people call it; "" if it could not be found out.
type Kind string

// The protocols.
const (
	Etcd       Kind = "etcd" // or anything else over HTTP/2
	PostgreSQL Kind = "PostgreSQL"
	Redis      Kind = "Redis"
	ZooKeeper  Kind = "ZooKeeper"
	HTTP       Kind = "HTTP"
	TLS        Kind = "TLS"
)

// limit is for all greetings and their answers.
const limit = time.Second

// greetings are what each protocol begins with, and what says that it is understood. The order is
// that of trust: a server of HTTP/2 answers in HTTP/1 what it does not understand.
var greetings = []struct {
	kind    Kind
	say     string
	answers func([]byte) bool
}{
	// the preface of HTTP/2 and an empty frame of settings, which is answered by settings
	{Etcd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", func(b []byte) bool {
		return len(b) >= 9 && b[0] == 0 && b[3] == 4 && !bytes.HasPrefix(b, []byte("HTTP"))
	}},
	{Redis, "PING\r\n", func(b []byte) bool {
		return bytes.HasPrefix(b, []byte("+PONG")) || len(b) > 1 && b[0] == '-' && b[1] >= 'A' && b[1] <= 'Z'
	}},
	// may TLS begin? yes or no
	{PostgreSQL, "\x00\x00\x00\x08\x04\xd2\x16\x2f", func(b []byte) bool {
		return string(b) == "S" || string(b) == "N"
	}},
	// a server that does not want to be asked says so after the word
	{ZooKeeper, "ruok", func(b []byte) bool {
		return bytes.HasPrefix(b, []byte("imok")) || bytes.HasPrefix(b, []byte("ruok "))
	}},
	{HTTP, "GET / HTTP/1.0\r\n\r\n", func(b []byte) bool { return bytes.HasPrefix(b, []byte("HTTP/")) }},
}

// At returns what the server at HOST:PORT speaks.
func At(ctx context.Context, addr string) Kind {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	found, silent := make([]bool, len(greetings)+1), make([]bool, len(greetings))
	var all sync.WaitGroup
	for i, g := range greetings {
		all.Go(func() {
			var b []byte
			b, silent[i] = ask(ctx, addr, g.say)
			if found[i] = b != nil && g.answers(b); found[i] && g.kind != HTTP {
				cancel() // it cannot be another one
			}
		})
	}
	all.Go(func() {
		// who it is does not matter here
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		found[len(greetings)] = err == nil
	})
	all.Wait()
	for i, g := range greetings {
		if found[i] {
			if g.kind == HTTP && found[len(greetings)] {
				return TLS // it says in HTTP that it wants TLS
			}
			if g.kind == HTTP && silent[0] {
				return "" // a busy etcd, which speaks HTTP too, or another
			}
			return g.kind
		}
	}
	if found[len(greetings)] {
		return TLS
	}
	return ""
}

// ask returns the first bytes of what is answered, or whether the server was silent until ctx
// ended.
func ask(ctx context.Context, addr, say string) (answer []byte, silent bool) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, ctx.Err() != nil
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write([]byte(say)); err != nil {
		return nil, ctx.Err() != nil
	}
	b := make([]byte, 64)
	n, _ := conn.Read(b)
	return b[:n], n == 0 && ctx.Err() != nil
}

// Hosts returns the servers of a store URL that open.Open takes, each as HOST:PORT.
func Hosts(storeURL string) (hosts []string) {
	scheme, rest, _ := strings.Cut(storeURL, "://")
	if scheme == "k8s" { // it names a namespace
		return nil
	}
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		rest = rest[:i]
	}
	rest = rest[strings.LastIndexByte(rest, '@')+1:] // a password may have one
	for h := range strings.SplitSeq(rest, ",") {
		switch _, _, err := net.SplitHostPort(h); {
		case h == "":
		case err == nil:
			hosts = append(hosts, h)
		default:
			hosts = append(hosts, net.JoinHostPort(strings.Trim(h, "[]"), open.DefaultPort(scheme)))
		}
	}
	return hosts
}

// Of returns what the servers of a store URL should speak.
func Of(storeURL string) Kind {
	scheme, _, _ := strings.Cut(storeURL, "://")
	for prefix, kind := range map[string]Kind{"etcd": Etcd, "postgres": PostgreSQL, "redis": Redis, "zk": ZooKeeper} {
		if strings.HasPrefix(scheme, prefix) {
			return kind
		}
	}
	return ""
}
