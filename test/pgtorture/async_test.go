//go:build linux

package pgtorture

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// maxLag is maximum_lag_on_failover: a standby that is further behind is not promoted.
const maxLag = 1 << 20

// loss is one line of what `primacy postgres lost` says.
type loss struct {
	Bytes      uint64 `json:"bytes,string"`
	Commits    int    `json:"commits"`
	Incomplete string `json:"incomplete"`
}

// TestAsync kills the primary's machine in a cluster whose commits wait for no standby, and
// compares the rows that are lost with what `primacy postgres lost` says on that machine once it is
// back.
func TestAsync(t *testing.T) {
	if os.Getenv("PGTORTURE_ASYNC") == "" {
		t.Skip("takes minutes: make pgtorture")
	}
	o := &ours{durability: "async"}
	seed := newSeed(t)
	fmt.Fprintf(os.Stderr, "pgtorture: PGTORTURE_SEED=%d\n", seed)
	c := newCluster(t, config{keeper: o, writers: 8})
	rng := rand.New(rand.NewPCG(seed, 3))
	rounds := newRounds(t)
	if rounds == 0 {
		rounds = 8
	}
	var rows, lost int
	for n := 1; n <= rounds && !t.Failed(); n++ {
		c.round.Store(uint64(n))
		p := c.settle(settleWithin, true)
		if n%4 == 0 {
			c.tooFarBehind(c.meet(p, rng))
			continue
		}
		v := c.losing(o, c.meet(p, rng))
		rows, lost = rows+v.rows, lost+v.lost
	}
	fmt.Fprintf(os.Stderr, "async: %d rows acknowledged, %d of them lost\n", rows, lost)
	if lost == 0 {
		t.Error("no row was lost: nothing was shown")
	}
}

// losing kills the primary's machine a moment after the last WAL has left it.
func (c *cluster) losing(o *ours, r *round) (v verdict) {
	c.tb.Helper()
	former, err := o.lost(c, r.primary)
	if err != nil {
		c.tb.Fatal(err)
	}
	if err := r.primary.freeze(r.primary.roles("walsender")...); err != nil {
		c.tb.Fatal(err)
	}
	held := r.between(50*time.Millisecond, 800*time.Millisecond)
	time.Sleep(held)
	if err := r.primary.off(); err != nil {
		c.tb.Fatal(err)
	}
	r.untilTaken()
	c.repair()
	p := c.settle(settleWithin, true)
	if v, err = c.verify(p); err != nil {
		c.tb.Fatal(err)
	}
	all, err := o.lost(c, r.primary)
	if err != nil {
		c.tb.Fatal(err)
	}
	said := all[min(len(former), len(all)):]
	fmt.Fprintf(os.Stderr, "async: %s killed %v after its last WAL was sent; %d acknowledged rows are lost, and "+
		"lost says %+v\n", r.primary.name, held.Round(time.Millisecond), v.lost, said)
	for _, w := range judgeLost(v.lost, said) {
		c.tb.Error(w)
	}
	if v.two > 0 {
		c.tb.Error(v.wrong)
	}
	return v
}

// judgeLost returns what is wrong with what `primacy postgres lost` says where so many acknowledged
// rows, each of a transaction of its own, are missing.
func judgeLost(missing int, said []loss) (wrong []string) {
	var commits int
	var bytes uint64
	for _, l := range said {
		commits, bytes = commits+l.Commits, bytes+l.Bytes
		if l.Incomplete != "" {
			wrong = append(wrong, "lost could not read all: "+l.Incomplete)
		}
	}
	if commits < missing {
		wrong = append(wrong, fmt.Sprintf("%d acknowledged rows are lost, and lost says %d commits", missing, commits))
	}
	if missing > 0 && bytes == 0 {
		wrong = append(wrong, fmt.Sprintf("%d acknowledged rows are lost, and lost says 0 bytes", missing))
	}
	if bytes > maxLag+lately {
		wrong = append(wrong, fmt.Sprintf("%d bytes are lost: more than maximum_lag_on_failover and what was written "+
			"since the primary was last heard", bytes))
	}
	return wrong
}

// lately is more than the writers write in the second or two since the primary was last heard.
const lately = 1 << 20

// tooFarBehind has the primary write more than may be lost, and kills its machine: nobody may be
// promoted before it is back, and then nothing is lost.
func (c *cluster) tooFarBehind(r *round) {
	c.tb.Helper()
	if err := r.primary.freeze(r.primary.roles("walsender")...); err != nil {
		c.tb.Fatal(err)
	}
	for range 4 {
		if _, err := c.ask(r.primary, "SELECT count(pg_logical_emit_message(true, 'harness', repeat('x', 8000)))"+
			" FROM generate_series(1, 128)"); err != nil {
			c.tb.Fatal(err)
		}
	}
	time.Sleep(3 * time.Second) // the others hear how far it is at least once a second
	if err := r.primary.off(); err != nil {
		c.tb.Fatal(err)
	}
	time.Sleep(r.longer())
	if r.taken() {
		c.tb.Errorf("another member was promoted, which lacked 4 MB of what %s had", r.primary.name)
	}
	c.repair()
	v, err := c.verify(c.settle(settleWithin, true))
	if err != nil {
		c.tb.Fatal(err)
	}
	fmt.Fprintf(os.Stderr, "async: %s killed when the others lacked 4 MB: nobody was promoted before it was back: %v; "+
		"%d acknowledged rows are lost\n", r.primary.name, !r.taken(), v.lost)
	for _, w := range v.wrong {
		c.tb.Error(w)
	}
}

// lost is what the program says of a machine.
func (o *ours) lost(c *cluster, m *machine) (all []loss, err error) {
	text, err := o.cli(c, 10*time.Second, "postgres", "lost", "-f", m.file(), "-o", "json")
	if err != nil {
		return nil, fmt.Errorf("lost: %w: %s", err, text)
	}
	return all, json.Unmarshal([]byte(text), &all)
}
