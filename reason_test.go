package primacy

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/primacy-go/primacy/internal/core"
)

// A reason that is declared is listed, and a cause of the core has an error and a reason of its own.
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
		if r := ReasonOf(&EndedError{Cause: err}); string(r) != c.String() || !slices.Contains(reasons[:], r) {
			t.Errorf("%v has the reason %q", c, r)
		}
	}
	if r := ReasonOf(errors.New("another")); r != "" {
		t.Errorf("another error has the reason %q", r)
	}
}
