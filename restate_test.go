package primacy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// updates is a store whose calls of Update go through do.
type updates struct {
	driver.Store
	do func(l driver.Lease, ctx context.Context, p driver.Place, value []byte) error
}

type updatesLease struct {
	driver.Lease
	u *updates
}

func (u *updates) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := u.Store.Grant(ctx, owner, ttl)
	if err != nil {
		return nil, err
	}
	return &updatesLease{l, u}, nil
}

func (l *updatesLease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return l.u.do(l.Lease, ctx, p, value)
}

// stand has a session campaign in the background, and returns what Campaign will. It gives up at
// the end of the test.
func (b *world) stand(s *Session, name, value string) <-chan *Term {
	won := make(chan *Term, 1)
	ctx, cancel := context.WithCancel(context.Background())
	b.t.Cleanup(cancel)
	go func() {
		if t, err := s.Election(name).Campaign(ctx, &CampaignOptions{Value: []byte(value)}); err == nil {
			won <- t
		}
	}()
	synctest.Wait()
	return won
}

// line returns the line as text: "a=1 b=2", the leader first.
func (b *world) line(name string) string {
	b.t.Helper()
	l, err := b.store.Line(context.Background(), name)
	if err != nil {
		b.t.Fatal(err)
	}
	return lineText(stateOf(l))
}

func lineText(st State) string {
	var all []string
	for _, e := range st.entries() {
		all = append(all, e.ID+"="+string(e.Value))
	}
	return strings.Join(all, " ")
}

func (b *world) wantLine(name, want string) {
	b.t.Helper()
	if got := b.line(name); got != want {
		b.t.Errorf("the line of %s is %q, want %q", name, got, want)
	}
}

// restate restates in the background, and returns what Restate will.
func (b *world) restate(s *Session, name, value string) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Election(name).Restate(context.Background(), []byte(value)) }()
	synctest.Wait()
	return done
}

func wantNil(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// wantNotYet wants that nothing has come.
func wantNotYet[T any](t *testing.T, what string, ch <-chan T) {
	t.Helper()
	select {
	case got := <-ch:
		t.Fatalf("%s already: %v", what, got)
	default:
	}
}

func TestACandidateThatWaitsRestatesItsValue(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second, third := b.session("a", b.store, Options{}), b.session("b", b.store, Options{}),
			b.session("c", b.store, Options{})
		term := b.lead(first, "n")
		won := b.stand(second, "n", "1")
		b.stand(third, "n", "1")
		before, err := second.Election("n").State(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		wantNil(t, "Restate", second.Election("n").Restate(context.Background(), []byte("2")))
		b.wantLine("n", "a=v-a b=2 c=1")
		after, err := second.Election("n").State(context.Background())
		if err != nil || after.Waiting[0].Token != before.Waiting[0].Token {
			t.Errorf("b waited in %+v and now in %+v (%v)", before, after, err)
		}
		wantNil(t, "Restate without a value", second.Election("n").Restate(context.Background(), nil))
		b.wantLine("n", "a=v-a b= c=1")
		wantNil(t, "Restate", second.Election("n").Restate(context.Background(), []byte("3")))
		wantNil(t, "Resign", term.Resign(context.Background()))
		synctest.Wait()
		b.wantLine("n", "b=3 c=1") // it leads with what it said while it waited
		led := <-won
		wantNil(t, "Restate of the leader", second.Election("n").Restate(context.Background(), []byte("4")))
		b.wantLine("n", "b=4 c=1")
		wantNil(t, "Proclaim", led.Proclaim(context.Background(), []byte("5")))
		b.wantLine("n", "b=5 c=1")
		wantNil(t, "Restate after Proclaim", second.Election("n").Restate(context.Background(), []byte("6")))
		b.wantLine("n", "b=6 c=1")
	})
}

