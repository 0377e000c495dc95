package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// someSlots is a server's slots.
type someSlots struct {
	slots map[string]core.LSN
	down  bool
}

func (s *someSlots) EnsureSlot(_ context.Context, name string) error {
	if s.down {
		return errors.New("it is down")
	}
	s.slots[name] = 0
	return nil
}

func (s *someSlots) AdvanceSlot(_ context.Context, name string, to core.LSN) error {
	if _, ok := s.slots[name]; ok {
		s.slots[name] = to
	}
	return nil
}

func (s *someSlots) DropSlot(_ context.Context, name string) error {
	delete(s.slots, name)
	return nil
}

func (s *someSlots) Slots(context.Context) (all []server.Slot, err error) {
	if s.down {
		return nil, errors.New("it is down")
	}
	for name := range s.slots {
		all = append(all, server.Slot{Name: name})
	}
	return all, nil
}

// A slot of a member that is gone keeps WAL for half an hour, and not for ever: also where the
// agent was started again meanwhile, or the server was away. Slots that nobody here has made stay.
func TestTheSlotOfAMemberThatIsGoneGoesToo(t *testing.T) {
	s := &someSlots{slots: map[string]core.LSN{"backup": 0}}
	dir := t.TempDir()
	now := time.Hour
	var k *slotKeeper
	started := func() {
		var err error
		if k, err = newSlotKeeper(dir, now); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(want string, others ...string) {
		t.Helper()
		ends := map[string]core.LSN{}
		for _, o := range others {
			ends[o] = 7
		}
		k.keep(t.Context(), s, now, ends, false, slog.New(slog.DiscardHandler))
		if got := strings.Join(slices.Sorted(maps.Keys(s.slots)), " "); got != want {
			t.Errorf("the slots are %q, want %q", got, want)
		}
	}
	started()
	keep("b backup c", "b", "c")
	if s.slots["b"] != 7 {
		t.Errorf("the slot of b is at %v: it keeps WAL that b has", s.slots["b"])
	}
	now += time.Minute
	started()
	keep("b backup c", "b") // c is gone
	s.down = true
	keep("b backup c", "b")
	s.down = false
	now += slotsKept
	keep("b backup c", "b")
	now += time.Second
	keep("b backup", "b")
	delete(s.slots, "b") // by a rewind
	keep("backup", "b")
	keep("b backup", "b")
	started()
	now += slotsKept + time.Second
	keep("backup")
	if k, err := newSlotKeeper(dir, now); err != nil || len(k.seen) != 1 {
		t.Errorf("the file names %v, %v: b alone is known until its slot is seen to be gone", k.seen, err)
	}
}
