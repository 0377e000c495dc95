//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/open"
	pauses "github.com/primacy-go/primacy/pause"
)

// stops is a command that says when it has stopped.
const stops = `trap 'kill $!; sleep 0.2; echo bye; exit 0' TERM; echo up; sleep 1000 & wait`

// deaf is a command that does not stop when it is asked to.
const deaf = `trap '' TERM; echo up; sleep 1000`

// crowd starts a candidate for each ID, one after the other, and returns them; the first leads.
func (w *world) crowd(name string, ids ...string) map[string]*prog {
	w.Helper()
	out := map[string]*prog{}
	for i, id := range ids {
		out[id] = w.start("run", "--id", id, name, "sh", "-c", stops)
		w.awaitLine(name, i+1)
	}
	out[ids[0]].prints("up")
	return out
}

func TestTransferToOneInTheMiddleOfTheLine(t *testing.T) {
	w := newWorld(t)
	line := w.crowd("n", "a", "b", "c", "d")
	w.start("transfer", "n", "--to", "c", "--reason",
		"new kernel").ends(0).says("c\n").complains("c leads n under token ", ", after token ")
	line["a"].ends(exitResigned).says("bye\n").complains(`leadership of "n" under token `,
		"handed over to another candidate, asked by ", "(new kernel)")
	line["c"].prints("up")
	w.eventually("b stands again", func() bool { return len(w.line("n")) == 3 })
	for _, id := range []string{"b", "d"} {
		if out := line[id].out.String(); out != "" {
			t.Errorf("%s led: %q", id, out)
		}
	}
	w.start("leader", "n").ends(0).says("c\n")

	// Who leads already is not asked, and who does not stand neither; the line is named.
	w.start("transfer", "n", "--to", "c").ends(0).says("c\n").complains("c leads n already, under token ")
	w.start("transfer", "n", "--to",
		"x").ends(exitNo).inOneLine().complains(`"x" is not waiting for this election; waiting: `, `"b"`, `"d"`)
	w.start("transfer", "other", "--to", "x").ends(exitNo).inOneLine().complains("nobody leads other")
	if line["c"].out.String() != "up\n" {
		t.Errorf("c stopped: %q", line["c"].out.String())
	}
	// Without --to: the same as resign, and json is the new state.
	p := w.start("transfer", "n", "-o", "json", "--reason", "again").ends(0)
	if st := decode[stateJSON](w, p.out.String()); st.Leader == nil || st.Leader.ID != "d" {
		t.Errorf("d was next: %+v", st)
	}
	line["c"].ends(exitResigned).complains("resigned", "again")
	w.start("transfer", "n", "--to", "").ends(exitUsage).inOneLine().complains("--to is empty")
	w.start("transfer", "n", "--to", "a\nb").ends(exitUsage).inOneLine().complains("ID to transfer to")
	w.start("transfer", "n", "--reason",
		strings.Repeat("x", 300)).ends(exitUsage).inOneLine().complains("--reason has 300 bytes")
}

// With --token nobody is asked who has begun to lead since an operator looked.
func TestATokenNamesTheOnlyTermThatIsAsked(t *testing.T) {
	w := newWorld(t)
	line := w.crowd("n", "a", "b", "c")
	token := func() string {
		st := decode[stateJSON](w, w.start("leader", "n", "-o", "json").ends(0).out.String())
		return st.Leader.Token.String()
	}
	first := token()
	// What a command of run finds in its environment is of another term, and does not count.
	w.with("PRIMACY_TOKEN=1").start("transfer", "n", "--to", "b", "--token", first).ends(0).says("b\n")
	line["a"].ends(exitResigned)
	line["b"].prints("up")
	over := "the term of n under token " + first + " is over: b leads now under token " + token() +
		"; nobody else was asked"
	w.start("resign", "n", "--token", first).ends(exitNo).inOneLine().complains(over)
	for _, to := range []string{"b", "c"} { // also if it leads already, under another token
		w.start("transfer", "n", "--to", to, "--token", first).ends(exitNo).inOneLine().complains(over)
	}
	w.start("resign", "other", "--token", first).ends(exitNo).inOneLine().complains("is over: nobody leads now")
	for _, bad := range []string{"0", "x", "-1", "18446744073709551616"} {
		w.start("resign", "n", "--token="+bad).ends(exitUsage).inOneLine().complains("--token", "is not a token")
	}
	w.start("resign", "n", "--token=").ends(exitUsage).inOneLine().complains("--token is empty")
	if line["b"].out.String() != "up\n" {
		t.Errorf("b stopped: %q", line["b"].out.String())
	}
	w.with("PRIMACY_TOKEN=1").start("resign", "n", "--token", token()).ends(0)
	line["b"].ends(exitResigned)
	w.killAll()
}

