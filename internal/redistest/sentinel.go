package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// Sentinels say how StartSentinels sets them up.
type Sentinels struct {
	N        int            // how many there are; more than half of them have to agree
	Password string         // of their own
	TLS      *etcdtest.Cert // their certificate, and that of the servers they watch, instead of plain TCP
}

// StartSentinel runs a sentinel that watches a primary under that name and, alone, decides to fail
// over after a second of silence.
func StartSentinel(tb testing.TB, name string, primary *Server) *Server {
	tb.Helper()
	return StartSentinels(tb, name, primary, Sentinels{N: 1})[0]
}

// StartSentinels runs sentinels that watch a primary under that name, and returns when they know
// each other and so many replicas.
func StartSentinels(tb testing.TB, name string, primary *Server, o Sentinels, replicas ...*Server) (all []*Server) {
	tb.Helper()
	for range o.N {
		s := &Server{tb: tb, bin: binary(tb), name: "redis-sentinel", dir: folder(tb), port: servertest.FreePort(tb)}
		s.o.Password, s.o.TLS = o.Password, o.TLS
		conf := filepath.Join(s.dir, "sentinel.conf")
		if err := os.WriteFile(conf, []byte(s.sentinelConf(name, primary, o)), 0o600); err != nil {
			tb.Fatal(err)
		}
		s.args = []string{conf, "--sentinel"}
		if err := s.up(); err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		tb.Cleanup(s.down)
		all = append(all, s)
	}
	for _, s := range all {
		s.until("the sentinels to know each other", func() bool {
			others, _ := s.Do("SENTINEL", "SENTINELS", name).([]any)
			there, _ := s.Do("SENTINEL", "REPLICAS", name).([]any)
			return len(others) == o.N-1 && len(there) >= len(replicas)
		})
	}
	return all
}

func (s *Server) sentinelConf(name string, primary *Server, o Sentinels) string {
	text := fmt.Sprintf("port %s\n", s.port)
	if o.TLS != nil {
		cert, key := o.TLS.Files()
		text = fmt.Sprintf("port 0\ntls-port %s\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\ntls-auth-clients no\ntls-replication yes\n",
			s.port, cert, key, cert)
	}
	text += fmt.Sprintf("bind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %s %d\nsentinel down-after-milliseconds %s 1000\n"+
		"sentinel failover-timeout %s 3000\n", s.dir, name, primary.port, o.N/2+1, name, name)
	if p := primary.o.Password; p != "" {
		text += fmt.Sprintf("sentinel auth-pass %s %s\n", name, p)
	}
	if o.Password != "" {
		text += fmt.Sprintf("requirepass %s\n", o.Password)
	}
	return text
}
