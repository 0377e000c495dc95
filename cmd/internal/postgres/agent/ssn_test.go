package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// fakeSync is a standby that is promoted at an instant, with one walsender that loads an SSN late.
type fakeSync struct {
	begun            time.Time
	loaded, promoted time.Duration
	set              []string
}

func (f *fakeSync) Mark(context.Context) (int, error) { return 2, nil }

func (f *fakeSync) SetSync(_ context.Context, y server.Sync) error {
	f.set = append(f.set, y.String())
	return nil
}

func (f *fakeSync) Proven(_ context.Context, y server.Sync, _ ...string) error {
	if y.Mark == 0 || time.Since(f.begun) < f.loaded {
		return errors.New("not loaded")
	}
	return nil
}

func (f *fakeSync) Position(context.Context) (server.Standing, error) {
	return server.Standing{Position: core.Position{LSN: core.LSN(time.Since(f.begun))},
		Primary: time.Since(f.begun) >= f.promoted}, nil
}

// TestAnSSNIsLoadedTwice: in the form that each walsender shows, and once they all have in the form
// that prefers nobody, once each, however long the promotion takes. The LSN that counts is read
// after both.
func TestAnSSNIsLoadedTwice(t *testing.T) {
	for _, c := range []struct{ loaded, promoted time.Duration }{
		{0, time.Second}, {time.Second, 0}, {time.Second, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeSync{begun: time.Now(), loaded: c.loaded, promoted: c.promoted}
			s := &ssn{server: f}
			p := &proof{id: 1, sync: server.Sync{Names: []string{"pg2"}, Acks: 1}}
			if err := s.set(t.Context(), p, true); err != nil {
				t.Fatal(err)
			}
			var proven []core.LSN
			s.prove(t.Context(), p, func(at core.LSN) { proven = append(proven, at) })
			if want := []string{`FIRST 1 (primacy_1, primacy_2, "pg2")`, `ANY 1 ("pg2")`}; !slices.Equal(f.set, want) {
				t.Errorf("loaded %q, want %q", f.set, want)
			}
			if len(proven) != 1 || proven[0] < core.LSN(max(c.loaded, c.promoted)) {
				t.Errorf("%v: proven at %v", c, proven)
			}
		})
	}
}
