//go:build linux

package pgtorture

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/programtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	programtest.Remove()
	os.Exit(code)
}

// ttl is the lease's, as `primacy postgres` has it where nobody says otherwise.
const ttl = 3 * time.Second

// settleWithin is how long a cluster may take to be well again after a fault.
const settleWithin = 90 * time.Second

func forHow(t testing.TB, name string, otherwise time.Duration) time.Duration {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%q: want a duration such as 10m", name, text)
	}
	return d
}

func newSeed(t testing.TB) uint64 {
	text := os.Getenv("PGTORTURE_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano() & 0xffffff)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("PGTORTURE_SEED=%q: want a number", text)
	}
	return n
}

func newRounds(t testing.TB) int {
	text := os.Getenv("PGTORTURE_ROUNDS")
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("PGTORTURE_ROUNDS=%q: want a number", text)
	}
	return n
}

// TestTorture does one fault after another to a cluster that was well before each, and judges.
func TestTorture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make pgtorture, or make verify")
	}
	k := newKeeper(t)
	d, rounds, seed := forHow(t, "PGTORTURE_FOR", 12*time.Second), newRounds(t), newSeed(t)
	fmt.Fprintf(os.Stderr, "pgtorture: PGTORTURE_SEED=%d PGTORTURE_FOR=%v PGTORTURE_ROUNDS=%d\n", seed, d, rounds)
	c := newCluster(t, config{keeper: k, writers: 8})
	rng := rand.New(rand.NewPCG(seed, 0))
	faults := wanted(t, c.faults())
	var deck []fault
	decks := 0
	s := newScore(t, c)
	for n := 1; rounds == 0 && time.Since(s.began) < d || n <= rounds; n++ {
		if len(deck) == 0 {
			decks++
			deck = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
				return decks%2 == 0 && long.MatchString(f.name) && os.Getenv("PGTORTURE_ONLY") == ""
			})
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		s.play(n, deck[0], rng)
		deck = deck[1:]
	}
	s.end(rng)
}

// TestSeries does what is to be done so and so often in a row: switchovers whose source, next or
// store is killed in their middle, machines lost, and the whole cluster off and on.
func TestSeries(t *testing.T) {
	if os.Getenv("PGTORTURE_SERIES") == "" {
		t.Skip("takes a quarter of an hour: make pgtorture SERIES=1")
	}
	seed := newSeed(t)
	fmt.Fprintf(os.Stderr, "pgtorture: PGTORTURE_SEED=%d\n", seed)
	c := newCluster(t, config{keeper: &ours{}, writers: 8})
	rng := rand.New(rand.NewPCG(seed, 2))
	s := newScore(t, c)
	for n, name := range series() {
		is := regexp.MustCompile(name)
		all := slices.DeleteFunc(c.faults(), func(f fault) bool { return !is.MatchString(f.name) })
		if len(all) == 0 {
			t.Fatalf("no fault is called %s", name)
		}
		s.play(n+1, all[n%len(all)], rng)
		if t.Failed() {
			break
		}
	}
	s.end(rng)
}

func series() (names []string) {
	for _, x := range []struct {
		n    int
		name string
	}{{50, "^switchover, .* killed in it$"}, {20, "^primary's machine killed$"}, {10, "^whole cluster off and on$"}} {
		names = append(names, slices.Repeat([]string{x.name}, x.n)...)
	}
	return names
}

// long are the faults that take a quarter of a minute and more: they come half as often.
var long = regexp.MustCompile(`^(the store wiped|the only other voter must|SSN changed|primary's disk paused)`)

// bounded are the faults after which writes are to come back within a limit that users count on:
// they come twice as often.
var bounded = regexp.MustCompile(`^(primary's machine (killed|frozen)|agent (killed|frozen)|agent killed, not.*|` +
	`postmaster killed|switchover)$`)

// faults are all that can be done to this cluster.
func (c *cluster) faults() []fault {
	all := slices.Concat(processFaults(), pausedFaults(), settingFaults(), c.cuts())
	if c.disks {
		all = append(all, diskFaults()...)
	}
	if !c.keeper.promises() {
		return slices.DeleteFunc(all, func(f fault) bool { return !comparable.MatchString(f.name) })
	}
	for _, f := range all {
		if bounded.MatchString(f.name) {
			all = append(all, f)
		}
	}
	return all
}

// wanted is all faults, or those that PGTORTURE_ONLY names, a regular expression.
func wanted(t testing.TB, all []fault) []fault {
	only, err := regexp.Compile(os.Getenv("PGTORTURE_ONLY"))
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(f fault) bool { return !only.MatchString(f.name) })
	if len(all) == 0 {
		t.Fatalf("PGTORTURE_ONLY=%s matches no fault", only)
	}
	return all
}

// meet is a round that begins now.
func (c *cluster) meet(p *machine, rng *rand.Rand) *round {
	return &round{cluster: c, rng: rng, primary: p, standbys: c.without(p), began: boottime.Now(), first: c.acks.len()}
}

// rescued returns the primary of a cluster that is well. Where that takes a person, at says since
// when: what is stuck in the store is mended, and the members that do not stream are set up anew.
// Of a keeper that promises to do without, the test fails.
func (c *cluster) rescued() (p *machine, byHand bool, at time.Duration) {
	c.tb.Helper()
	p, err := c.settled(settleWithin, true)
	at = boottime.Now()
	if err == nil {
		return p, false, at
	}
	if c.keeper.promises() {
		c.tb.Fatal(err)
	}
	fmt.Fprintf(os.Stderr, "by hand: %v\n", err)
	leader, _, err := c.keeper.primary(c)
	if leader == nil {
		c.tb.Fatalf("nobody leads, and nothing can be set up anew: %v", err)
	}
	if err != nil { // all may stream, and the store show no cluster that is well
		c.keeper.mend(c)
	}
	stream, err := c.ask(leader, "SELECT host(client_addr) FROM pg_stat_replication WHERE state = 'streaming'")
	if err != nil {
		c.tb.Fatal(err)
	}
	for _, m := range c.without(leader) {
		if slices.ContainsFunc(stream, func(row []string) bool { return row[0] == m.host }) {
			continue
		}
		if err := errors.Join(m.off(), emptied(m), m.on()); err != nil {
			c.tb.Fatal(err)
		}
	}
	return c.settle(settleWithin, true), true, at
}

// marks is a file with the beginning of each round, beside the members' logs.
func (c *cluster) marks() io.Writer {
	if c.log == nil {
		f, err := os.OpenFile(c.dir+"/rounds.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			c.tb.Fatal(err)
		}
		c.log = f
		c.tb.Cleanup(func() { f.Close() })
	}
	return c.log
}