func TestAnObserverOfTheWholeLine(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		first, second, watcher := b.session("a", b.store, Options{}), b.session("b", b.store, Options{}),
			b.session("o", b.store, Options{})
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		var lines, leaders []string
		observe := func(to *[]string, o ...ObserveOptions) {
			all.Go(func() {
				for st, err := range watcher.Election("n").Observe(ctx, o...) {
					wantNil(t, "Observe", err)
					*to = append(*to, lineText(st))
				}
			})
		}
		observe(&lines, WholeLine)
		observe(&leaders)
		synctest.Wait()
		term := b.lead(first, "n")
		synctest.Wait()
		won := b.stand(second, "n", "1")
		for range 2 { // the second says nothing new
			wantNil(t, "Restate", second.Election("n").Restate(ctx, []byte("2")))
			synctest.Wait()
		}
		time.Sleep(time.Minute) // the line is read now and then
		wantNil(t, "Resign", term.Resign(ctx))
		synctest.Wait()
		wantNil(t, "Resign", (<-won).Resign(ctx))
		synctest.Wait()
		cancel()
		all.Wait()
		if got := strings.Join(lines, ", "); got != ", a=v-a, a=v-a b=1, a=v-a b=2, b=2, " {
			t.Errorf("the whole line was told as %q", got)
		}
		if got := strings.Join(leaders, ", "); got != ", a=v-a, b=2, " {
			t.Errorf("who leads was told as %q", got)
		}
	})
}

// The claim is removed by an operator, and then with its lease: each time another one enters.
func TestAClaimThatEntersAgainHasTheLatestValue(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("b", net, Options{})
		b.lead(b.session("a", b.store, Options{}), "n")
		b.stand(s, "n", "old")
		e := s.Election("n")
		wantNil(t, "Restate", e.Restate(context.Background(), []byte("new")))
		ctx, cancel := context.WithCancel(context.Background())
		var seen []string
		var done sync.WaitGroup
		done.Go(func() {
			for st, err := range e.Observe(ctx, WholeLine) {
				if err == nil {
					seen = append(seen, lineText(st))
				}
			}
		})
		synctest.Wait()
		st, err := e.State(ctx)
		if err != nil || !b.store.Remove("n", uint64(st.Waiting[0].Token)) {
			t.Fatalf("no claim to remove (%v)", err)
		}
		time.Sleep(5 * time.Second)
		b.wantLine("n", "a=v-a b=new")
		net.Hang(true)
		time.Sleep(time.Minute)
		b.wantLine("n", "a=v-a") // its lease has run out
		net.Hang(false)
		time.Sleep(time.Minute)
		b.wantLine("n", "a=v-a b=new")
		cancel()
		done.Wait()
		for _, line := range seen {
			if strings.Contains(line, "old") {
				t.Errorf("a claim that entered again had the old value: %q", seen)
			}
		}
	})
}

func TestACandidateThatCampaignsAgainHasTheLatestValue(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		e := s.Election("n")
		ctx, cancel := context.WithCancel(context.Background())
		terms := make(chan *Term)
		done := make(chan error, 1)
		go func() {
			c := s.Candidate("n", &CampaignOptions{Value: []byte("old")})
			done <- c.Run(ctx, func(ctx context.Context, term *Term) error {
				terms <- term
				<-ctx.Done()
				return nil
			})
		}()
		term := <-terms
		wantNil(t, "Restate", e.Restate(ctx, []byte("new")))
		wantNil(t, "Proclaim", term.Proclaim(ctx, []byte("of this term")))
		b.wantLine("n", "a=of this term")
		b.remove(term)
		<-terms
		b.wantLine("n", "a=new")
		cancel()
		<-done
		if err := e.Restate(context.Background(), []byte("late")); !errors.Is(err, ErrNotInLine) {
			t.Errorf("Restate after the candidate's end = %v, want ErrNotInLine", err)
		}
		b.lead(s, "n") // nothing of it is left
		b.wantLine("n", "a=v-a")
	})
}