func TestATransferThatIsNotObeyedIs124(t *testing.T) {
	w := newWorld(t)
	a := w.start("run", "--id", "a", "--ttl", "60s", "--stop-timeout", "20s", "n", "sh", "-c",
		deaf).prints("up")
	w.start("run", "--id", "b", "n", "sh", "-c", stops)
	w.awaitLine("n", 2)
	w.start("transfer", "--wait", "500ms", "--to", "b",
		"n").ends(exitNotAcquired).inOneLine().complains("to hand over to b, but still leads under token")
	a.signal(syscall.SIGKILL)
	w.killAll()
}

// A successor that goes while the work stops: whoever is next leads, and that is said.
func TestTheHeirGoesWhileTheWorkStops(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	a := w.start("run", "--id", "a", "--ttl", "60s", "--stop-timeout", "20s", "n", "sh", "-c",
		`trap 'kill $!; echo stopping; until [ -e go ]; do sleep 0.05; done; exit 0' TERM; echo up
		sleep 1000 & wait`).prints("up")
	b := w.start("run", "--id", "b", "n", "sh", "-c", stops)
	w.awaitLine("n", 2)
	c := w.start("run", "--id", "c", "n", "sh", "-c", stops)
	w.awaitLine("n", 3)
	p := w.start("transfer", "n", "--to", "c", "--wait", "1m")
	a.prints("stopping")
	c.signal(syscall.SIGTERM).ends(128 + 15)
	w.awaitLine("n", 2)
	w.touch("go")
	p.ends(exitNo).inOneLine().complains("has stopped, but b leads now under token", "not c")
	a.ends(exitResigned).complains("handed over")
	b.prints("up")
}

func TestDrainMovesAllThatOneLeads(t *testing.T) {
	w := newWorld(t)
	run := func(id, name string) *prog { return w.start("run", "--id", id, name, "sh", "-c", stops) }
	var old []*prog
	for _, name := range []string{"one", "two", "alone", "same"} {
		old = append(old, run("old", name).prints("up"))
	}
	mine := run("new", "mine").prints("up")
	news := map[string]*prog{}
	for _, name := range []string{"one", "two"} {
		news[name] = run("new", name)
		w.awaitLine(name, 2)
	}
	twin := run("old", "same") // another process of the same ID is no other
	w.awaitLine("same", 2)
	p := w.start("drain", "old", "--reason", "new kernel").ends(exitNo)
	p.says("one: moved: new leads under token ", "two: moved: new leads under token ",
		"alone: not moved: no other candidate is waiting",
		"same: not moved: no other candidate is waiting but another process with the ID old: "+
			"give each process its own")
	p.complains("old still leads 2 of the 4 it led")
	if strings.Contains(p.out.String(), "mine") || mine.out.String() != "up\n" {
		t.Errorf("what another leads was touched: %q", p.out.String())
	}
	for i, name := range []string{"one", "two"} {
		old[i].ends(exitResigned).says("bye\n").complains("handed over to another candidate", "new kernel")
		news[name].prints("up")
	}
	for _, q := range append(old[2:], mine) {
		if q.out.String() != "up\n" {
			t.Errorf("%v stopped: %q", q, q.out.String())
		}
	}
	if twin.out.String() != "" {
		t.Errorf("the twin led: %q", twin.out.String())
	}

	// As JSON, sorted, with the numbers as strings; ndjson in the order in which they are known.
	moves := decode[[]moveJSON](w, w.start("drain", "old", "-o", "json").ends(exitNo).out.String())
	if len(moves) != 2 || moves[0].Name != "alone" || moves[0].Result != "left" || moves[0].Leader.ID != "old" ||
		moves[0].Leader.Token != moves[0].Token {
		t.Errorf("got %+v", moves)
	}
	old[2].signal(syscall.SIGTERM).ends(0)
	twin.signal(syscall.SIGTERM).ends(128 + 15)
	old[3].signal(syscall.SIGTERM).ends(0)
	p = w.start("drain", "old", "-o", "json").ends(exitNo).complains("no candidate has the ID old")
	if strings.TrimSpace(p.out.String()) != "[]" {
		t.Errorf("got %q, want an empty array", p.out.String())
	}
	w.start("drain").ends(exitUsage).inOneLine().complains("give one HOST")
	w.start("drain", "").ends(exitUsage).inOneLine().complains("give one HOST")
}

