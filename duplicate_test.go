package primacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

// page is where a logger writes in these tests.
type page struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.Write(b)
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.String()
}

// duplicatesTold returns a function that says what a session has told of duplicates so far.
func duplicatesTold(t *testing.T, s *Session) func() []Event {
	t.Helper()
	var mu sync.Mutex
	var all []Event
	go func() {
		for ev := range s.Events(t.Context()) {
			mu.Lock()
			if ev.Kind == DuplicateID {
				all = append(all, ev)
			}
			mu.Unlock()
		}
	}()
	return func() []Event {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return append([]Event(nil), all...)
	}
}

// waits campaigns in the background until the test ends.
func waits(t *testing.T, s *Session, names ...string) {
	for _, name := range names {
		go func() { _, _ = s.Election(name).Campaign(t.Context(), nil) }()
	}
	synctest.Wait()
}

// Two processes were given one ID, by a configuration that was copied. Whoever drains that ID, or
// hands over to it, means either. The one that came later says so: once, and with one read.
func TestAnotherProcessOfTheSameIDIsToldOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var log page
		tap := &tapped{Store: b.store, t: t}
		var reads atomic.Int64
		first := b.session("worker-1", b.store, Options{})
		lead := b.lead(first, "n")
		b.lead(first, "m")
		early := duplicatesTold(t, first)
		second := b.session("worker-1", tap, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		told := duplicatesTold(t, second)
		tap.onLine(func() { reads.Add(1) })
		waits(t, second, "n", "m")
		time.Sleep(15*time.Second - time.Millisecond)
		if all := told(); len(all) > 0 || reads.Load() != 0 {
			t.Errorf("told before one and a half TTLs: %+v, %d reads", all, reads.Load())
		}
		time.Sleep(time.Hour)
		all := told()
		if len(all) != 1 || all[0].Lease != lead.Lease() || all[0].Lock ||
			all[0].Name == "n" && all[0].Text != "v-worker-1" || reads.Load() != 2 {
			t.Errorf("told %+v with %d reads, want the lease %s once, and a read for each name", all, reads.Load(),
				lead.Lease())
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		n := 0
		for _, l := range lines {
			if strings.Contains(l, "level=WARN") {
				n++
				for _, want := range []string{"another process has this ID", "leave Options.ID empty",
					"id=worker-1", `"its lease"=` + lead.Lease(), `"its value"=v-worker-1`} {
					if !strings.Contains(l, want) {
						t.Errorf("no %s in %s", want, l)
					}
				}
			}
		}
		if n != 1 {
			t.Errorf("%d warnings in %q", n, log.String())
		}
		if all := early(); len(all) > 0 { // it reads no line
			t.Errorf("the leader told %+v", all)
		}
		if lead.Check() != nil {
			t.Error("the leader's term ended")
		}
	})
}

// What waits under the ID of a leader is told by the leader too, where somebody follows it: Events
// brings each state of the line.
func TestALeaderThatIsFollowedTellsOfADuplicate(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first := b.session("worker-1", b.store, Options{})
		c := first.Candidate("n", nil)
		told := duplicatesTold(t, first)
		go func() {
			_ = c.Run(t.Context(), func(ctx context.Context, _ *Term) error { <-ctx.Done(); return nil })
		}()
		go func() {
			for range c.Events(t.Context()) {
			}
		}()
		synctest.Wait()
		time.Sleep(14 * time.Second)
		second := b.session("worker-1", b.store, Options{})
		waits(t, second, "n")
		if all := told(); len(all) > 0 {
			t.Errorf("told before one and a half TTLs: %+v", all)
		}
		time.Sleep(freshness) // Observe reads again
		lease := must[driver.Line](t)(b.store.Line(t.Context(), "n")).Waiters[0].Lease
		if all := told(); len(all) != 1 || all[0].Lease != lease || all[0].Name != "n" {
			t.Errorf("told %+v, want the lease %s once", all, lease)
		}
		waits(t, b.session("worker-1", b.store, Options{}), "n")
		if all := told(); len(all) != 2 {
			t.Errorf("told %+v, want one more, at once", all)
		}
	})
}

// Of ten thousand lines an Elections reads one at a time.
func TestElectionsTellOfADuplicateWithOneRead(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var names []string
		for i := range 1000 {
			names = append(names, fmt.Sprint("n", i))
		}
		stand := func(s *Session) {
			es := s.Elections(nil)
			t.Cleanup(func() { _ = es.Close(context.Background()) })
			if err := es.Stand(names...); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		stand(b.session("worker-1", b.store, Options{}))
		tap := &tapped{Store: b.store, t: t}
		var reads atomic.Int64
		tap.onLine(func() { reads.Add(1) })
		second := b.session("worker-1", tap, Options{})
		told := duplicatesTold(t, second)
		stand(second)
		time.Sleep(time.Hour)
		if all := told(); len(all) != 1 || reads.Load() != 1 {
			t.Errorf("told %+v with %d reads, want one each", all, reads.Load())
		}
	})
}