// The answer to the entry is lost. The store keeps the value of the call that entered the claim, so
// what was said meanwhile has to be brought afterwards.
func TestAValueRestatedWhileTheEntryIsUnknown(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		calls := 0
		h := &hooked{Store: b.store}
		h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
			calls++
			if calls > 2 {
				return l.Claim(ctx, c...)
			}
			if calls == 1 {
				if _, err := l.Claim(ctx, c...); err != nil {
					t.Error(err)
				}
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		b.lead(b.session("a", b.store, Options{}), "n")
		s := b.session("b", h, Options{})
		b.stand(s, "n", "old")
		b.wantLine("n", "a=v-a b=old")
		done := b.restate(s, "n", "new")
		wantNotYet(t, "Restate has returned", done)
		wantNil(t, "Restate", <-done)
		b.wantLine("n", "a=v-a b=new")
		if calls < 3 {
			t.Errorf("the claim was entered by %d calls, want the first ones unknown", calls)
		}
	})
}

// An older value is never sent once a newer one was, nor while the call for another is under way.
func TestAnOlderValueNeverComesAfterANewerOne(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var sent []string
		busy := false
		answer := make(chan error)
		u := &updates{Store: b.store}
		u.do = func(l driver.Lease, _ context.Context, p driver.Place, value []byte) error { // deaf to its context
			if busy {
				t.Error("two calls of Update at a time")
			}
			busy = true
			defer func() { busy = false }()
			sent = append(sent, string(value))
			if err := <-answer; err != nil {
				return err
			}
			return l.Update(context.Background(), p, value)
		}
		b.lead(b.session("a", b.store, Options{}), "n")
		s := b.session("b", u, Options{})
		b.stand(s, "n", "0")
		one := b.restate(s, "n", "1")
		two := b.restate(s, "n", "2")
		three := b.restate(s, "n", "3")
		time.Sleep(time.Minute / 12)
		answer <- errors.New("unknown")
		close(answer) // whatever is sent now is done
		for i, done := range []<-chan error{one, two, three} {
			wantNil(t, "Restate "+strconv.Itoa(i+1), <-done)
		}
		b.wantLine("n", "a=v-a b=3")
		if got := strings.Join(sent, " "); got != "1 3" {
			t.Errorf("sent %q, want the first value once, and then the last", got)
		}
	})
}

func TestAClaimWinsWhileItsValueIsUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		under := make(chan struct{})
		goOn := sync.OnceFunc(func() { close(under) })
		defer goOn()
		u := &updates{Store: b.store}
		u.do = func(l driver.Lease, ctx context.Context, p driver.Place, value []byte) error {
			<-under
			return l.Update(ctx, p, value)
		}
		term := b.lead(b.session("a", b.store, Options{}), "n")
		s := b.session("b", u, Options{})
		won := b.stand(s, "n", "old")
		done := b.restate(s, "n", "new")
		wantNil(t, "Resign", term.Resign(context.Background()))
		led := <-won
		wantNotYet(t, "Restate has returned", done)
		goOn()
		wantNil(t, "Restate", <-done)
		b.wantLine("n", "b=new")
		wantNil(t, "Check", led.Check())
	})
}

// The news that the claim was removed has not come. The answer to Restate tells as well.
func TestRestateThatFindsTheClaimGoneEntersItAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		b.lead(b.session("a", b.store, Options{}), "n")
		s := b.session("b", &hooked{Store: b.store, news: noNews}, Options{})
		b.stand(s, "n", "old")
		st, err := s.Election("n").State(context.Background())
		if err != nil || !b.store.Remove("n", uint64(st.Waiting[0].Token)) {
			t.Fatalf("no claim to remove (%v)", err)
		}
		wantNil(t, "Restate", <-b.restate(s, "n", "new"))
		b.wantLine("n", "a=v-a b=new")
	})
}

func TestRestateWithoutAClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		net := drivertest.Faulty(b.store, drivertest.Faults{})
		s := b.session("a", net, Options{})
		e := s.Election("n")
		if err := e.Restate(context.Background(), []byte("x")); !errors.Is(err, ErrNotInLine) {
			t.Errorf("Restate without a campaign = %v, want ErrNotInLine", err)
		}
		if err := e.Restate(context.Background(), make([]byte, MaxValue+1)); !errors.Is(err, ErrInvalid) {
			t.Errorf("Restate of a value too large = %v, want ErrInvalid", err)
		}
		net.Hang(true)
		won := b.stand(s, "n", "old") // there is no lease
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := e.Restate(ctx, []byte("1")); !errors.Is(err, ErrUnreachable) || !errors.Is(err, ctx.Err()) {
			t.Errorf("Restate while the store is silent = %v, want ErrUnreachable", err)
		}
		if err := e.Restate(ctx, []byte("never")); err == nil {
			t.Error("Restate under a context that has ended = nil")
		}
		done := b.restate(s, "n", "2")
		wantNotYet(t, "Restate has returned", done)
		net.Hang(false)
		wantNil(t, "Restate", <-done)
		term := <-won
		b.wantLine("n", "a=2")
		net.Hang(true)
		done = b.restate(s, "n", "3")
		go term.Resign(context.Background())
		time.Sleep(time.Second)
		net.Hang(false)
		if err := <-done; err != nil && !errors.Is(err, ErrNotInLine) { // which of the two came first is open
			t.Errorf("Restate of a term that ends = %v, want nil or ErrNotInLine", err)
		}
	})
}

// A value that the store will not have must not keep the next claim out.
func TestARefusedValueLeavesTheOneBefore(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		u := &updates{Store: b.store}
		u.do = func(l driver.Lease, ctx context.Context, p driver.Place, value []byte) error {
			if string(value) == "bad" {
				return driver.ErrRefused
			}
			return l.Update(ctx, p, value)
		}
		on := struct {
			*updates
			driver.Journal
		}{u, b.store}
		s := b.session("a", on, Options{})
		term := b.lead(s, "n")
		c := b.stand(s, "n", "second") // waits for the first, and has what is restated now
		e := s.Election("n")
		wantNil(t, "Restate", e.Restate(context.Background(), []byte("good")))
		if err := e.Restate(context.Background(), []byte("bad")); !errors.Is(err, ErrRefused) {
			t.Errorf("Restate = %v, want ErrRefused", err)
		}
		b.wantLine("n", "a=good")
		wantNil(t, "Resign", term.Resign(context.Background()))
		for _, r := range b.past("n", 0) {
			if r.Token == term.Token() && string(r.Value) != "good" {
				t.Errorf("the history has %q, want the value that others saw", r.Value)
			}
		}
		<-c
		b.wantLine("n", "a=good")
		wantNil(t, "Restate", e.Restate(context.Background(), []byte("better")))
		b.wantLine("n", "a=better")
	})
}

// The Update of a waiting claim is under way when the claim is removed. The store refuses that value
// while the claim is between two IDs, and has shown nothing under the new one.
func TestAValueRefusedBetweenTwoIDsOfItsClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		calls := 0
		h := &hooked{Store: b.store}
		h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
			if calls++; calls == 2 {
				return nil, driver.ErrGone // the next ID waits for a pause, then enters
			}
			return l.Claim(ctx, c...)
		}
		answer := make(chan error)
		u := &updates{Store: h}
		u.do = func(driver.Lease, context.Context, driver.Place, []byte) error { return <-answer }
		b.lead(b.session("a", b.store, Options{}), "n")
		s := b.session("b", u, Options{})
		b.stand(s, "n", "good")
		done := b.restate(s, "n", "bad")
		st, err := s.Election("n").State(context.Background())
		if err != nil || !b.store.Remove("n", uint64(st.Waiting[0].Token)) {
			t.Fatalf("no claim to remove (%v)", err)
		}
		synctest.Wait()
		answer <- driver.ErrRefused
		if err := <-done; !errors.Is(err, ErrRefused) {
			t.Errorf("Restate = %v, want ErrRefused", err)
		}
		time.Sleep(time.Second)
		b.wantLine("n", "a=v-a b=good")
		if calls != 3 {
			t.Errorf("the claim was entered by %d calls, want 3", calls)
		}
	})
}

