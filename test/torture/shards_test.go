//go:build linux

package torture

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/safety"
	"github.com/primacy-go/primacy/shards"
)

const shardMembers = 8

// TestShards has members of one group of 256 shards join, leave, crash, freeze and be cut off, one
// event after the other, and judges what they recorded: no shard ever had two owners, and at most
// 1.2 times as many shards moved between living members as loads that differ by one demand. In 90 s
// and more each was also owned for at least 99 % of the time outside faults and outside stalls of
// this machine; in less, one slow hand-over is more than the hundredth.
//
// SHARDS_FOR is how long (default 20s with -short, 90s otherwise), TORTURE_TTL the lease (default
// 3s). A member may lose its lease without a fault only if this machine stood still for a tenth of
// the TTL meanwhile: that counts as a fault then, and is told.
func TestShards(t *testing.T) {
	t.Parallel()
	d := forHow(t, "SHARDS_FOR", briefly(20*time.Second, 90*time.Second))
	seed := newSeed(t)
	t.Logf("TORTURE_SEED=%d SHARDS_FOR=%v", seed, d)
	f := &shardFleet{T: t, rng: rand.New(rand.NewPCG(seed, 19)), dir: t.TempDir(),
		etcd: etcdtest.Start(t, etcdtest.Options{}), ttl: forHow(t, "TORTURE_TTL", 3*time.Second)}
	f.reader = openSession(t, primacy.Options{ID: "reader"}, f.etcd.Endpoint())
	f.stalls = watchServer(t, func() { _ = f.etcd.Post("/v3/kv/put", map[string]string{"key": "c3RhbGxz"}, nil) })
	for range shardMembers {
		f.start(f.newID())
	}
	f.settle("start")
	events := []func(){f.joinOne, f.leaveOne, f.killOne, f.freezeOne, f.cutOne, f.hiccup, f.killAssigner}
	for end, n := boottime.Now()+d, 0; boottime.Now() < end; n++ {
		if n%len(events) == 0 {
			f.rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		}
		events[n%len(events)]()
	}
	f.settle("end")
	f.judge(d >= 90*time.Second)
}

// shardFleet is the group's members, and what was done to them.
type shardFleet struct {
	*testing.T
	rng    *rand.Rand
	dir    string
	etcd   *etcdtest.Server
	ttl    time.Duration
	reader *primacy.Session
	stalls *stalls
	count  int
	live   []*shardProc
	events []shardEvent
	files  []string
}

// shardProc is a member's process.
type shardProc struct {
	id   string
	cmd  *exec.Cmd
	link *etcdtest.Proxy
	done chan struct{}
}

// shardEvent is something that was done to the fleet.
type shardEvent struct {
	what     string
	from, to time.Duration // to: when the fleet was seen settled
	fault    bool          // shards may be without an owner meanwhile
	joined   bool          // a member came: members are those after it
	left     string        // who left in order
	of       string        // who loses its lease by it
	members  []string
}

func (f *shardFleet) newID() string { f.count++; return fmt.Sprintf("m%d", f.count) }

// start starts a member's process.
func (f *shardFleet) start(id string) *shardProc {
	f.Helper()
	p := &shardProc{id: id, link: etcdtest.NewProxy(f, f.etcd.Addr()), done: make(chan struct{})}
	self, err := os.Executable()
	if err != nil {
		f.Fatal(err)
	}
	file := filepath.Join(f.dir, id)
	if !slices.Contains(f.files, file) {
		f.files = append(f.files, file)
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), helperEnv+"=shards", storeEnv+"=etcd://"+p.link.Addr(), shardIDEnv+"="+id,
		shardFileEnv+"="+file, shardTTLEnv+"="+f.ttl.String())
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		f.Fatal(err)
	}
	go func() {
		if err := p.cmd.Wait(); stderr.Len() > 0 {
			f.Errorf("member %s: %v: %s", id, err, stderr.String())
		}
		close(p.done)
	}()
	f.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.done })
	f.live = append(f.live, p)
	return p
}

func (f *shardFleet) ids() (all []string) {
	for _, p := range f.live {
		all = append(all, p.id)
	}
	return all
}

