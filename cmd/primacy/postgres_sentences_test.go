package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// passing is what list says that needs nobody: it ends by itself, or says that all is well. Each
// begins one sentence of the code.
var passing = []string{
	"%s is the primary under token %d",
	"a commit waits for no standby, and a failover may lose the last ones (async).",
	"a commit needs %d of %s; a failover needs",
	"a commit needs %s; a failover needs",
	"the cluster is %s%s: nobody else is promoted",
	"nobody but the primary stands during a pause",
	"the pause is not complete: waits until no other member stands",
	"waits a moment for voters who can be reached",
	"%s is to be promoted; others have %v to answer",
	"waits for the answer of %s, which is to be promoted",
	"waits for its term",
	"waits for the member that was adopted as the primary",
	"writes a checkpoint, so that the stop before the switchover is short",
	"it has acknowledged nothing since, and is rewound",
	"it has just begun",
	"Nobody is the primary: %s leads under token %d, and is %s; %s.", // the last is a sentence by itself
}

// parts are of sentences whose rows quote another part.
var parts = []string{
	"%d of the %d voters that are needed have answered", "waits for …", // before whom it waits for
	"%s lags by %d KiB", "does not stream", "does not vote", "must not be promoted (nofailover)", // no switchover
	"waits for a primary to be rewound from",                         // promoted by hand
	"its server has ended",                                           // of history
	"on its server psql -c", "take it out there, then on its server", // set past primacy
	"(since …)",
	"the record in the store", "the store has no record of this cluster any more", // a lost store
}

// TestEachSentenceOfListHasItsRow: whoever reads a sentence of list finds in
// docs/postgres-failover.md what to type. A new sentence gets a row there, or a line in passing.
func TestEachSentenceOfListHasItsRow(t *testing.T) {
	page, err := os.ReadFile("../../docs/postgres-failover.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(t, string(page))
	said := slices.Concat(
		sentencesIn(t, "../internal/postgres/core", "Error", "otherData", "adoptedTwice", "tells", "successor",
			"missing"),
		sentencesIn(t, ".", "sentence", "addAbsent", "settings", "override"))
	unused := map[string]bool{}
	for _, text := range slices.Concat(rows, passing, parts) {
		unused[text] = true
	}
	for _, text := range said {
		has := false
		for _, row := range rows {
			if strings.Contains(text, longest(row)) || strings.Contains(row, longest(text)) {
				has, unused[row] = true, false
			}
		}
		for _, p := range slices.Concat(passing, parts) {
			if strings.HasPrefix(strings.TrimLeft(text, "… ;("), strings.TrimLeft(p, "(")) {
				has, unused[p] = true, false
			}
		}
		if !has {
			t.Errorf("no row of the page is about what list says: %q", text)
		}
	}
	for text, is := range unused {
		if is {
			t.Errorf("the page has a row, or this test a line, for what no code says: %q", text)
		}
	}
	if len(said) < 40 || len(rows) < 20 {
		t.Errorf("only %d sentences and %d rows were found", len(said), len(rows))
	}
}

// rowsOf returns what the first column of the page's table quotes.
func rowsOf(t *testing.T, page string) (all []string) {
	_, rest, ok := strings.Cut(page, "\n| what it says | what to do |\n|---|---|\n")
	table, _, end := strings.Cut(rest, "\n\n")
	if !ok || !end {
		t.Fatal("the page has no such table")
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(table) {
		first, what, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !strings.Contains(what, " |") || len(what) < 5 {
			t.Errorf("a row says nothing to do: %s", line)
		}
		for _, m := range quoted.FindAllStringSubmatch(first, -1) {
			if !state.MatchString(m[1]) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// state is what rows quote that is no sentence: a state, or an action with an error of its own.
var state = regexp.MustCompile(`^(broken|absent|level=\w+|[a-z]+: …)$`)

var verbs = regexp.MustCompile(`%(\[\d\])?[a-z]|…`)

// longest returns the longest part of a text between what stands for something else.
func longest(text string) string {
	part := slices.MaxFunc(verbs.Split(text, -1), func(a, b string) int { return len(a) - len(b) })
	return strings.Trim(part, " ()")
}

// sentencesIn returns what the code in a folder says of why a member is as it is: what is assigned
// to why, Why and broken, constants that are part of it, and all texts of some functions.
func sentencesIn(t *testing.T, dir string, functions ...string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	all, missed := map[string]bool{}, map[string]bool{}
	for _, name := range functions {
		missed[name] = true
	}
	add := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text, whole := folded(e)
			if len(strings.Fields(text)) > 1 && strings.Trim(verbs.ReplaceAllString(text, ""), " ,.;:()") != "" {
				all[text] = true
			}
			return !whole
		})
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") || dir == "." && filepath.Base(path) != "postgres_verbs.go" {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if slices.Contains(functions, n.Name.Name) {
					delete(missed, n.Name.Name)
					add(n.Body)
					return false
				}
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					if tells(to) && dir != "." {
						add(n.Rhs[min(i, len(n.Rhs)-1)])
					}
				}
			case *ast.CompositeLit:
				for _, e := range n.Elts {
					kv, ok := e.(*ast.KeyValueExpr)
					if name, is := n.Type.(*ast.Ident); ok && is && name.Name == "Verdict" && tells(kv.Key) {
						add(kv.Value)
					}
				}
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if i < len(n.Values) && (name.Name == "wasTaken" || name.Name == "noRoom") {
						add(n.Values[i])
					}
				}
			}
			return true
		})
	}
	for name := range missed {
		t.Errorf("%s has no function %s any more", dir, name)
	}
	return slices.Sorted(maps.Keys(all))
}

// tells says whether what is assigned there is shown to people.
func tells(to ast.Expr) bool {
	name := ""
	switch to := to.(type) {
	case *ast.Ident:
		name = to.Name
	case *ast.SelectorExpr:
		name = to.Sel.Name
	}
	return name == "why" || name == "Why" || name == "broken"
}

// folded is the text of an expression that adds texts; what is no literal stands in it as three
// dots. whole says that it is one text.
func folded(e ast.Expr) (text string, whole bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		a, first := folded(e.X)
		b, second := folded(e.Y)
		if !first {
			a = "…"
		}
		if !second {
			b = "…"
		}
		return a + b, first || second
	}
	return "", false
}
