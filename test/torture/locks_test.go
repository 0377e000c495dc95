//go:build linux

package torture

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/safety"
)

// TestLockHistories has processes contend for locks under faults, and asks porcupine whether what
// they recorded could be that of a mutex, of a lock for readers and writers, and of a semaphore. In
// each process several goroutines want the same locks. The short run has all three at once.
func TestLockHistories(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	d := forHow(t, "LOCKS_FOR", 12*time.Second)
	short := d < time.Minute
	processes, loops, ttl := 8, 4, 5*time.Second
	if short {
		processes, loops, ttl = 4, 2, 2*time.Second
	}
	ttl, processes = forHow(t, "LOCKS_TTL", ttl), knob(t, "LOCKS_PROCESSES", processes)
	seed := uint64(knob(t, "LOCKS_SEED", int(time.Now().UnixNano()&0xffffff)+1))
	kinds := cmp.Or(os.Getenv("LOCKS_KIND"), strings.Join(lockKinds, ","))
	say := fmt.Sprintf("LOCKS_SEED=%d LOCKS_FOR=%v LOCKS_TTL=%v LOCKS_KIND=%s LOCKS_PROCESSES=%d", seed, d, ttl,
		kinds, processes)
	t.Log(say)
	fmt.Fprintln(os.Stderr, "locks:", say)
	s := newTorture(t, seed, ttl)
	l := s.addLocks("locks", processes, kinds, loops, "primacy")
	s.runLocks(lockLanes(short), d, l, strings.Split(kinds, ","))
	s.expectLocks(l, strings.Split(kinds, ","), d < 5*time.Minute)
	if t.Failed() {
		t.Log("this run: " + say)
		s.keep()
	}
}

// TestLockControl does the same to etcd's own mutex, under a fault that it does not stand:
// porcupine must find it out. A busy machine may need several tries to hit it.
func TestLockControl(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	found := false
	for i := 0; i < 4 && !found; i++ {
		t.Run(fmt.Sprint("try ", i+1), func(t *testing.T) {
			s := newTorture(t, newSeed(t), 3*time.Second)
			l := s.addLocks("control", 3, kindMutex, 1, "etcd")
			s.runLocks([]lane{{name: "control", kinds: aimed("frozen past the ttl"), most: 100 * time.Millisecond,
				line: 1}}, 12*time.Second, l, []string{kindMutex})
			found = s.foundOut(l)
		})
	}
	if !found && !t.Failed() {
		t.Error("etcd's own mutex never had two holders at once: these faults prove nothing")
	}
}

// addLocks enters processes that contend for locks.
func (s *torture) addLocks(name string, processes int, kinds string, loops int, by string) *line {
	s.Helper()
	for _, kind := range strings.Split(kinds, ",") {
		if !slices.Contains(append(lockKinds, kindBare), kind) {
			s.Fatalf("LOCKS_KIND=%q: want some of %s", kinds, strings.Join(lockKinds, ","))
		}
	}
	l := s.addLine(name, slices.Repeat([]string{kindLocks}, processes)...)
	for _, c := range l.candidates {
		c.env = append(c.env, locksEnv+"="+kinds, loopsEnv+"="+strconv.Itoa(loops), lockersEnv+"="+by)
	}
	return l
}

// lockLanes are the faults: none that takes a claim away by hand, for then no promise holds. In a
// short run there is time between them.
func lockLanes(short bool) []lane {
	processes := append(aimed("SIGKILL", "frozen past the ttl", "frozen for a moment",
		"SIGKILL of a waiting candidate"),
		fault{"SIGSTOP of any process", false, freezeAny})
	if short {
		return []lane{
			{name: "members", kinds: aimed("etcd leader moved", "etcd leader frozen"), most: 10 * time.Second},
			{name: "processes", kinds: processes, most: 500 * time.Millisecond},
			{name: "links", kinds: aimed("silent link", "connections of all cut again and again"),
				most: 4 * time.Second},
		}
	}
	members := slices.DeleteFunc(memberFaults(), func(h fault) bool { return h.name == diskFull })
	return []lane{
		{name: "members", kinds: members, most: 10 * time.Second},
		{name: "processes", kinds: processes, most: 4 * time.Second},
		{name: "links", kinds: linkFaults(), most: 8 * time.Second},
	}
}

// freezeAny freezes a process that waits or holds something else than what was had last.
func freezeAny(_ *torture, l *line, rng *rand.Rand) (string, error) {
	c, p, err := l.takeWaiter(rng)
	if err != nil {
		return "", err
	}
	defer c.faultMu.Unlock()
	send(syscall.SIGSTOP, p)
	defer send(syscall.SIGCONT, p)
	time.Sleep(between(rng, l.ttl/5, l.ttl*3/2))
	return "", nil
}