// settle waits until each shard has an owner that acts, loads differ by at most one, and nothing
// moves. The store names an owner before that one has heard of it.
func (f *shardFleet) settle(what string) {
	f.Helper()
	var last string
	ok := within(time.Minute, func() bool {
		time.Sleep(100 * time.Millisecond)
		ctx, cancel := context.WithTimeout(f.Context(), 5*time.Second)
		defer cancel()
		st, err := shards.Read(ctx, f.reader, shardGroup)
		if err != nil {
			last = err.Error()
			return false
		}
		low, high := shardCount, 0
		for _, m := range st.Members {
			low, high = min(low, m.Owns), max(high, m.Owns)
		}
		last = fmt.Sprintf("%d members of %d, loads %d to %d, %d without owner, %d moves", len(st.Members), len(f.live),
			low, high, len(st.Unowned()), len(st.Moves))
		if len(st.Members) != len(f.live) || high-low > 1 || len(st.Unowned())+len(st.Moves) > 0 {
			return false
		}
		acted := f.acted()
		last += fmt.Sprintf(", and their members act for %d", acted)
		return acted == shardCount
	})
	if !ok {
		f.logs()
		f.Fatalf("after %s the fleet does not settle: %s", what, last)
	}
}

// acted returns for how many shards the living members acted last.
func (f *shardFleet) acted() (n int) {
	for _, p := range f.live {
		text, _ := os.ReadFile(filepath.Join(f.dir, p.id))
		if i := bytes.LastIndex(text, []byte(" own")); i >= 0 {
			line, _, _ := bytes.Cut(text[i:], []byte("\n"))
			n += len(bytes.Fields(line)) - 1
		}
	}
	return n
}

// logs shows the end of each member's log.
func (f *shardFleet) logs() {
	f.Helper()
	for _, path := range f.files {
		text, _ := os.ReadFile(path + ".log")
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		f.Logf("the end of %s's log:\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
}

// do records an event: act does it, and then the fleet has to settle.
func (f *shardFleet) do(e shardEvent, act func(e *shardEvent)) {
	f.Helper()
	e.from = boottime.Now()
	act(&e)
	if e.joined && e.members == nil {
		e.members = f.ids()
	}
	f.settle(e.what)
	e.to = boottime.Now()
	f.events = append(f.events, e)
	time.Sleep(between(f.rng, 200*time.Millisecond, time.Second))
}

// any returns a live member.
func (f *shardFleet) any() *shardProc { return f.live[f.rng.IntN(len(f.live))] }

func (f *shardFleet) remove(p *shardProc) {
	f.live = slices.DeleteFunc(f.live, func(o *shardProc) bool { return o == p })
}

func (f *shardFleet) joinOne() {
	if len(f.live) < shardMembers+2 {
		f.do(shardEvent{what: "join", joined: true}, func(*shardEvent) { f.start(f.newID()) })
	}
}

func (f *shardFleet) leaveOne() {
	if len(f.live) < 4 {
		return
	}
	p := f.any()
	f.do(shardEvent{what: "leave of " + p.id, left: p.id}, func(*shardEvent) {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			f.Error(err)
		}
		select {
		case <-p.done:
		case <-time.After(20 * time.Second):
			f.Errorf("%s did not leave within 20 s", p.id)
		}
		f.remove(p)
	})
}

// killOne kills a member, which is started again under its ID before or after its lease has run
// out, or not at all.
func (f *shardFleet) killOne() {
	p := f.any()
	again := f.rng.IntN(3)
	if again == 0 && len(f.live) < 4 {
		again = 1
	}
	kill := func(*shardEvent) {
		_ = p.cmd.Process.Kill()
		<-p.done
		f.remove(p)
	}
	switch again {
	case 0:
		f.do(shardEvent{what: "kill of " + p.id, fault: true}, kill)
	case 1:
		f.do(shardEvent{what: "kill and quick restart of " + p.id, fault: true}, func(*shardEvent) {
			kill(nil)
			time.Sleep(between(f.rng, 0, f.ttl/3))
			f.start(p.id)
			time.Sleep(f.ttl + 3*time.Second) // until then the store may show the dead process as the owner
		})
	default:
		f.do(shardEvent{what: "kill of " + p.id, fault: true}, kill)
		f.do(shardEvent{what: "restart of " + p.id, joined: true}, func(*shardEvent) { f.start(p.id) })
	}
}

// freezeOne freezes a member beyond its lease. Once thawed it joins again.
func (f *shardFleet) freezeOne() {
	p := f.any()
	f.beyondItsLease("freeze of "+p.id, p, func() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) },
		func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) })
}