// A claim is entered again whenever it was lost, and a call that was given up may still be under
// way: all of them carry the value of the call, whatever the caller's buffer holds by then.
func TestAValueIsCopied(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		buffer := []byte("first")
		overwrite := func() { copy(buffer, "xxxxx") }
		s := b.session("a", b.store, Options{})
		ctx, cancel := context.WithCancel(context.Background())

		campaigned := make(chan *Term, 1)
		other := b.lead(b.session("b", b.store, Options{}), "campaign")
		go func() {
			if term, err := s.Election("campaign").Campaign(ctx, &CampaignOptions{Value: buffer}); err == nil {
				campaigned <- term
			}
		}()
		synctest.Wait()
		overwrite()
		l, err := b.store.Line(ctx, "campaign")
		wantNil(t, "Line", err)
		if !b.store.Remove("campaign", l.Waiters[0].Token) {
			t.Fatal("no claim to remove")
		}
		wantNil(t, "Resign", other.Resign(ctx))
		time.Sleep(time.Minute)
		<-campaigned
		b.wantLine("campaign", "a=first")

		copy(buffer, "first")
		c := s.Candidate("candidate", &CampaignOptions{Value: buffer})
		es := s.Elections(&ElectionsOptions{Value: buffer})
		overwrite()
		go func() { _ = c.Run(ctx, func(ctx context.Context, _ *Term) error { <-ctx.Done(); return nil }) }()
		wantNil(t, "Stand", es.Stand("elections"))
		synctest.Wait()
		b.wantLine("candidate", "a=first")
		b.wantLine("elections", "a=first")
		cancel()
		es.Close(context.Background())
	})
}

func TestElectionsAndLocksAreNotRestated(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		es := s.Elections(&ElectionsOptions{Value: []byte("all")})
		wantNil(t, "Stand", es.Stand("n"))
		for term := range es.Terms(context.Background()) {
			if err := s.Election("n").Restate(context.Background(), []byte("x")); !errors.Is(err, ErrNotInLine) {
				t.Errorf("Restate of a name of Elections = %v, want ErrNotInLine", err)
			}
			wantNil(t, "Proclaim", term.Proclaim(context.Background(), []byte("one")))
			b.wantLine("n", "a=one")
			break
		}
	})
}

// Whatever is lost on the way, and whatever an operator removes, nobody is shown an older value
// after a newer one, and the last one comes.
func TestObserversSeeValuesInTheOrderInWhichTheyWereRestated(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *world) {
				faults := drivertest.Faults{Seed: seed, Delay: time.Second, Drop: 0.2, Lose: 0.3}
				s := b.session("b", drivertest.Faulty(b.store, faults), Options{})
				first := b.lead(b.session("a", b.store, Options{}), "n")
				ctx, cancel := context.WithCancel(context.Background())
				var all sync.WaitGroup
				all.Go(func() {
					c := s.Candidate("n", &CampaignOptions{Value: []byte("0")})
					_ = c.Run(ctx, func(ctx context.Context, _ *Term) error {
						<-ctx.Done()
						return nil
					})
				})
				synctest.Wait()
				var seen shownNumbers
				all.Go(func() {
					for st, err := range b.session("o", b.store, Options{}).Election("n").Observe(ctx, WholeLine) {
						wantNil(t, "Observe", err)
						seen.take(t, st)
					}
				})
				for n := 1; n <= 40; n++ {
					short, done := context.WithTimeout(ctx, time.Duration(n%5)*time.Second)
					_ = s.Election("n").Restate(short, []byte(strconv.Itoa(n)))
					done()
					if st, err := s.Election("n").State(ctx); err == nil && n%7 == 0 && len(st.Waiting) > 0 {
						b.store.Remove("n", uint64(st.Waiting[0].Token))
					}
					if n == 30 {
						wantNil(t, "Resign", first.Resign(ctx))
					}
				}
				wantNil(t, "Restate", s.Election("n").Restate(ctx, []byte("41")))
				synctest.Wait()
				cancel()
				all.Wait()
				if seen.last["b"] != 41 {
					t.Errorf("the last value seen is %d, want 41", seen.last["b"])
				}
			})
		})
	}
}

