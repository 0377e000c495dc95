package registerstore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// removeByHand deletes the register of a name, as an operator might.
func removeByHand(t *testing.T, h *hooked, name string) (value []byte) {
	t.Helper()
	value, version, err := h.Register.Get(t.Context(), "line."+name)
	if err != nil || version == "" {
		t.Fatalf("there is no line of %s: %v", name, err)
	}
	if err := h.Register.Delete(t.Context(), "line."+name, version); err != nil {
		t.Fatal(err)
	}
	return value
}

// newsOf collects what a lease is told until ctx ends.
func newsOf(ctx context.Context, l driver.Lease) <-chan driver.News {
	all := make(chan driver.News, 100)
	go func() {
		for ctx.Err() == nil {
			news, err := l.News(ctx)
			if errors.Is(err, driver.ErrGone) {
				return
			}
			for _, n := range news {
				all <- n
			}
		}
	}()
	return all
}

// The numbers in a document begin anew where somebody removes it. Who leads by what is not there
// any more must hear of it, or he leads on beside the next one for as long as both renew.
func TestALineThatIsRemovedByHandEndsItsClaims(t *testing.T) {
	for _, polls := range []bool{false, true} {
		bubble(t, func(t *testing.T, h *hooked) {
			s, other := storeOver(t, h), storeOver(t, h)
			if polls {
				s, other = storeOver(t, plain{h}), storeOver(t, plain{h})
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := granted(t, s, "first", time.Hour)
			for range 5 { // so that the numbers of the next line come behind
				if err := l.Release(ctx, claimed(t, l, "n")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // another claim ID
			}
			news := newsOf(ctx, l)
			p := claimed(t, l, "n")
			time.Sleep(time.Minute)
			removeByHand(t, h, "n")
			next := granted(t, other, "second", time.Hour)
			if q := claimed(t, next, "n"); !q.Held {
				t.Fatal("the second does not lead")
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			select {
			case n := <-news:
				if !n.Gone || n.Place.ID != p.ID {
					t.Errorf("polls %v: it was told %+v", polls, n)
				}
			default:
				t.Errorf("polls %v: a minute after its line was removed the first leads beside the second", polls)
			}
			// The place in the new line is one as any other.
			again := claimed(t, l, "n")
			l.Follow(again)
			if err := next.Close(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			select {
			case n := <-news:
				if !n.Held || n.Place.ID != again.ID {
					t.Errorf("polls %v: it was told %+v, want that its new place is held", polls, n)
				}
			default:
				t.Errorf("polls %v: nobody was told that his new place is held", polls)
			}
		})
	}
}

// An answer that comes late tells of the line as it was before somebody removed it. Nobody takes it
// for the latest: whoever had a place there would keep it, beside those of the new line.
func TestALateAnswerOfALineThatWasRemovedByHand(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s, other := storeOver(t, h), storeOver(t, h)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, late := granted(t, s, "first", time.Hour), granted(t, s, "late", time.Hour)
		for range 5 { // so that the numbers of the next line come behind
			if err := first.Release(ctx, claimed(t, first, "n")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // another claim ID
		}
		news := newsOf(ctx, late)
		held := newsOf(ctx, first)
		claimed(t, first, "n")
		time.Sleep(time.Second)
		answer := make(chan struct{})
		h.bend(func(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
			next, ok, err := h.Register.Put(ctx, key, value, version)
			if key == "line.n" {
				h.bend(nil)
				<-answer
			}
			return next, ok, err
		})
		entered := make(chan driver.Place, 1)
		go func() { entered <- claimed(t, late, "n") }()
		time.Sleep(time.Minute)
		removeByHand(t, h, "n")
		if q := claimed(t, granted(t, other, "second", time.Hour), "n"); !q.Held {
			t.Fatal("the second does not lead")
		}
		time.Sleep(time.Minute)
		third := granted(t, s, "third", time.Hour)
		next := newsOf(ctx, third)
		waits := claimed(t, third, "n") // in the new line: the process goes on reading it
		third.Follow(waits)
		time.Sleep(time.Minute)
		if n := <-held; !n.Gone {
			t.Errorf("the first was told %+v", n)
		}
		close(answer)
		p := <-entered
		late.Follow(p)
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case n := <-news:
			if !n.Gone || n.Place.ID != p.ID {
				t.Errorf("it was told %+v", n)
			}
		default:
			t.Error("an hour after its line was removed it waits for its turn there")
		}
		select {
		case n := <-next:
			t.Errorf("who waits in the new line was told %+v", n)
		default:
		}
	})
}

// The same where the line is put back to what it was before the claim, and where nobody read it
// between the claim and its end.
func TestALineThatIsPutBackByHandEndsItsClaims(t *testing.T) {
	for _, late := range []bool{false, true} {
		bubble(t, func(t *testing.T, h *hooked) {
			s := storeOver(t, h)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := granted(t, s, "first", time.Hour)
			if err := l.Release(ctx, claimed(t, l, "n")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // another claim ID
			old, _, err := h.Register.Get(ctx, "line.n")
			if err != nil {
				t.Fatal(err)
			}
			p := claimed(t, l, "n")
			var news <-chan driver.News
			if !late {
				news = newsOf(ctx, l)
				time.Sleep(time.Minute)
			}
			removeByHand(t, h, "n")
			if _, ok, err := h.Register.Put(ctx, "line.n", old, ""); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if late {
				news = newsOf(ctx, l)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			select {
			case n := <-news:
				if !n.Gone || n.Place.ID != p.ID {
					t.Errorf("late %v: it was told %+v", late, n)
				}
			default:
				t.Errorf("late %v: a minute after its claim was removed the first still leads", late)
			}
		})
	}
}

// A line that somebody wrote anew as it was has another version, and nothing else.
func TestALineThatIsTouchedByHandEndsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, h *hooked) {
		s := storeOver(t, h)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := granted(t, s, "first", time.Hour)
		news := newsOf(ctx, l)
		claimed(t, l, "n")
		time.Sleep(time.Minute)
		value, version, err := h.Register.Get(ctx, "line.n")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := h.Register.Put(ctx, "line.n", value, version); !ok || err != nil {
			t.Fatal(ok, err)
		}
		time.Sleep(time.Second)
		before := h.Register.Calls()
		time.Sleep(time.Minute)
		synctest.Wait()
		after := h.Register.Calls()
		if n := after.Get - before.Get + after.Watch - before.Watch; n > 60 {
			t.Errorf("%d calls in the minute after: it is asked all the time", n)
		}
		select {
		case n := <-news:
			t.Errorf("it was told %+v", n)
		default:
		}
	})
}
