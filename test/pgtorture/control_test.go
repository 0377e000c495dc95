//go:build linux

package pgtorture

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// unbound builds the program without one rule: the guardian is never told when the term ends.
func unbound(t *testing.T) string {
	t.Helper()
	orders, err := filepath.Abs("../../cmd/internal/postgres/agent/orders.go")
	if err != nil {
		t.Fatal(err)
	}
	const rule = "err := p.Bind(ctx, term.Deadline())"
	text, err := os.ReadFile(orders)
	if err != nil || strings.Count(string(text), rule) != 1 {
		t.Fatalf("%s: the rule is not there to be taken out: %v", orders, err)
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "primacy")
	without, overlay := filepath.Join(dir, "orders.go"), filepath.Join(dir, "overlay")
	replaced, err := json.Marshal(map[string]map[string]string{"Replace": {orders: without}})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{overlay: string(replaced),
		without: strings.Replace(string(text), rule, "var err error", 1)} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("go", "build", "-overlay", overlay, "-o", bin,
		"github.com/primacy-go/primacy/cmd/primacy").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// TestControl freezes the primary's agent in a cluster without two of the rules: commits wait for
// no standby, and the guardian does not know when the term ends. The judges must see rows lost and
// two nodes that acknowledge, and in the end what was left on purpose, or they would prove nothing
// of a cluster with the rules.
func TestControl(t *testing.T) {
	if os.Getenv("PGTORTURE_CONTROL") == "" {
		t.Skip("takes a minute: make pgtorture")
	}
	c := newCluster(t, config{keeper: &ours{durability: "async", program: unbound(t)}, writers: 8})
	rng := rand.New(rand.NewPCG(newSeed(t), 1))
	lost, two := 0, 0
	for n := 1; n <= 5 && (lost == 0 || two == 0); n++ {
		c.round.Store(uint64(n))
		p := c.settle(settleWithin, true)
		r := c.meet(p, rng)
		if err := r.hold(p, agent, r.untilTaken); err != nil {
			t.Fatal(err)
		}
		c.repair()
		v, err := c.verify(c.settle(settleWithin, true))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range v.wrong {
			switch {
			case strings.Contains(w, "acknowledged rows are not on"):
				lost++
			case strings.Contains(w, "two acknowledge"):
				two++
			}
			fmt.Fprintf(os.Stderr, "control: round %d, agent of %s frozen: %s\n", n, p.name, w)
		}
	}
	if lost == 0 || two == 0 {
		t.Errorf("the judges saw rows lost %d times and two that acknowledge %d times: they are too weak", lost, two)
	}
	leaveBehind(t, c)
	said := strings.Join(c.finish(rng.Perm(members)), "\n")
	for _, want := range []string{"left_behind", "sleep 1000", "left in the store: left behind"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q was left, and the judge of what is left says: %s", want, said)
		}
	}
}

// leaveBehind leaves a slot on a server, a process on a machine and a claim in the store.
func leaveBehind(t *testing.T, c *cluster) {
	t.Helper()
	m := c.settle(settleWithin, false)
	if _, err := c.ask(m, "SELECT pg_create_physical_replication_slot('left_behind')"); err != nil {
		t.Fatal(err)
	}
	stray := exec.Command("sleep", "1000")
	stray.Dir = m.dir
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stray.Process.Kill(); _ = stray.Wait() })
	if err := m.join(stray.Process.Pid); err != nil {
		t.Fatal(err)
	}
	lease, err := c.client.Grant(t.Context(), 60)
	if err == nil {
		_, err = c.client.Put(t.Context(), "left behind", "", clientv3.WithLease(lease.ID))
	}
	if err != nil {
		t.Fatal(err)
	}
}