// entries returns all claims of the line, the leader's first.
func (st State) entries() []Entry {
	if st.Leader == nil {
		return nil
	}
	return append([]Entry{*st.Leader}, st.Waiting...)
}

// shownNumbers are numbers that candidates say, each larger than the one before. A claim of an
// earlier lease may stand on for a while with what it said last.
type shownNumbers struct {
	last    map[string]int // by candidate
	ofClaim map[Token]int
}

// take takes what a line shows, and returns the last claim of each candidate.
func (n *shownNumbers) take(t *testing.T, st State) map[string]Token {
	t.Helper()
	if n.last == nil {
		n.last, n.ofClaim = map[string]int{}, map[Token]int{}
	}
	now := map[string]Token{}
	for _, e := range st.entries() {
		said, _ := strconv.Atoi(string(e.Value))
		before, known := n.ofClaim[e.Token]
		if !known {
			before = n.last[e.ID]
		}
		if said < before {
			t.Errorf("%s said %d after %d", e.ID, said, before)
		}
		n.ofClaim[e.Token], now[e.ID] = said, e.Token
		n.last[e.ID] = max(n.last[e.ID], said)
	}
	return now
}

// On etcd the line is told by a watch. Each round waits until an observer has seen what the
// candidates said; looks without a watch are four seconds apart, and the rounds would take minutes.
// Between two rounds the server is restarted.
func TestALineOnEtcdIsToldAsItChanges(t *testing.T) {
	const rounds = 20
	for name, ttl := range map[string]time.Duration{"leases": 20 * time.Second, "heartbeats": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			leader, watcher := onEtcdFor(t, srv, "a", ttl), onEtcdFor(t, srv, "o", ttl)
			b, c := onEtcdFor(t, srv, "b", ttl), onEtcdFor(t, srv, "c", ttl)
			term, err := leader.Election("n").Campaign(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer term.Unlock()
			defer cancel() // first: nobody else is to win
			lines := make(chan State, 1000)
			go func() {
				for st, err := range watcher.Election("n").Observe(ctx, WholeLine) {
					if err == nil {
						lines <- st
					}
				}
			}()
			var seen shownNumbers
			var tokens map[string]Token
			see := func(what string, ok func() bool) {
				t.Helper()
				for !ok() {
					select {
					case st := <-lines:
						tokens = seen.take(t, st)
						if seen.last["c"] > seen.last["b"] && tokens["b"] != 0 {
							t.Errorf("saw what c said after b, and not what b said: %v", seen.last)
						}
					case <-ctx.Done():
						t.Fatalf("a minute later nobody has told %s; seen: %v", what, seen.last)
					}
				}
			}
			for _, s := range []*Session{b, c} {
				go s.Election("n").Campaign(ctx, nil)
				see(s.ID()+" in the line", func() bool { return tokens[s.ID()] != 0 })
			}
			before := tokens
			for n := 1; n <= rounds; n++ {
				if n == rounds/2 {
					srv.Restart()
				}
				for _, s := range []*Session{b, c} {
					if err := s.Election("n").Restate(ctx, []byte(strconv.Itoa(n))); err != nil {
						t.Fatal(err)
					}
				}
				see(fmt.Sprint("both in round ", n), func() bool { return seen.last["b"] == n && seen.last["c"] == n })
			}
			if ttl > 10*time.Second && !maps.Equal(tokens, before) { // a heartbeat may not outlive the restart
				t.Errorf("tokens were %v and are %v", before, tokens)
			}
		})
	}
}