// A lock tells too, who tries or shares a lock does not.
func TestALockThatWaitsTellsOfADuplicate(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second := b.session("worker-1", b.store, Options{}), b.session("worker-1", b.store, Options{})
		for _, name := range []string{"n", "m", "k"} {
			must[*Term](t)(first.Mutex(name, nil).Lock(t.Context()))
		}
		told := duplicatesTold(t, second)
		go func() { _, _ = second.RWMutex("m").RLock(t.Context()) }()
		if _, err := second.Mutex("k", nil).TryLock(t.Context()); !errors.Is(err, ErrHeld) {
			t.Errorf("tried: %v", err)
		}
		time.Sleep(30 * time.Second)
		if all := told(); len(all) > 0 {
			t.Errorf("told %+v", all)
		}
		go func() { _, _ = second.Mutex("n", nil).Lock(t.Context()) }()
		time.Sleep(16 * time.Second)
		if all := told(); len(all) != 1 || !all[0].Lock || all[0].Name != "n" {
			t.Errorf("told %+v, want one of the lock n", all)
		}
	})
}

// What is no duplicate: what else this session stands with, and what it stood with under a lease
// that it has lost.
func TestWhatASessionStandsWithItselfIsNoDuplicate(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		other := b.session("other", b.store, Options{})
		b.lead(other, "n")
		b.lead(other, "m")
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("worker-1", net, Options{})
		told := duplicatesTold(t, s)
		c := s.Candidate("n", nil)
		go func() {
			_ = c.Run(t.Context(), func(ctx context.Context, _ *Term) error { <-ctx.Done(); return nil })
		}()
		waits(t, s, "n", "m", "m")
		b.lead(s, "x")
		go func() {
			for range s.Candidate("x", nil).Events(t.Context()) {
			}
		}()
		waits(t, s, "x")
		time.Sleep(time.Minute)
		net.Hang(true)
		time.Sleep(9500 * time.Millisecond) // its lease is over here, and not yet in the store
		net.Hang(false)
		time.Sleep(time.Minute)
		if all := told(); len(all) > 0 {
			t.Errorf("told %+v", all)
		}
		if n := s.Stats().Leases; n != 2 {
			t.Errorf("%d leases, want 2", n)
		}
	})
}

// A process that crashed and was started again under its ID meets its former claim, whose lease
// runs for up to a TTL more.
func TestAClaimOfBeforeARestartIsNoDuplicate(t *testing.T) {
	for _, waited := range []bool{true, false} {
		t.Run(fmt.Sprint("waited ", waited), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				if waited {
					b.lead(b.session("other", b.store, Options{}), "n")
				}
				net := drivertest.Faulty(b.store, drivertest.Faults{})
				before := b.session("worker-1", net, Options{Overrun: OverrunWait})
				waits(t, before, "n")
				if !waited { // else the one that is started again leads at once
					waits(t, b.session("other", b.store, Options{}), "n")
				}
				time.Sleep(time.Minute)
				net.Hang(true) // the store hears no more of it
				s := b.session("worker-1", b.store, Options{})
				told := duplicatesTold(t, s)
				waits(t, s, "n")
				if line, _ := b.store.Line(t.Context(), "n"); len(line.Waiters) != 2 {
					t.Fatalf("the line is %+v", line)
				}
				time.Sleep(time.Hour)
				if all := told(); len(all) > 0 {
					t.Errorf("told %+v", all)
				}
			})
		})
	}
}

// An ID that the library has made is nobody else's: nothing is read for it.
func TestAnIDThatWasMadeHereIsNotLookedFor(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		b.lead(b.session("other", b.store, Options{}), "n")
		tap := &tapped{Store: b.store, t: t}
		var reads atomic.Int64
		tap.onLine(func() { reads.Add(1) })
		s := b.session("", tap, Options{})
		waits(t, s, "n")
		es := s.Elections(nil)
		defer es.Close(context.Background())
		if err := es.Stand("n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if reads.Load() != 0 || s.givenID {
			t.Errorf("%d reads of a line", reads.Load())
		}
	})
}

// Whoever names an ID that two processes wait under is told so, and the leader goes on. It is the
// same while a process that crashed and its successor stand there: the former one would be handed a
// name that nobody leads until its lease has run out.
func TestATransferToTwoOfOneIDIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		c := inLine(t, b, "a")
		term := c.term("a")
		c.stand("b", b.session("same", b.store, Options{}))
		c.stand("c", b.session("same", b.store, Options{}))
		ctx := c.soon()
		said := func(err error) {
			t.Helper()
			if !errors.Is(err, ErrDuplicateID) || !strings.Contains(err.Error(), `"same" waits under the leases `) {
				t.Errorf("got %v, want ErrDuplicateID with the leases", err)
			}
		}
		said(term.Transfer(ctx, "same"))
		_, err := c.sessions["a"].Election("n").Ask(ctx, Request{To: "same"})
		said(err)
		st := must[State](t)(c.sessions["a"].Election("n").State(ctx))
		for i, w := range st.Waiting {
			if want := "lease " + st.Waiting[1-i].Lease + " has the same ID"; w.Note != want || st.Leader.Note != "" {
				t.Errorf("the note of %+v is not %q, or the leader has one: %q", w, want, st.Leader.Note)
			}
		}
		time.Sleep(20 * time.Second)
		if err := term.Check(); err != nil {
			t.Fatalf("the leader: %v", err)
		}
		c.stop["b"]()
		synctest.Wait()
		if err := term.Transfer(ctx, "same"); err != nil {
			t.Fatalf("once one has left: %v", err)
		}
		c.term("c")
	})
}
