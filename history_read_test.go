package primacy

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// lookout calls before and after each look at the line, with its number.
type lookout struct {
	appends
	looks         int
	before, after func(look int)
}

func (s *lookout) Line(ctx context.Context, name string) (driver.Line, error) {
	s.looks++
	if s.before != nil {
		s.before(s.looks)
	}
	line, err := s.Store.Line(ctx, name)
	if s.after != nil {
		s.after(s.looks)
	}
	return line, err
}

func TestWhatTheLeaderSaidCountsFirst(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		term := b.lead(b.session("a", b.store, Options{}), "x")
		time.Sleep(aSecond)
		journal, r := RecordDeath("x", term.Token(), "a", time.Now(), "")
		if _, _, err := b.store.Append(context.Background(), journal, r, math.MaxInt32); err != nil {
			t.Fatal(err)
		}
		term.Explain("all is done", false)
		_ = term.Resign(context.Background())
		all := b.past("x", 0)
		sameReigns(t, all, "a resigned")
		if all[0].Text != "all is done" {
			t.Errorf("%+v", all[0])
		}
	})
}

func TestATermWonWhileTheHistoryIsReadLeads(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		a := b.session("a", b.store, Options{})
		on := &lookout{appends: appends{Store: b.store}, after: func(look int) {
			if look == 1 {
				b.lead(a, "x")
				time.Sleep(aSecond)
			}
		}}
		all, err := b.session("r", on, Options{}).Election("x").History(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		sameReigns(t, all, "a leading")
	})
}

func TestATermThatEndsWhileTheHistoryIsReadIsToldWhy(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		var term *Term
		a, c := b.session("a", b.store, Options{}), b.session("c", b.store, Options{})
		on := &lookout{appends: appends{Store: b.store}}
		on.after = func(look int) {
			if look == 1 { // before the records
				term = b.lead(a, "x")
				time.Sleep(aSecond)
			}
		}
		on.before = func(look int) {
			if look == 2 { // after them
				_ = term.Resign(context.Background())
				b.lead(c, "x")
			}
		}
		all, err := b.session("r", on, Options{}).Election("x").History(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		sameReigns(t, all, "c leading", "a resigned")
	})
}
