package primacy

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

func TestErrorsSayWhatTheStoreSaid(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		refused := errors.New("dial tcp: connection refused")
		h := &hooked{Store: b.store,
			claim: func(driver.Lease, context.Context, ...driver.Claim) ([]driver.Place, error) {
				return nil, refused
			}}
		s := b.session("a", h, Options{})
		bad := 0
		for range 10 {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := s.Election("n").Campaign(ctx, nil)
			cancel()
			if !errors.Is(err, ErrUnreachable) || !errors.Is(err, refused) {
				bad++
				t.Log(err)
			}
		}
		if bad > 0 {
			t.Errorf("%d of 10 answers do not say that the store refused connections", bad)
		}
	})
}

// Whoever adds a cause to core gives it an error and a word, and has it counted: no end of a term
// may be told as another one.
func TestEveryCauseHasItsErrorAndItsWord(t *testing.T) {
	all := tallies{}
	for cause := core.None + 1; cause < core.CauseCount; cause++ {
		if row := causes[cause]; row.err == nil || string(row.reason) != cause.String() {
			t.Errorf("%v: error %v, reason %q", cause, row.err, row.reason)
		}
		c := &claim{termState: &termState{}}
		all.ended("n", c.reasonLocked(cause)) // panics where the reason is not counted
	}
}

// A reason that is declared is listed, and a cause of the core has an error and a reason of its
// own.
func TestReasonsAreComplete(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []Reason
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Reason" {
				text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				declared = append(declared, Reason(text))
			}
		}
		return true
	})
	if got := Reasons(); !slices.Equal(got, declared) || len(declared) == 0 {
		t.Errorf("Reasons returns %q, declared are %q", got, declared)
	}
	seen := map[error]bool{}
	for c := core.Expired; c <= core.Closed; c++ {
		err := causeError(c)
		if seen[err] {
			t.Errorf("%v has the error of another cause: %v", c, err)
		}
		seen[err] = true
		if r := ReasonOf(&EndedError{Cause: err}); string(r) != c.String() || !slices.Contains(countedReasons[:], r) {
			t.Errorf("%v has the reason %q", c, r)
		}
	}
	if r := ReasonOf(errors.New("another")); r != "" {
		t.Errorf("another error has the reason %q", r)
	}
}

// A store without tokens gives the token 0, which nobody may take for one.
func TestNoTokenIsTellable(t *testing.T) {
	ended := &EndedError{Name: "n", Cause: ErrExpired}
	if got, want := ended.Error(), `leadership of "n" ended: `+ErrExpired.Error(); got != want {
		t.Errorf("without a token: %q, want %q", got, want)
	}
	ended.Token = 7
	if got, want := ended.Error(), `leadership of "n" under token 7 ended: `+ErrExpired.Error(); got != want {
		t.Errorf("with a token: %q, want %q", got, want)
	}
}