// cutOne cuts a member off from the store beyond its lease.
func (f *shardFleet) cutOne() {
	p := f.any()
	f.beyondItsLease("cut of "+p.id, p, func() { p.link.Hold(etcdtest.Up, etcdtest.Down) }, p.link.Heal)
}

// beyondItsLease has the others take the shards of a member that cannot renew, and then lets it
// come back.
func (f *shardFleet) beyondItsLease(what string, p *shardProc, begin, end func()) {
	if len(f.live) < 3 {
		return
	}
	f.do(shardEvent{what: what, fault: true, of: p.id}, func(*shardEvent) {
		begin()
		f.remove(p)
	})
	f.do(shardEvent{what: "end of " + what, joined: true, of: p.id}, func(*shardEvent) {
		end()
		f.live = append(f.live, p)
	})
}

// hiccup freezes or cuts a member for so short that nothing must happen.
func (f *shardFleet) hiccup() {
	p := f.any()
	f.do(shardEvent{what: "hiccup of " + p.id}, func(*shardEvent) {
		if f.rng.IntN(2) == 0 {
			_ = p.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(f.ttl / 6)
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
			return
		}
		p.link.Hold(etcdtest.Up, etcdtest.Down)
		time.Sleep(f.ttl / 6)
		p.link.Heal()
	})
}

// killAssigner kills the assigner while shards move to a new member.
func (f *shardFleet) killAssigner() {
	if len(f.live) < 4 || len(f.live) > shardMembers {
		return
	}
	f.do(shardEvent{what: "join, and kill of the assigner", joined: true, fault: true}, func(e *shardEvent) {
		f.start(f.newID())
		e.members = f.ids()
		time.Sleep(between(f.rng, 300*time.Millisecond, 1500*time.Millisecond))
		st, err := shards.Read(f.Context(), f.reader, shardGroup)
		if err != nil {
			f.Logf("no assigner is killed: %v", err)
			return
		}
		for _, p := range slices.Clone(f.live) {
			if p.id == st.Assigner {
				_ = p.cmd.Process.Kill()
				<-p.done
				f.remove(p)
			}
		}
	})
}

// shardRecord is what all members recorded.
type shardRecord struct {
	terms  []safety.Interval   // of each term, from the first act to the last
	pieces [][]safety.Interval // for each shard: when its owners acted, by when they began
	moved  map[string]bool     // "shard token"
	lost   []shardLoss
}

// shardLoss is a term whose lease was lost though nothing was done to its member that costs one.
type shardLoss struct {
	at, stood time.Duration // stood: for how long its process stood still in the TTL before
	who       string
}

// readShardRecords reads the members' files.
func (f *shardFleet) readShardRecords() shardRecord {
	f.Helper()
	rec := shardRecord{pieces: make([][]safety.Interval, shardCount), moved: map[string]bool{}}
	type key struct {
		shard int
		token uint64
		who   string
	}
	term, piece := map[key]int{}, map[key]int{}
	act := func(at time.Duration, shard int, token uint64, who string) {
		k := key{shard, token, who}
		one := safety.Interval{Name: strconv.Itoa(shard), Token: token, Who: who, From: at, To: at}
		if i, ok := term[k]; ok {
			rec.terms[i].From, rec.terms[i].To = min(rec.terms[i].From, at), max(rec.terms[i].To, at)
		} else {
			term[k] = len(rec.terms)
			rec.terms = append(rec.terms, one)
		}
		all := rec.pieces[shard]
		if i, ok := piece[k]; ok && at-all[i].To <= 10*shardActEvery {
			all[i].To = max(all[i].To, at)
			return
		}
		piece[k] = len(all)
		rec.pieces[shard] = append(all, one)
	}
	for _, path := range f.files {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		var owned []string
		var acts []time.Duration
		for lines := bufio.NewScanner(bytes.NewReader(text[:bytes.LastIndexByte(text, '\n')+1])); lines.Scan(); {
			w := strings.Fields(lines.Text())
			ns, err := strconv.ParseInt(w[0], 10, 64)
			if err != nil || len(w) < 2 {
				f.Fatalf("%s: %q", path, lines.Text())
			}
			at, who := time.Duration(ns), filepath.Base(path)
			switch w[1] {
			case "own":
				owned = w[2:]
				acts = append(acts, at)
			case "same":
				acts = append(acts, at)
			case "one":
				shard, token := shardAndToken(w[2] + ":" + w[3])
				act(at, shard, token, who)
				continue
			case "moved":
				rec.moved[w[2]+" "+w[3]] = true
				continue
			case "lost":
				if !f.planned(at, who) {
					rec.lost = append(rec.lost, shardLoss{at, f.stood(acts, at), who})
				}
				continue
			}
			for _, o := range owned {
				shard, token := shardAndToken(o)
				act(at, shard, token, who)
			}
		}
	}
	for _, all := range rec.pieces {
		slices.SortFunc(all, func(a, b safety.Interval) int { return cmp.Compare(a.From, b.From) })
	}
	return rec
}

