package primacy

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

func TestAClaimRemovedByHandDeposesAtOnceAndAWaitingOneIsEnteredAgain(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", b.store, Options{})
		t1 := b.lead(s1, "n")
		won := make(chan *Term, 1)
		go func() { won <- b.lead(s2, "n") }()
		synctest.Wait()
		line, _ := b.store.Line(context.Background(), "n")
		if len(line.Waiters) != 1 {
			t.Fatalf("got %d waiters, want 1", len(line.Waiters))
		}
		was := line.Waiters[0].Token
		b.store.Remove("n", was)
		synctest.Wait()
		line, _ = b.store.Line(context.Background(), "n")
		if len(line.Waiters) != 1 || line.Waiters[0].Token <= was {
			t.Fatalf("the waiting claim was not entered again: %+v", line.Waiters)
		}
		at := b.clock()
		b.store.Remove("n", uint64(t1.Token()))
		t2 := <-won
		synctest.Wait()
		if took := b.clock() - at; took > 0 {
			t.Errorf("noticed after %v, want at once", took)
		}
		if err := t1.Check(); !errors.Is(err, ErrDeposed) {
			t.Errorf("the removed leader: got %v, want ErrDeposed", err)
		}
		if err := t2.Check(); err != nil || t2.Token() <= t1.Token() {
			t.Errorf("the next leader: %v, token %d after %d", err, t2.Token(), t1.Token())
		}
	})
}

func TestARefusedWaitLeavesNoClaimBehind(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		h := &hooked{Store: b.store, news: func(driver.Lease, context.Context) ([]driver.News, error) {
			return nil, driver.ErrRefused
		}}
		s1, s2, s3 := b.session("a", b.store, Options{}), b.session("b", h, Options{}),
			b.session("c", b.store, Options{})
		t1 := b.lead(s1, "n")
		limit, stop := context.WithTimeout(context.Background(), time.Hour)
		defer stop()
		if _, err := s2.Election("n").Campaign(limit, nil); !errors.Is(err, ErrRefused) ||
			errors.Is(err, ErrUnreachable) {
			t.Fatal(err)
		}
		if err := t1.Resign(context.Background()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if _, err := s3.Election("n").Campaign(ctx, nil); err != nil {
			line, _ := b.store.Line(context.Background(), "n")
			t.Errorf("an hour later: %v; holder %+v, behind which nobody is", err, line.Holder)
		}
	})
}

// The store refuses to follow one of two places, and told the same of an earlier claim before.
func TestARefusedPlaceEndsItsOwnCampaignAlone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		followed, tell := make(chan driver.Place, 2), make(chan []driver.News)
		h := &hooked{Store: b.store,
			follow: func(l driver.Lease, p ...driver.Place) {
				l.Follow(p...)
				followed <- p[0]
			},
			news: func(_ driver.Lease, ctx context.Context) ([]driver.News, error) {
				select {
				case news := <-tell:
					return news, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}}
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", h, Options{})
		b.lead(s1, "m")
		b.lead(s1, "n")
		ended := make(chan error, 2)
		stand := func(name string) driver.Place {
			go func() {
				_, err := s2.Election(name).Campaign(context.Background(), nil)
				ended <- err
			}()
			return <-followed
		}
		stand("m")
		p := stand("n")
		earlier := p
		earlier.ID = "of an earlier claim"
		tell <- []driver.News{{Place: earlier, Refused: driver.ErrRefused}}
		synctest.Wait()
		if len(ended) > 0 {
			t.Fatalf("a refusal of an earlier claim ended a campaign: %v", <-ended)
		}
		tell <- []driver.News{{Place: p, Refused: driver.ErrRefused}}
		if err := <-ended; !errors.Is(err, ErrRefused) {
			t.Errorf("the campaign whose place was refused: %v", err)
		}
		synctest.Wait()
		m, _ := b.store.Line(context.Background(), "m")
		n, _ := b.store.Line(context.Background(), "n")
		if len(ended) > 0 || len(m.Waiters) != 1 || len(n.Waiters) != 0 {
			t.Errorf("the other campaign ended, or places were left: m %+v, n %+v", m.Waiters, n.Waiters)
		}
	})
}

