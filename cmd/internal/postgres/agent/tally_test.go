package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// What has failed counts for nothing, and a member is back once it follows.
func TestWhatAMemberHasDoneIsCounted(t *testing.T) {
	a := &Agent{}
	failed := errors.New("no")
	var id uint64
	does := func(do core.Action, err error) {
		id++
		ended(a, &core.Order{ID: id, Do: do}, core.Done{ID: id, Err: err})
	}
	for _, x := range []struct {
		do   core.Action
		err  error
		want Tally
	}{
		{core.Seal{}, failed, Tally{}},
		{core.Seal{}, nil, Tally{Seals: 1}},
		{core.Follow{}, failed, Tally{Seals: 1}},
		{core.Follow{}, nil, Tally{Seals: 1, Follows: 1}},
		{core.Rewind{}, failed, Tally{Seals: 1, Follows: 1}},
		{core.Clone{}, nil, Tally{Seals: 1, Follows: 1}},
		{core.Follow{}, failed, Tally{Seals: 1, Follows: 1}},
		{core.Follow{}, nil, Tally{Seals: 1, Follows: 1, Clones: 1}},
		{core.Rewind{}, nil, Tally{Seals: 1, Follows: 1, Clones: 1}},
		{core.Follow{}, nil, Tally{Seals: 1, Follows: 1, Clones: 1, Rewinds: 1}},
		{core.Follow{}, nil, Tally{Seals: 1, Follows: 2, Clones: 1, Rewinds: 1}},
	} {
		if does(x.do, x.err); a.tally.Tally != x.want {
			t.Fatalf("order %d, %T: %+v, want %+v", id, x.do, a.tally.Tally, x.want)
		}
	}
	a.gap = gap{known: true, began: 1, clean: true}
	if does(core.Promote{}, failed); a.tally.Switchover != 0 {
		t.Errorf("a promotion that failed: %+v", a.tally.Tally)
	}
	does(core.Promote{}, nil)
	a.gap.clean = false
	does(core.Promote{}, nil)
	if a.tally.Switchover <= 0 || a.tally.Failover < a.tally.Switchover {
		t.Errorf("two promotions: %+v", a.tally.Tally)
	}
	if len(a.done) != int(id) {
		t.Errorf("%d of %d results are for core", len(a.done), id)
	}
}

// A loss whose rewind was tried again, or by an agent that was started anew, counts once.
func TestWhatRewindsDiscardedCountsOnce(t *testing.T) {
	dir := t.TempDir()
	var b discarded
	for i, bytes := range []uint64{100, 20} {
		folder := filepath.Join(dir, "lost", string(rune('a'+i)))
		text, err := json.Marshal(clone.Loss{Bytes: bytes, List: []clone.Commit{}})
		if err == nil {
			err = errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, "loss.json"), text, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		b.count(dir)
		b.count(dir)
		if want := []uint64{100, 120}[i]; b.Load() != want {
			t.Errorf("%d bytes, want %d", b.Load(), want)
		}
	}
}

// From the last sign of life of the last primary. The instants are seconds; the ttl is 3 s.
func TestHowLongNobodyWasThePrimary(t *testing.T) {
	type at struct {
		now, store, heard float64
		shown             bool
	}
	s := func(x float64) time.Duration { return time.Duration(x * float64(time.Second)) }
	for _, x := range []struct {
		name           string
		looks          []at
		clean          bool
		promoted, want float64
	}{
		{"no primary was ever seen", []at{{1, 1, 0, false}, {9, 9, 0, false}}, false, 10, 0},
		{"it was shut down for another", []at{{10, 10, 4, true}, {10.2, 10.1, 4, false}, {10.3, 10.2, 4, false}}, true,
			10.5, 0.3},
		{"its machine was lost while it was written to", []at{{10, 10, 9.9, true}, {11, 11, 10.4, true},
			{13.5, 13.4, 10.4, false}}, false, 13.8, 3.4},
		{"its machine was lost, and nobody had written for long",
			[]at{{102.5, 102.5, 80, true}, {103, 102.6, 80, false}}, false, 103.3, 4.8},
		{"its agent was killed", []at{{10, 10, 9.95, true}, {10.2, 10, 10.1, false}}, false, 10.4, 0.3},
		{"the store was away for a minute", []at{{10, 10, 10, true}, {70, 10, 13, true}, {71, 70.9, 13, false}},
			false, 71.5, 58.5},
		{"the store was away, and told it at once", []at{{10, 10, 10, true}, {71, 10, 13, false}}, false, 71.5, 58.5},
		{"nothing was heard of it", []at{{10, 10, 0, true}, {12, 12, 0, false}}, false, 12.5, 0.5},
		{"it came back meanwhile", []at{{10, 10, 10, true}, {12, 12, 10, false}, {13, 13, 13, true},
			{20, 20, 19.8, true}, {20.1, 20, 19.9, false}}, false, 20.4, 0.5},
	} {
		g := gap{clean: x.clean}
		for _, l := range x.looks {
			g.shown = l.shown
			g.look(s(l.now), s(l.store), s(l.heard))
		}
		got, clean := g.ended(s(x.promoted), s(3))
		if d := got - s(x.want); d.Abs() > time.Microsecond || clean != x.clean {
			t.Errorf("%s: %v, want %v s; clean %v", x.name, got, x.want, clean)
		}
	}
}