// Candidates without --id are HOST-PID-XXXX: an operator names the host. One host's name is the
// beginning of another's here, and each host has two candidates.
func TestAHostIsDrainedAndTransferredTo(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	stand := func(id, name string, place int) *prog {
		p := w.start("run", "--id", id, name, "sh", "-c", stops)
		w.awaitLine(name, place)
		return p
	}
	one, two := stand("web-2-71-aa01", "one", 1), stand("web-2-72-aa02", "two", 1)
	stand("web-2-73-aa03", "one", 2) // of the same host: nothing moves there
	stand("web-4411-aa04", "one", 3) // the host "web"
	stand("web-20.example.com-5-aa05", "two", 2)
	stand("web-20.example.com-6-aa06", "two", 3)
	p := w.start("drain", "web-2").ends(0)
	p.says("one: moved: web-4411-aa04 leads under token ", "two: moved: web-20.example.com-5-aa05 leads")
	p.complains("on web-2: web-2-71-aa01, web-2-73-aa03, web-2-72-aa02")
	one.ends(exitResigned)
	two.ends(exitResigned)
	w.start("drain", "web-2").ends(0).complains("web-2 leads nothing")
	w.start("drain", "web-1").ends(exitNo).inOneLine().complains("no candidate has the ID web-1 or is on a host")
	w.start("drain", "we").ends(exitNo).inOneLine().complains("no candidate has the ID we")

	// By the short name of the host, by its whole name; a host with two candidates is told.
	w.start("transfer", "two", "--to", "web-20").ends(0).complains("web-20.example.com-5-aa05 leads two already")
	w.start("transfer", "one", "--to", "web-2").ends(0).says("web-2-73-aa03\n")
	stand("web-20.example.com-7-aa07", "one", 2)
	stand("web-20.example.com-8-aa08", "one", 3)
	w.start("transfer", "one", "--to", "web-20.example.com").ends(exitNo).inOneLine().complains(
		"2 candidates on web-20.example.com are waiting", "web-20.example.com-7-aa07, web-20.example.com-8-aa08")
	w.start("transfer", "one", "--to", "web-20.example.com-8-aa08").ends(0).says("web-20.example.com-8-aa08\n")
	w.start("transfer", "one", "--to", "web-1").ends(exitNo).inOneLine().complains(
		`"web-1" is not waiting for this election`)
	stand("web-20.other.net-9-aa09", "two", 3)
	w.start("drain", "web-20").ends(exitNo).inOneLine().complains(
		"web-20 may be any of the hosts web-20.example.com, web-20.other.net")
}

// One that does not stop is told as late, and the exit code says so.
func TestDrainOfOneThatDoesNotStop(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	for i, id := range []string{"old", "new"} {
		e := w.session(id).Election("deaf")
		go func() { _, _ = e.Campaign(t.Context(), nil) }()
		w.awaitLine("deaf", i+1)
	}
	p := w.start("drain", "old", "-o", "ndjson", "--wait", "3s").ends(exitNotAcquired)
	if m := decode[moveJSON](w, p.out.String()); m.Name != "deaf" || m.Result != "late" || m.Leader.ID != "old" {
		t.Errorf("got %+v", m)
	}
}

// session is a session of this process in the store of the world.
func (w *world) session(id string) *primacy.Session {
	w.Helper()
	st, err := open.Open(w.Context(), w.store)
	if err != nil {
		w.Fatal(err)
	}
	s, err := primacy.NewSession(st, &primacy.Options{ID: id, TTL: 30 * time.Second})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(ctx)
		_ = st.Close()
	})
	return s
}

func TestPriorityOfRun(t *testing.T) {
	w := newWorld(t)
	low := w.start("run", "--id", "low", "n", "sh", "-c", stops).prints("up")
	mid := w.start("run", "--id", "mid", "--priority", "1", "--steady", "1h", "n", "sh", "-c", stops)
	w.awaitLine("n", 2)
	high := w.with("PRIMACY_PRIORITY=5", "PRIMACY_STEADY=1s").start("run", "--id", "high", "n", "sh", "-c", stops)
	low.ends(exitResigned).says("bye\n").complains("asked by high (priority 5)")
	high.prints("up")
	w.start("leader", "n", "--is", "high").ends(0)
	if mid.out.String() != "" {
		t.Errorf("mid led: %q", mid.out.String())
	}
	w.start("run", "--priority", "-1", "n",
		"true").ends(exitUsage).inOneLine().complains("--priority and --steady must not be negative")
}

