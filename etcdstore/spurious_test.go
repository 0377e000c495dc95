package etcdstore_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// kind is a way to keep leases, and what became of the terms under it.
type kind struct {
	ttl   time.Duration
	beats bool
	part  float64 // time limit of a renewal, of the ttl; 0: the library's own

	lost    atomic.Int64
	leading atomic.Int64 // how many lead now
}

// fate is what became of a kind in a phase.
type fate struct {
	lost int64
	led  float64 // the part of the time, of all leaders together
}

func (k *kind) String() string {
	how := "lease"
	if k.beats {
		how = "heartbeat"
	}
	if k.part > 0 {
		return fmt.Sprintf("%v, %s, %v a renewal", k.ttl, how, time.Duration(k.part*float64(k.ttl)))
	}
	return fmt.Sprintf("%v, %s", k.ttl, how)
}

// leadersOfEach is how many lead under each kind at once.
const leadersOfEach = 5

// TestSpuriousLosses counts the terms that are lost though nobody has failed: idle, with the
// machine's processors busy, and when the leader of a cluster of three is killed. It asserts
// nothing: what it prints is for people who choose a ttl.
//
// SPURIOUS_MINUTES is how long idle, and how long under load; it runs only with that.
// SPURIOUS_KILLS is how many leaders are killed (default 10). SPURIOUS_ATTEMPT has as many more
// lead with a heartbeat, at the same time, whose renewals have that time limit, as a part of the
// ttl.
func TestSpuriousLosses(t *testing.T) {
	minutes, err := strconv.ParseFloat(os.Getenv("SPURIOUS_MINUTES"), 64)
	if err != nil {
		t.Skip("it takes its time: set SPURIOUS_MINUTES")
	}
	c := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	kinds := []*kind{{ttl: 300 * time.Millisecond, beats: true}, {ttl: 500 * time.Millisecond, beats: true},
		{ttl: time.Second, beats: true},
		{ttl: 2 * time.Second, beats: true}, {ttl: 2 * time.Second}, {ttl: 5 * time.Second}}
	if part, err := strconv.ParseFloat(os.Getenv("SPURIOUS_ATTEMPT"), 64); err == nil {
		for _, k := range kinds[:3] {
			kinds = append(kinds, &kind{ttl: k.ttl, beats: true, part: part})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done []<-chan struct{}
	for i, k := range kinds {
		for j := range leadersOfEach {
			done = append(done, leadOn(t, ctx, c.Endpoints(), k, fmt.Sprintf("s%d-%d", i, j)))
		}
	}
	time.Sleep(5 * time.Second) // all lead by then
	phase := time.Duration(minutes * float64(time.Minute))
	idle := losses(kinds, func() { time.Sleep(phase) })
	load := losses(kinds, func() { defer spin(t, 2*runtime.NumCPU())(); time.Sleep(phase) })
	kills := envInt(t, "SPURIOUS_KILLS", 10)
	killed := losses(kinds, func() {
		for range kills {
			killLeader(t, c)
		}
	})
	cancel()
	for _, d := range done {
		<-d
	}
	table := &strings.Builder{}
	w := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w,
		"ttl\tidle: lost per hour and leader\tled\t%d busy processes: lost\tled\tkilled etcd leaders: lost by %d leaders for each\tled\n",
		2*runtime.NumCPU(), leadersOfEach)
	for i, k := range kinds {
		hours := phase.Hours() * leadersOfEach
		fmt.Fprintf(w, "%v\t%.1f\t%.2f %%\t%.1f\t%.2f %%\t%.1f\t%.1f %%\n", k, float64(idle[i].lost)/hours,
			100*idle[i].led, float64(load[i].lost)/hours, 100*load[i].led,
			float64(killed[i].lost)/float64(max(kills, 1)), 100*killed[i].led)
	}
	w.Flush()
	t.Logf("%v each, %d kills\n%s", phase, kills, table)
}

// losses returns what became of each kind during do, and shortly after it.
func losses(kinds []*kind, do func()) []fate {
	all := make([]fate, len(kinds))
	for i, k := range kinds {
		all[i].lost = -k.lost.Load()
	}
	done := make(chan struct{})
	go func() { defer close(done); do(); time.Sleep(2 * time.Second) }()
	for n := 1.0; ; n++ {
		for i, k := range kinds {
			all[i].led += (float64(k.leading.Load())/leadersOfEach - all[i].led) / n
		}
		select {
		case <-time.After(20 * time.Millisecond):
			continue
		case <-done:
		}
		break
	}
	for i, k := range kinds {
		all[i].lost += k.lost.Load()
	}
	return all
}

// leadOn leads under that name, again and again until ctx ends, and counts the terms that end
// before.
func leadOn(t *testing.T, ctx context.Context, endpoints []string, k *kind, name string) <-chan struct{} {
	st, err := etcdstore.Open(soon(t), etcdstore.Config{Endpoints: endpoints,
		Options: etcdstore.Options{Heartbeat: k.beats}})
	if err != nil {
		t.Fatal(err)
	}
	o := primacy.Options{TTL: k.ttl, Overrun: primacy.OverrunWait, RenewAttempt: time.Duration(k.part * float64(k.ttl))}
	s, err := primacy.NewSession(st, &o)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer st.Close()
		for ctx.Err() == nil {
			term, err := s.Election(name).Campaign(ctx, nil)
			if err != nil {
				continue
			}
			k.leading.Add(1)
			select {
			case <-term.Context().Done():
				k.lost.Add(1)
			case <-ctx.Done():
			}
			k.leading.Add(-1)
			_ = term.Resign(soon(t))
		}
	}()
	return done
}

// spin keeps so many processes busy until it is stopped.
func spin(t *testing.T, n int) (stop func()) {
	var all []*exec.Cmd
	for range n {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	return func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
}

// killLeader kills etcd's leader, and has it come back when another one leads and all have gone on.
func killLeader(t *testing.T, c *etcdtest.Cluster) {
	old := c.WaitLeader()
	old.Kill()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if l := c.Leader(); l != nil && l != old {
			break
		}
	}
	time.Sleep(4 * time.Second)
	old.Restart()
	time.Sleep(4 * time.Second)
}