func TestAClaimOfUnknownOutcomeThatIsThenRefusedLeavesNothingBehind(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var calls atomic.Int32
		h := &hooked{Store: b.store,
			claim: func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
				if calls.Add(1) == 1 {
					_, _ = l.Claim(ctx, c...)
					return nil, errors.New("the answer was lost")
				}
				return nil, driver.ErrRefused
			}}
		s := b.session("a", h, Options{})
		if _, err := s.Election("n").Campaign(context.Background(), nil); !errors.Is(err, ErrRefused) {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if line, _ := b.store.Line(context.Background(), "n"); line.Holder != nil {
			t.Errorf("an hour later a claim stands with nobody behind it: %+v", line.Holder)
		}
	})
}

func TestAnAskThatOvertakesTheAnswerOfWaitIsHeard(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		h := &hooked{Store: b.store, news: func(l driver.Lease, ctx context.Context) ([]driver.News, error) {
			news, err := l.News(ctx)
			for err == nil && !slices.ContainsFunc(news, func(n driver.News) bool { return n.Request != nil }) {
				var asked []driver.News
				asked, err = l.News(ctx) // the request, which overtakes the news of the hold
				news = append(asked, news...)
			}
			slices.Reverse(news)
			return news, err
		}}
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", h, Options{})
		t1 := b.lead(s1, "n")
		won := make(chan *Term, 1)
		go func() { won <- b.lead(s2, "n") }()
		synctest.Wait()
		_ = t1.Resign(context.Background())
		tok, err := s1.Election("n").Ask(context.Background(), Request{Reason: "please"})
		if err != nil {
			t.Fatal(err)
		}
		t2 := <-won
		select {
		case <-t2.Context().Done():
		case <-time.After(time.Minute):
			t.Errorf("term %d was asked to resign (token %d) and leads on", t2.Token(), tok)
		}
	})
}

// claim removed by hand while its first answer was lost: the whole lease is given up.
func TestAClaimRemovedWhileItsAnswerWasLostCostsNoOtherTerm(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var calls atomic.Int32
		h := &hooked{Store: b.store}
		h.news = func(l driver.Lease, ctx context.Context) ([]driver.News, error) {
			n, err := l.News(ctx)
			time.Sleep(200 * time.Millisecond) // the push comes a moment late
			return n, err
		}
		h.claim = func(l driver.Lease, ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
			p, err := l.Claim(ctx, c...)
			if c[0].Name == "n" && calls.Add(1) == 1 {
				b.store.Remove("n", p[0].Token)
				return nil, errors.New("the answer was lost")
			}
			return p, err
		}
		s := b.session("a", h, Options{})
		other := b.lead(s, "other")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := s.Election("n").Campaign(ctx, nil)
		if err != nil {
			t.Errorf("Campaign: %v", err)
		}
		if err := other.Check(); err != nil {
			t.Errorf("a claim on n was removed by hand, and the term on another name ended: %v", err)
		}
	})
}

// A driver that is wrong: it tells that a place is held which is not, and that another one is.
func TestAWaitThatReturnsEarlyMakesNoLeader(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		followed := make(chan driver.Place, 10)
		h := &hooked{Store: b.store, follow: func(_ driver.Lease, p ...driver.Place) {
			followed <- p[0]
		}, news: func(l driver.Lease, ctx context.Context) ([]driver.News, error) {
			select {
			case p := <-followed:
				time.Sleep(time.Second)
				other := p
				other.Name, other.Held = "m", true
				return []driver.News{{Place: p, Held: true}, {Place: other, Held: true}}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		s1, s2 := b.session("a", b.store, Options{}), b.session("b", h, Options{})
		t1 := b.lead(s1, "n")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		t2, err := s2.Election("n").Campaign(ctx, nil)
		if err == nil && t2.Check() == nil && t1.Check() == nil {
			t.Error("two leaders")
		}
	})
}
