//go:build linux

package pgtorture

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// result is what one round showed.
type result struct {
	Keeper string        `json:"keeper"`
	Name   string        `json:"name"`
	Gap    time.Duration `json:"gap"`
	Rows   int           `json:"rows"`
	Lost   int           `json:"lost"`
	Two    int           `json:"two"`
	ByHand bool          `json:"by_hand,omitempty"`
}

// score plays rounds and keeps what they showed.
type score struct {
	*cluster
	began   time.Time
	results []result
	keep    *os.File // one result a line, of this run and of those before; nil: of this run only
	spent   [4]time.Duration
}

// What a round's time goes to.
const (
	waiting = iota // before the fault
	harming
	healing
	judging
)

func newScore(t testing.TB, c *cluster) *score {
	s := &score{cluster: c, began: time.Now()}
	if path := os.Getenv("PGTORTURE_RESULTS"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if s.results, err = parseResults(text); err != nil {
			t.Fatalf("PGTORTURE_RESULTS=%s: %v", path, err)
		}
		if s.keep, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.keep.Close() })
	}
	return s
}

func parseResults(text []byte) (all []result, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var x result
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, lines.Err()
}

// withEtcd are the faults of a whole machine. They are told apart by whether etcd's leader was on
// it: etcd elects another then, which lets all leases live for their whole time once more.
var withEtcd = regexp.MustCompile(`^(primary's machine |primary cut from (etcd|both)|nothing )`)