func TestTransferIsInTheHelp(t *testing.T) {
	w := newWorld(t)
	w.start("--help").ends(0).says("transfer ", "drain ")
	for _, verb := range []string{"transfer", "drain"} {
		w.start(verb, "--help").ends(0).says("Usage:\n  primacy "+verb, "--reason", "--wait")
	}
	if out := w.start("run", "--help").ends(0).out.String(); !slices.ContainsFunc(strings.Split(out, "\n"),
		func(l string) bool { return strings.Contains(l, "--priority") }) {
		t.Errorf("run --help: %q", out)
	}
}

// TestTransfersOnEtcdLeaveNoMomentWithoutAClaim looks at each revision that a real etcd goes
// through while a name is handed about: the line is never empty, and it is led by those alone who
// were named, one after the other.
func TestTransfersOnEtcdLeaveNoMomentWithoutAClaim(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{w.server.Addr()}, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	before, err := cli.Get(ctx, w.prefix+"n/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	events := cli.Watch(ctx, w.prefix+"n/", clientv3.WithPrefix(), clientv3.WithRev(before.Header.Revision+1))

	won, ids := make(chan *primacy.Term), []string{"a", "b", "c", "d", "e"}
	for _, id := range ids {
		s := w.session(id)
		go func() {
			for ctx.Err() == nil {
				term, err := s.Election("n").Campaign(ctx, nil)
				if err != nil {
					return
				}
				won <- term
				<-term.Context().Done()
			}
		}()
	}
	looks := w.session("looks").Election("n")
	term := <-won
	want := []int64{int64(term.Token())}
	for len(want) < 30 {
		to := ids[rand.IntN(len(ids))]
		err := term.Transfer(ctx, to)
		if errors.Is(err, primacy.ErrNotInLine) || errors.Is(err, primacy.ErrInvalid) {
			time.Sleep(5 * time.Millisecond) // it stands again in a moment, or leads
			continue
		}
		if err != nil {
			t.Fatalf("transfer to %s: %v", to, err)
		}
		next := <-won
		if st, err := looks.State(ctx); err != nil || st.Leader == nil || st.Leader.ID != to ||
			st.Leader.Token != next.Token() || next.Check() != nil {
			t.Fatalf("handed over to %s: the state is %+v, %v; token %v won, check %v", to, st.Leader, err,
				next.Token(), next.Check())
		}
		term = next
		want = append(want, int64(term.Token()))
	}
	if got := holdersSeen(t, events, want[len(want)-1]); !slices.Equal(got, want) {
		t.Errorf("the line was led by the claims %v, want %v", got, want)
	}
}

// holdersSeen plays the events of a line, revision by revision, and returns which claims led, until
// the last of them does.
func holdersSeen(t *testing.T, events clientv3.WatchChan, last int64) (seen []int64) {
	line := map[string]int64{} // create revisions
	for resp := range events {
		for i, e := range resp.Events {
			if e.Type == mvccpb.DELETE {
				delete(line, string(e.Kv.Key))
			} else {
				line[string(e.Kv.Key)] = e.Kv.CreateRevision
			}
			if i+1 < len(resp.Events) && resp.Events[i+1].Kv.ModRevision == e.Kv.ModRevision {
				continue // of one Txn: nobody sees what is between
			}
			if len(line) == 0 {
				t.Errorf("at revision %d nobody stands", e.Kv.ModRevision)
				continue
			}
			first := int64(1<<63 - 1)
			for _, at := range line {
				first = min(first, at)
			}
			if len(seen) == 0 || seen[len(seen)-1] != first {
				seen = append(seen, first)
			}
		}
		if len(seen) > 0 && seen[len(seen)-1] == last {
			break
		}
	}
	return seen
}

// What was given up, and nobody leads after it, is no move, and is not what one still leads.
func TestADrainSaysWhatNobodyLeads(t *testing.T) {
	led := primacy.State{Leader: &primacy.Entry{ID: "old", Token: 3}}
	gone := handover.Move{Name: "gone", Token: 5, Result: handover.Failed, Err: fmt.Errorf("%w, and nobody leads",
		handover.ErrGivenUp)}
	stays := handover.Move{Name: "stays", Token: 3, Result: handover.Left, Now: led, Err: errors.New("nobody waits")}
	for _, c := range []struct {
		moves []handover.Move
		sum   string
	}{
		{[]handover.Move{gone}, "1 of the 1 that old led have no leader that is known to live"},
		{[]handover.Move{gone, stays},
			"old still leads 1 of the 2 it led; 1 of the 2 that old led have no leader that is known to live"},
	} {
		for _, output := range []string{"table", "json"} {
			var out strings.Builder
			d := drained{app: &app{stdout: &out, output: output}, id: "old", known: []string{"old"}}
			for _, move := range c.moves {
				d.tell(move)
			}
			if err := d.sum(); codeOf(err) != exitNo || err.Error() != c.sum {
				t.Errorf("%v, code %d", err, codeOf(err))
			}
			want := "gone: it was given up, and nobody leads\n"
			if output == "json" {
				want = `"error": "it was given up, and nobody leads"`
			}
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %s", output, out.String())
			}
		}
	}
}