// planned says whether that member was to lose its lease at that time. It may know only once it is
// thawed.
func (f *shardFleet) planned(at time.Duration, who string) bool {
	return slices.ContainsFunc(f.events, func(e shardEvent) bool {
		return e.of == who && e.from <= at && at <= e.to
	})
}

// stood returns for how long a member that acted at these times did not get to it in the TTL before
// at, beyond what a hiccup holds it up.
func (f *shardFleet) stood(acts []time.Duration, at time.Duration) time.Duration {
	sum, last := -f.ttl/6, at
	for _, a := range slices.Backward(acts) {
		if sum += max(0, last-a-10*shardActEvery); a < at-f.ttl {
			break
		}
		last = a
	}
	return max(0, sum)
}

func shardAndToken(text string) (shard int, token uint64) {
	a, b, _ := strings.Cut(text, ":")
	shard, _ = strconv.Atoi(a)
	token, _ = strconv.ParseUint(b, 10, 64)
	return shard, token
}

// owners returns who acted for each shard at that time, or last before it within 100 ms.
func (r shardRecord) owners(at time.Duration) []string {
	all := make([]string, shardCount)
	for i, pieces := range r.pieces {
		for _, p := range pieces {
			if p.From <= at && at <= p.To+5*shardActEvery {
				all[i] = p.Who
			}
		}
	}
	return all
}

// judge judges the record, and the share of time owned if long.
func (f *shardFleet) judge(long bool) {
	f.Helper()
	if len(f.events) == 0 {
		f.Fatal("nothing was done to the members")
	}
	rec := f.readShardRecords()
	if err := safety.Check(rec.terms); err != nil {
		f.Errorf("the promise was broken: %v", err)
	}
	overlaps := len(safety.Overlaps(rec.terms))
	least := 0
	for _, e := range f.events {
		switch owners := rec.owners(e.from); {
		case e.left != "":
			for _, id := range owners {
				if id == e.left {
					least++
				}
			}
		case e.joined:
			least += leastMoves(owners, e.members)
		}
	}
	back, wrong := f.excuse(rec.lost)
	least += back
	share, longest := f.outsideFaults(rec.owned())
	acted, _ := f.outsideFaults(rec.pieces)
	f.Logf("%d events, %d terms; instants with two owners: %d; moves %d, the least possible %d (%.2f times); "+
		"owned %.3f %% of the time outside faults (owners that acted each 200 ms: %.3f %%)", len(f.events),
		len(rec.terms), overlaps, len(rec.moved), least, float64(len(rec.moved))/float64(max(1, least)), 100*share,
		100*acted)
	for _, gap := range longest {
		f.Logf("longest without an owner: %s", gap)
	}
	if overlaps > 0 {
		f.Errorf("%d pairs of terms overlap", overlaps)
	}
	for _, text := range wrong[:min(len(wrong), 5)] {
		f.Error(text)
	}
	if float64(len(rec.moved)) > 1.2*float64(least) {
		f.Errorf("%d moves, more than 1.2 times the least possible, %d", len(rec.moved), least)
	}
	from, to := f.events[0].from, f.events[len(f.events)-1].to
	stood := float64(f.stalls.during(from, to)) / float64(to-from)
	f.Logf("this machine stood still for %.2f %% of the time", 100*stood)
	if long && share < 0.99-stood {
		f.logs()
		f.Errorf("shards were owned for %.2f %% of the time outside faults", 100*share)
	}
}