// play is one round.
func (s *score) play(n int, f fault, rng *rand.Rand) {
	s.tb.Helper()
	at := time.Now()
	lap := func(what int) { s.spent[what] += time.Since(at); at = time.Now() }
	s.round.Store(uint64(n))
	p, err := s.well(true)
	if err != nil {
		p, _, _ = s.rescued()
	}
	time.Sleep(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
	if withEtcd.MatchString(f.name) && s.etcd.Leader() == p.etcd {
		f.name += ", with etcd's leader"
	}
	r := s.meet(p, rng)
	fmt.Fprintf(s.marks(), "%s round %d: %s\n", time.Now().Format("15:04:05.000"), n, f.name)
	lap(waiting)
	detail, err := f.do(r)
	over := boottime.Now()
	s.repair()
	lap(harming)
	if errors.Is(err, errMissed) || err != nil && !s.keeper.promises() {
		// What a peer could not do is no round of its row.
		fmt.Fprintf(os.Stderr, "%4d %5.0fs  %-52s missed: %v\n", n, time.Since(s.began).Seconds(), f.name, err)
		return
	}
	if err != nil {
		s.complain(fmt.Sprintf("round %d, %s: %v", n, f.name, err))
		detail += " " + err.Error()
	}
	var to time.Duration
	x := result{Keeper: s.keeper.name(), Name: f.name}
	p, x.ByHand, to = s.rescued()
	lap(healing)
	x.Gap, _ = s.acks.longest(r.first, s.cfg.writers, r.began, to)
	v, err := s.verify(p)
	if err != nil { // it was not as well as it looked
		v, err = s.verify(s.settle(settleWithin, true))
	}
	if err != nil {
		s.tb.Errorf("round %d, %s: %v", n, f.name, err)
	}
	if n%5 == 0 {
		s.recycle(p)
	}
	lap(judging)
	x.Rows, x.Lost, x.Two = v.rows, v.lost, v.two
	s.add(x)
	fmt.Fprintf(os.Stderr, "%4d %5.0fs  %-52s gap %6.3f s  well %5.1f s later, %s leads  %5d rows  %s\n", n,
		time.Since(s.began).Seconds(), f.name, x.Gap.Seconds(), (to - over).Seconds(), p.name, v.rows, detail)
	for _, w := range v.wrong {
		s.complain(fmt.Sprintf("round %d, %s: %s", n, f.name, w))
		fmt.Fprintf(os.Stderr, "      %s\n", w)
	}
}

// recycle lets the servers remove old WAL. Each promotion begins a segment, of 16 MB, and none can
// go while the log is still within it; pg_rewind would come to copy hundreds of them. Between two
// promotions of a user's cluster much is written.
func (s *score) recycle(p *machine) {
	if _, err := s.ask(p, "SELECT pg_switch_wal()"); err != nil {
		return // it is for speed only
	}
	for _, m := range append(s.without(p), p) {
		_, _ = s.ask(m, "CHECKPOINT")
	}
}

func (s *score) add(x result) {
	s.results = append(s.results, x)
	if s.keep == nil {
		return
	}
	b, err := json.Marshal(x)
	if err == nil {
		_, err = s.keep.Write(append(b, '\n'))
	}
	if err != nil {
		s.tb.Error(err)
	}
}

// end judges what is left, and tells all.
func (s *score) end(rng *rand.Rand) {
	s.tb.Helper()
	took := time.Since(s.began)
	fmt.Fprint(os.Stderr, table(s.results))
	fmt.Fprintf(os.Stderr, "%v: waiting until well %v, the faults %v, until well again %v, judging %v\n",
		took.Round(time.Second), s.spent[waiting].Round(time.Second), s.spent[harming].Round(time.Second),
		s.spent[healing].Round(time.Second), s.spent[judging].Round(time.Second))
	if s.tb.Failed() {
		return
	}
	for _, w := range s.finish(rng.Perm(members)) {
		s.complain(w)
	}
	on := ""
	if s.keeper.promises() {
		on = ", all of the former on all nodes"
	}
	fmt.Fprintf(os.Stderr, "%d reigns, %d rows acknowledged, %d unknown%s\n", len(s.reigns.all()), s.acks.len(),
		s.acks.unknown, on)
}

// table is the results by kind, of each keeper.
func table(results []result) string {
	type cell struct{ name, keeper string }
	by := map[cell][]result{}
	var keepers, names []string
	for _, r := range results {
		c := cell{r.Name, r.Keeper}
		by[c] = append(by[c], r)
		keepers, names = append(keepers, r.Keeper), append(names, r.Name)
	}
	slices.Sort(names)
	slices.SortFunc(keepers, func(a, b string) int { return -cmp.Compare(a, b) }) // ours first
	names, keepers = slices.Compact(names), slices.Compact(keepers)
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-52s%-8s %4s %9s %9s %9s %8s %6s %4s %s\n", "longest time without an acknowledged row", "", "n",
		"p50", "p90", "max", "rows", "lost", "two", "by hand")
	for _, name := range names {
		for _, k := range keepers {
			if all := by[cell{name, k}]; len(all) > 0 {
				fmt.Fprintf(&b, "%-52s%-8s %s\n", name, k, sums(all))
			}
		}
	}
	for _, k := range keepers {
		all := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.Keeper != k })
		kinds := map[string]bool{}
		var rows, lost, two int
		for _, r := range all {
			kinds[r.Name] = true
			rows, lost, two = rows+r.Rows, lost+r.Lost, two+r.Two
		}
		fmt.Fprintf(&b, "%s: %d faults of %d kinds; %d rows acknowledged, %d of them lost; two that acknowledge seen "+
			"%d times\n", k, len(all), len(kinds), rows, lost, two)
	}
	return b.String()
}

// sums is one row of the table.
func sums(all []result) string {
	all = slices.SortedFunc(slices.Values(all), func(a, b result) int { return cmp.Compare(a.Gap, b.Gap) })
	var rows, lost, two, byHand int
	for _, x := range all {
		rows, lost, two = rows+x.Rows, lost+x.Lost, two+x.Two
		if x.ByHand {
			byHand++
		}
	}
	at := func(percent int) float64 { return all[rank(percent, len(all))].Gap.Seconds() }
	return fmt.Sprintf("%4d %7.3f s %7.3f s %7.3f s %8d %6d %4d %7d", len(all), at(50), at(90), at(100), rows, lost,
		two, byHand)
}

// rank is the index of a percentile of n values, in order: that of the smallest value that so many
// of a hundred do not exceed.
func rank(percent, n int) int { return max(0, (percent*n+99)/100-1) }