// shortHolds is how often each kind of lock is had, at least, in a run that is too short to ask for
// more.
const shortHolds = 3

// runLocks does harm for that long, goes on until each kind of lock was had shortHolds times, since
// a busy machine may come to nothing before that, and ends everything.
func (s *torture) runLocks(row []lane, d time.Duration, l *line, kinds []string) {
	s.Helper()
	stall := safety.WatchStalls(time.Millisecond)
	wait := s.up()
	s.injectFaults(row, d)
	s.settle()
	within(time.Minute, func() bool {
		time.Sleep(100 * time.Millisecond) // between two readings of all files
		h := readRunningLocks(s, l)
		return !slices.ContainsFunc(kinds, func(kind string) bool { return len(h.of(kind)) < shortHolds })
	})
	wait()
	most, _ := stall()
	s.Logf("the machine itself let a thread wait for %v at most", most.Round(time.Millisecond))
}

// Until when porcupine must have an answer, for each lock.
const answerLimit = 3 * time.Minute

// expectLocks fails the test where the record of a line is not that of such locks, and tells what
// it has seen. That the faults met holders is not demanded of a short run: in two minutes few do,
// and in some runs none.
func (s *torture) expectLocks(l *line, kinds []string, short bool) {
	s.Helper()
	h := readLocks(s, l)
	s.Log("\n" + s.lockTable(l, h))
	for _, v := range s.judgeLocks(l, h) {
		if v.fault != "" {
			s.Errorf("%s: porcupine says %s of %d holds (picture %s): %s", v.name, v.result, v.holds, v.html, v.fault)
		}
	}
	least, met := shortHolds, 0
	if !short {
		least, met = 100, 5
	}
	for _, kind := range kinds {
		if holds := h.of(kind); len(holds) < least {
			s.Errorf("%s: had %d times: nothing was tried", kind, len(holds))
		}
	}
	for _, kind := range kinds {
		if full := h.crowd(kind); !short && (kind == kindSemaphore && full[lockSlots] < 0.02 || kind == kindRW &&
			full[1] > 0.9) {
			s.Errorf("%s: part of the time that none, one, … had it at once: %.3f: there was hardly anything to "+
				"keep apart", kind, full)
		}
	}
	if n := h.ends(); n[atDeadline] < met {
		s.Errorf("ends of holds: %v: the faults did not meet holders", n)
	}
	if !short {
		s.expectBite(h)
	}
	var names []string
	for _, kind := range kinds {
		for i := range lockNames {
			names = append(names, fmt.Sprintf("%s/%s%d", l.name, kind, i))
		}
	}
	s.expectNobody(names...)
}

// expectBite looks that this very history would be found out if holders had thought for longer than
// they did that they hold the lock: for a ttl, and where the store itself is late for that much
// more.
func (s *torture) expectBite(h *lockHistory) {
	s.Helper()
	worse := &lockHistory{}
	for _, o := range h.holds {
		o := *o
		if o.deadline > 0 && (o.freed.from == 0 || o.freed.from > o.deadline) {
			o.deadline += s.ttl + s.spare
		}
		worse.holds = append(worse.holds, &o)
	}
	var bitten []string
	for _, name := range worse.names() {
		holds := worse.named(name)
		if judgeHolds(holds[0].kind, name, holds, answerLimit).result == porcupine.Illegal {
			bitten = append(bitten, name)
		}
	}
	s.Logf("with deadlines %v later porcupine would have found out %v", s.ttl+s.spare, bitten)
	if len(bitten) == 0 {
		s.Error("holds that ended so much later would not have been found out: the faults did not meet holders " +
			"that others waited for")
	}
}

// judgeLocks asks porcupine of each lock, one after another: a long history takes some memory.
func (s *torture) judgeLocks(l *line, h *lockHistory) (all []*lockVerdict) {
	s.Helper()
	for _, name := range h.names() {
		holds := h.named(name)
		v := judgeHolds(holds[0].kind, name, holds, answerLimit)
		if v.result == porcupine.Illegal {
			dir, err := os.MkdirTemp("", "locks-")
			if err == nil {
				err = v.draw(holds[0].kind, filepath.Join(dir, "porcupine.html"))
			}
			if err != nil {
				s.Logf("no picture: %v", err)
			}
		}
		s.Logf("%s: %d holds, porcupine says %s after %v", name, v.holds, v.result, v.took.Round(time.Millisecond))
		all = append(all, v)
	}
	return all
}

// foundOut says whether porcupine found that a lock of the line was none.
func (s *torture) foundOut(l *line) bool {
	s.Helper()
	for _, v := range s.judgeLocks(l, readLocks(s, l)) {
		if v.result == porcupine.Illegal {
			s.Logf("%s: found out: %s", v.name, v.fault)
			os.RemoveAll(filepath.Dir(v.html))
			return true
		}
	}
	return false
}

