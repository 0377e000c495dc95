package redlockstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/fence"
)

// What the library cannot do on such a store it refuses, in one clear line, and hands out no token.
func TestTheLibraryRefusesWhatWouldBeALie(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 3)
	store := open(t, c)
	s, err := primacy.NewSession(store, &primacy.Options{ID: "a", TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx := limited(t, time.Minute)
	e := s.Election("e")
	term, err := e.Campaign(ctx, &primacy.CampaignOptions{Value: []byte("value")})
	if err != nil {
		t.Fatal(err)
	}
	if term.Token() != 0 {
		t.Errorf("token = %d, want none", term.Token())
	}
	m := s.Mutex("m", nil)
	for range 3 { // also of one that is handed on within the process
		held, err := m.Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if held.Token() != 0 {
			t.Errorf("token of a lock = %d, want none: it would not grow", held.Token())
		}
		if err := held.Resign(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if lead, err := e.Leader(ctx); err != nil || lead.ID != "a" || string(lead.Value) != "value" {
		t.Errorf("Leader = %+v, %v, want a with its value", lead, err)
	}
	for what, err := range map[string]error{
		"a fence":         fence.Of(term).Valid(),
		"history":         second(e.History(ctx, 10)),
		"a shared lock":   second(s.RWMutex("r").RLock(ctx)),
		"a semaphore":     second(s.Semaphore("s", 2).Acquire(ctx)),
		"a transfer":      term.Transfer(ctx, "b"),
		"a request":       second(e.Ask(ctx, primacy.Request{Reason: "please"})),
		"a priority":      second(e.Campaign(ctx, &primacy.CampaignOptions{Priority: 1})),
		"too long a ttl":  second(primacy.NewSession(store, &primacy.Options{TTL: 2 * time.Minute})),
		"too short a ttl": second(primacy.NewSession(store, &primacy.Options{TTL: 100 * time.Millisecond})),
	} {
		if !errors.Is(err, primacy.ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want it refused in one line", what, err)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	if err := term.Resign(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	l := grant(t, store, "x", time.Minute)
	if _, err := l.Claim(ctx, driver.Claim{Name: "s", ID: "1", Slots: 2}); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("a shared claim: %v, want ErrRefused", err)
	}
}

func second[T any](_ T, err error) error { return err }