// A transfer to a process that was killed, and whose ID waits under another lease, is not done.
func TestATransferToAnEarlierProcessIsNoSuccess(t *testing.T) {
	var out strings.Builder
	a := &app{stdout: &out, stderr: &out, output: "table"}
	st := primacy.State{Name: "n", Leader: &primacy.Entry{ID: "c", Token: 5, Lease: "4"},
		Waiting: []primacy.Entry{{ID: "c", Token: 9, Lease: "8"}}}
	err := (&request{to: "c"}).answered(t.Context(), a, nil, st, 3)
	if codeOf(err) != exitNo || !strings.Contains(err.Error(),
		"n, under token 3: it was given up, and handed to an earlier process of c, which may be dead") {
		t.Errorf("code %d: %v", codeOf(err), err)
	}
	st.Waiting[0].Lease = "4" // another claim of the same process
	if err := (&request{to: "c"}).answered(t.Context(), a, nil, st, 3); err != nil {
		t.Error(err)
	}
}

// noAdmissions is a store that refuses to write what is paused, and who is admitted.
type noAdmissions struct{ *memstore.Store }

func (noAdmissions) Append(context.Context, string, driver.Record, int) (driver.Record, bool, error) {
	return driver.Record{}, false, driver.ErrRefused
}

// A transfer of a shard is not asked for if a pause of its group keeps out whom it names.
func TestATransferOfAShardAsksForItsGroup(t *testing.T) {
	st := memstore.New(memstore.Options{})
	session := func(st driver.Store, id string) *primacy.Session {
		s, err := primacy.NewSession(st, &primacy.Options{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_ = s.Close(ctx) // what it leads nobody resigns
		})
		return s
	}
	one, two, ops := session(st, "a"), session(st, "b"), session(noAdmissions{st}, "ops")
	e := ops.Election("g/0001")
	value := &primacy.CampaignOptions{Value: []byte(`{"shards":8,"instance":"i","weight":1,"ready":true}`)}
	for _, name := range []string{"g", "g/0001"} {
		if _, err := one.Election(name).Campaign(t.Context(), value); err != nil {
			t.Fatal(err)
		}
	}
	go func() { _, _ = two.Election("g/0001").Campaign(t.Context(), nil) }()
	for st, err := range e.Observe(t.Context(), primacy.WholeLine) {
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Waiting) == 1 {
			break
		}
	}
	p := pauses.Pause{Scope: "g", By: "ann", Reason: "drill", NoElections: true}
	if _, err := pauses.Set(t.Context(), st, p); err != nil {
		t.Fatal(err)
	}
	m, err := handover.NewMover(ops, ops.Store(), "", time.Minute, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	a := &app{timeout: time.Minute}
	if _, err := (&request{to: "b"}).ask(t.Context(), a, m, e); !errors.Is(err, pauses.ErrNotAdmitted) {
		t.Errorf("asked: %v", err)
	}
	if _, err := (&request{}).ask(t.Context(), a, m, e); !errors.Is(err, handover.ErrNobodyFollows) ||
		!strings.Contains(err.Error(), "or give --force") {
		t.Errorf("asked to resign: %v", err)
	}
}