// excuse makes a fault of each loss that a stall of this machine can have caused, and returns how
// many shards move back by them once their owners have joined again. Each other loss is wrong.
func (f *shardFleet) excuse(lost []shardLoss) (back int, wrong []string) {
	f.Helper()
	for _, l := range lost {
		machine := f.stalls.during(l.at-f.ttl, l.at)
		if machine+l.stood < f.ttl/10 {
			wrong = append(wrong, fmt.Sprintf("%s lost a term at %v though nothing was done to it that costs a lease, "+
				"and in the TTL before this machine stood still for %v, its process for %v", l.who, l.at, machine,
				l.stood))
			continue
		}
		back++
		i := slices.IndexFunc(f.events, func(e shardEvent) bool { return e.to >= l.at })
		if i < 0 {
			continue // after the last event: nothing is judged there
		}
		e := &f.events[i]
		if !e.fault {
			f.Logf("%s lost its lease about the %s: this machine stood still for %v, the process for %v", l.who, e.what,
				machine, l.stood)
		}
		e.fault, e.from = true, min(e.from, l.at)
	}
	return back, wrong
}

// leastMoves is how many shards must go from a living member to another so that loads of these
// members differ by at most one, given who owns what. Members that hold most keep the larger parts.
func leastMoves(owners, members []string) (n int) {
	var held []int
	for _, id := range members {
		load := 0
		for _, o := range owners {
			if o == id {
				load++
			}
		}
		held = append(held, load)
	}
	slices.Sort(held)
	slices.Reverse(held)
	for i, load := range held {
		quota := len(owners) / len(members)
		if i < len(owners)%len(members) {
			quota++
		}
		n += max(0, load-quota)
	}
	return n
}

// owned returns for each shard when it had an owner, by when they began. A term that acts again has
// lasted in between: Check never says yes again once it has said no.
func (r shardRecord) owned() [][]safety.Interval {
	all := make([][]safety.Interval, shardCount)
	for _, t := range r.terms {
		shard, _ := strconv.Atoi(t.Name)
		all[shard] = append(all[shard], t)
	}
	for _, terms := range all {
		slices.SortFunc(terms, func(a, b safety.Interval) int { return cmp.Compare(a.From, b.From) })
	}
	return all
}

// outsideFaults returns which part of the time these intervals cover, of all shards together, from
// the first event to the last, and the longest gaps. Faults count until the fleet has settled after
// them.
func (f *shardFleet) outsideFaults(shards [][]safety.Interval) (share float64, longest []string) {
	type gap struct {
		shard    int
		from, to time.Duration
	}
	var gaps []gap
	var without, all time.Duration
	count := func(from, to time.Duration) {
		if to <= from {
			return
		}
		all += (to - from) * shardCount
		for i, terms := range shards {
			last := from // covered up to here
			for _, t := range append(slices.Clone(terms), safety.Interval{From: to, To: to}) {
				if begin := min(t.From, to); begin > last {
					gaps = append(gaps, gap{i, last, begin})
					without += begin - last
				}
				last = max(last, min(t.To+shardActEvery, to))
			}
		}
	}
	at := f.events[0].from
	for _, e := range f.events {
		if e.fault {
			count(at, e.from)
			at = e.to
		}
	}
	count(at, f.events[len(f.events)-1].to)
	slices.SortFunc(gaps, func(a, b gap) int { return cmp.Compare(b.to-b.from, a.to-a.from) })
	for _, g := range gaps[:min(len(gaps), 5)] {
		text := fmt.Sprintf("shard %d for %v", g.shard, (g.to - g.from).Round(time.Millisecond))
		for _, e := range f.events {
			if e.from <= g.to && g.from <= e.to {
				text += fmt.Sprintf(", beginning %v after the %s", (g.from - e.from).Round(time.Millisecond), e.what)
			}
		}
		longest = append(longest, text)
	}
	return float64(all-without) / float64(all), longest
}