// expectNobody looks that the processes, all of which have ended, leave nobody in the lines of
// these names. It follows them: on a register, a lease is ended by those who do.
func (s *torture) expectNobody(names ...string) {
	s.Helper()
	session := s.store.session(s, s.ttl)
	for _, name := range names {
		s.expectEmpty(session.Election(name), name)
	}
}

func (s *torture) expectEmpty(e *primacy.Election, name string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*s.ttl)
	defer cancel()
	var state primacy.State
	var err error
	for state, err = range e.Observe(ctx, primacy.WholeLine) {
		if err == nil && state.Leader == nil && len(state.Waiting) == 0 {
			return
		}
	}
	s.Errorf("%s: somebody was left in the line: %+v, %v", name, state, err)
}

func (h *lockHistory) names() []string {
	n := map[string]int{}
	for _, hold := range h.holds {
		n[hold.name]++
	}
	return sorted(n)
}

func (h *lockHistory) named(name string) []*hold {
	return slices.DeleteFunc(slices.Clone(h.holds), func(h *hold) bool { return h.name != name })
}

func (h *lockHistory) of(kind string) []*hold {
	return slices.DeleteFunc(slices.Clone(h.holds), func(h *hold) bool { return h.kind != kind })
}

// crowd returns for which part of the time none, one, two and so on had one lock of that kind at
// once, or more where it ends.
func (h *lockHistory) crowd(kind string) (part [lockSlots + 2]float64) {
	type change struct {
		name string
		at   time.Duration
		by   int
	}
	var all []change
	for _, o := range h.of(kind) {
		all = append(all, change{o.name, o.back, 1}, change{o.name, max(o.back, o.lastYes), -1})
	}
	slices.SortStableFunc(all, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.name, b.name),
			cmp.Compare(a.at, b.at))
	})
	n, sum := 0, 0.0
	for i, c := range all {
		if i > 0 && all[i-1].name == c.name {
			d := float64(c.at - all[i-1].at)
			part[min(n, len(part)-1)] += d
			sum += d
		}
		n += c.by
	}
	for i := range part {
		part[i] /= max(sum, 1)
	}
	return part
}

// atDeadline is the end of a hold whose process was killed, or frozen or cut off for too long.
const atDeadline = "at the deadline"

// ends counts how holds have ended.
func (h *lockHistory) ends() map[string]int {
	n := map[string]int{}
	for _, o := range h.holds {
		switch {
		case o.early():
			n["taken away before the deadline"]++
		case o.freed.from != 0 && (o.deadline == 0 || o.freed.from < o.deadline):
			n["given back"]++
		default:
			n[atDeadline]++
		}
	}
	return n
}

// lockTable is the end of a run.
func (s *torture) lockTable(l *line, h *lockHistory) string {
	var b strings.Builder
	row := func(what string, value any) { fmt.Fprintf(&b, "  %-50s %v\n", what, value) }
	starts, shares, local, waits := 0, map[string]int{}, 0, map[string]spread{}
	for _, c := range l.candidates {
		starts += c.starts
	}
	for _, o := range h.holds {
		who, _, _ := strings.Cut(o.who, ".")
		shares[who]++
		kind := o.kind
		if o.call.read {
			kind += ", reading"
		}
		waits[kind] = append(waits[kind], o.back-o.called)
		if o.token&255 > 0 {
			local++
		}
	}
	fmt.Fprintf(&b, "locks, seed %d, ttl %v, %d processes started %d times, %d faults of %d kinds\n", s.seed, s.ttl,
		len(l.candidates), starts, len(s.injected), len(s.kinds()))
	for _, kind := range s.kinds() {
		row("  "+kind, len(slices.DeleteFunc(slices.Clone(s.injected),
			func(f injection) bool { return f.kind != kind })))
	}
	row("calls", h.calls)
	row("of these had the lock", len(h.holds))
	row("without it, by why", h.without)
	row("never heard of again", h.unknown)
	row("Checks that said yes", h.asked)
	for _, how := range sorted(h.ends()) {
		row("ended: "+how, h.ends()[how])
	}
	row("handed on inside a process", fmt.Sprintf("%d, %.0f %%", local,
		100*float64(local)/float64(max(1, len(h.holds)))))
	row("times had, by process", shares)
	for _, kind := range sorted(waits) {
		row("waited for "+kind, waits[kind])
	}
	for _, kind := range lockKinds {
		if len(h.of(kind)) > 0 {
			row("part of the time that none, one, … had it, "+kind, fmt.Sprintf("%.2f", h.crowd(kind)))
		}
	}
	return b.String()
}
