//go:build linux

package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/safety"
)

const handOverTTL = 5 * time.Second

// TestGuardianHandsOver kills supervisors of `primacy run`. Their guardians end the commands, and
// only then the leases; so the next leads long before the lease would have run out, and never
// beside an old command. What it took is printed.
func TestGuardianHandsOver(t *testing.T) {
	onlyInVerify(t)
	for _, kind := range []struct {
		name   string
		env    []string
		rounds int
	}{
		{"ends on SIGTERM", nil, knob(t, "TORTURE_ROUNDS", 20)},
		{"deaf, its child in a session of its own", []string{deafEnv + "=yes", setsidEnv + "=yes"},
			knob(t, "TORTURE_ROUNDS", 20) / 4},
	} {
		t.Run(kind.name, func(t *testing.T) {
			var acted, claim, leads, acts spread
			a := newRun(t, onEtcd(), 0, rand.New(rand.NewPCG(1, 0)))
			dir := t.TempDir()
			up := func(n *node) {
				n.up(a, electionName, handOverTTL, append(kind.env, actsEnv+"="+a.acts.path, ownEnv+"="+a.own)...)
			}
			for i := range 2 {
				up(a.add(fmt.Sprintf("node-%d", i+1), dir, must(programtest.Program())))
			}
			gone := watchClaims(t, "http://"+a.store.servers[0])
			for range kind.rounds {
				v := a.settled()
				for v == nil {
					v = a.settled()
				}
				v.watch.end()
				next := a.nodes[0]
				if next == v.node {
					next = a.nodes[1]
				}
				for len(gone) > 0 {
					<-gone
				}
				hit := boottime.Now()
				v.supervisor.signal(t, syscall.SIGKILL)
				led := next.leadsAt(t)
				a.next(v)
				var last time.Duration
				for _, at := range v.lastActs(t, a.own) {
					last = max(last, at)
				}
				acted, claim, leads = append(acted, last-hit), append(claim, <-gone-hit), append(leads, led-hit)
				acts = append(acts, last+a.acts.gap(a.acts.top.token, nil)-hit)
				eventually(t, time.Minute, "the guardian's message",
					func() bool { return strings.Contains(v.logTail(), "leadership of torture given up") })
				a.wantExit(v, exitKilled)
				up(v.node)
			}
			a.settled()
			terms, err := a.acts.history(nil)
			if err == nil {
				err = safety.Check(terms)
			}
			if err != nil {
				t.Errorf("the promise was broken: %v", err)
			}
			if refused, _ := a.acts.fence(nil); refused > 0 {
				t.Errorf("a fence had to refuse %d acts", refused)
			}
			t.Logf("ttl %v; from SIGKILL of the supervisor to: last act of its command %v; its claim gone %v; "+
				"next leads %v; next acts %v",
				handOverTTL, acted.p99(), claim.p99(), leads.p99(), acts.p99())
		})
	}
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

// p99 is the spread with its tail.
func (s spread) p99() string {
	if len(s) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(s))
	at := func(p int) time.Duration { return sorted[(len(sorted)-1)*p/100].Round(100 * time.Microsecond) }
	return fmt.Sprintf("p50 %v p99 %v max %v (%d)", at(50), at(99), at(100), len(sorted))
}

// leadsAt waits until a candidate that waits has won, and returns when: then it makes the file for
// its command.
func (n *node) leadsAt(t testing.TB) time.Duration {
	t.Helper()
	path := filepath.Join(n.runDir(), "primacy", fmt.Sprintf("%d.state", n.cmd.Process.Pid))
	for end := boottime.Now() + 20*time.Second; boottime.Now() < end; time.Sleep(200 * time.Microsecond) {
		if _, err := os.Stat(path); err == nil {
			return boottime.Now()
		}
	}
	t.Fatalf("%s does not lead; its log ends with:\n%s", n.id, n.logTail())
	return 0
}

// watchClaims tells when a claim was deleted, as etcd's own client sees it.
func watchClaims(t testing.TB, endpoint string) chan time.Duration {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	gone := make(chan time.Duration, 1000)
	w := c.Watch(ctx, "primacy/"+electionName+"/", clientv3.WithPrefix(), clientv3.WithFilterPut(),
		clientv3.WithCreatedNotify())
	<-w
	go func() {
		for resp := range w {
			for range resp.Events {
				gone <- boottime.Now()
			}
		}
	}()
	return gone
}
