package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/redisfence"
)

// fake is a client that knows no Lua: it answers what the test says. What the scripts mean is
// tested against a real Redis, in test/fencetest.
type fake struct {
	answer any
	err    error
	calls  int
	script string
	keys   []string
	args   []any
}

type cmd struct {
	answer any
	err    error
}

func (c *cmd) Result() (any, error) { return c.answer, c.err }

func (f *fake) Eval(_ context.Context, script string, keys []string, args ...any) *cmd {
	f.calls, f.script, f.keys, f.args = f.calls+1, script, keys, args
	return &cmd{f.answer, f.err}
}

var (
	keys = redisfence.Fence{Key: "{x}:fence"}
	mine = fence.Stamp{Name: "x", Token: 7, Origin: "o"}
)

func TestWhatIsSent(t *testing.T) {
	f := &fake{answer: []any{"ok", int64(42)}}
	got, err := redisfence.Eval(t.Context(), f, keys, mine, "return ARGV[1] -- a comment", []string{"{x}:a"}, 5)
	if err != nil || got != int64(42) {
		t.Errorf("Eval = %v, %v", got, err)
	}
	if !slices.Equal(f.keys, []string{"{x}:fence", "{x}:a"}) || fmt.Sprint(f.args) != "[x 7 o 5]" || !strings.Contains(f.script, "return ARGV[1] -- a comment\nend") {
		t.Errorf("sent %q %q\n%s", f.keys, f.args, f.script)
	}
	if _, err := redisfence.Call(t.Context(), f, keys, mine, "SET", "{x}:a", "v"); err != nil || fmt.Sprint(f.args) != "[x 7 o SET v]" {
		t.Errorf("Call sent %q: %v", f.args, err)
	}
	f.answer = []any{"ok"}
	if err := redisfence.Raise(t.Context(), f, keys, mine); err != nil || !slices.Equal(f.keys, []string{"{x}:fence"}) {
		t.Errorf("Raise sent %q: %v", f.keys, err)
	}
	if got, err := redisfence.Call(t.Context(), f, keys, mine, "GET", "{x}:a"); got != nil || err != nil {
		t.Errorf("an answer of nil = %v, %v", got, err)
	}
}

func TestAnswers(t *testing.T) {
	down, own := errors.New("connection reset"), errors.New("WRONGTYPE")
	for what, c := range map[string]struct {
		f    fake
		want error
		text string
	}{
		"stale":            {fake{answer: []any{"stale", "18446744073709551615"}}, fence.ErrStale, "18446744073709551615"},
		"origin":           {fake{answer: []any{"origin", "9", "p"}}, fence.ErrOrigin, "p up to token 9"},
		"unraised":         {fake{answer: []any{"unraised", "0"}}, fence.ErrNotRaised, "ask the term's Check"},
		"another election": {fake{answer: []any{"name", "y"}}, primacy.ErrInvalid, `"y"`},
		"network":          {fake{err: down}, down, "redis"},
		"the command's":    {fake{answer: []any{"ok", own}}, own, "redis"},
		"damaged":          {fake{answer: []any{"stale", "many"}}, primacy.ErrInvalid, "damaged"},
		"short":            {fake{answer: []any{"stale"}}, primacy.ErrInvalid, "damaged"},
		"no list":          {fake{answer: "ok"}, nil, "none of the fence's"},
		"nil":              {fake{}, nil, "none of the fence's"},
		"a number":         {fake{answer: []any{int64(1)}}, nil, "none of the fence's"},
	} {
		_, err := redisfence.Call(t.Context(), &c.f, keys, mine, "SET", "{x}:a", 1)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %v and %q in one line", what, err, c.want, c.text)
		}
	}
}

func TestBadInputAsksNothing(t *testing.T) {
	f := &fake{answer: []any{"ok"}}
	for what, err := range map[string]error{
		"no key":       redisfence.Raise(t.Context(), f, redisfence.Fence{}, mine),
		"no stamp":     redisfence.Raise(t.Context(), f, keys, fence.Stamp{}),
		"Adopt of 0":   redisfence.Adopt(t.Context(), f, keys, fence.Stamp{Name: "x"}),
		"its own key":  second(redisfence.Call(t.Context(), f, keys, mine, "DEL", keys.Key)),
		"an #! script": second(redisfence.Eval(t.Context(), f, keys, mine, "#!lua flags=no-writes\nreturn 1", nil)),
	} {
		if !errors.Is(err, primacy.ErrInvalid) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with ErrInvalid", what, err)
		}
	}
	if f.calls != 0 {
		t.Errorf("%d calls were made", f.calls)
	}
}

func second(_ any, err error) error { return err }
