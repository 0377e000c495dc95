package ratchet

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	update = flag.Bool("update", false, "take out of the lists what is no longer needed")
	begin  = flag.Bool("begin", false, "write the lists anew, with all that is too large now")
)

const root = "../.."

// file is a source file of ours, parsed. Tests count for their width only.
type file struct {
	path string
	text string
	ast  *ast.File
}

func files(t *testing.T) (all []file) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (name == "testdata" || name == "dist" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all = append(all, file{name, string(text), parsed})
		return err
	})
	if err != nil || len(all) < 100 {
		t.Fatalf("%d files: %v", len(all), err)
	}
	return all
}

// receiver returns the name of a method's type, "" of a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return ""
	}
	x := f.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		case *ast.Ident:
			return y.Name
		default:
			return ""
		}
	}
}

// TestTypesStaySmall: at most 40 methods, in at most 6 files.
func TestTypesStaySmall(t *testing.T) {
	methods, in := map[string]int{}, map[string]map[string]bool{}
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && receiver(fn) != "" {
				name := filepath.Dir(f.path) + "." + receiver(fn)
				if in[name] == nil {
					in[name] = map[string]bool{}
				}
				in[name][f.path] = true
				methods[name]++
			}
		}
	}
	large := map[string]int{}
	for name, n := range methods {
		if n > 40 || len(in[name]) > 6 {
			large[name] = 1
		}
	}
	hold(t, "types.txt", large)
}

// TestFunctionsStaySimple: at most 20 branches.
func TestFunctionsStaySimple(t *testing.T) {
	large := map[string]int{}
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := 0
			ast.Inspect(fn, func(node ast.Node) bool {
				switch x := node.(type) {
				case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
					n++
				case *ast.CaseClause:
					if x.List != nil {
						n++
					}
				case *ast.CommClause:
					n++
				case *ast.BinaryExpr:
					if x.Op == token.LAND || x.Op == token.LOR {
						n++
					}
				}
				return true
			})
			if n > 20 {
				large[fmt.Sprintf("%s.%s.%s", filepath.Dir(f.path), receiver(fn), fn.Name.Name)] = 1
			}
		}
	}
	hold(t, "functions.txt", large)
}

// TestLinesStayNarrow, by folder: code at most 120 columns, comments 100, a tab is 4.
func TestLinesStayNarrow(t *testing.T) {
	wide := map[string]int{}
	for _, f := range files(t) {
		for _, line := range strings.Split(f.text, "\n") {
			line = strings.ReplaceAll(line, "\t", "    ")
			most := 120
			if strings.HasPrefix(strings.TrimSpace(line), "//") {
				most = 100
			}
			if len([]rune(line)) > most {
				wide[filepath.Dir(f.path)]++
			}
		}
	}
	hold(t, "wide.txt", wide)
}

// hold compares what is too large with its list: no more than that, and nothing in the list that is
// small by now.
func hold(t *testing.T, name string, large map[string]int) {
	t.Helper()
	path := filepath.Join("testdata", name)
	listed := map[string]int{}
	text, err := os.ReadFile(path)
	if err != nil && !*begin {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var what string
		var n int
		if _, err := fmt.Sscan(line, &n, &what); err == nil {
			listed[what] = n
		}
	}
	if *begin {
		listed = large
	}
	for what, n := range large {
		if most, ok := listed[what]; !ok {
			t.Errorf("%s is too large (%d), and not in %s: make it smaller", what, n, path)
		} else if n > most {
			t.Errorf("%s has grown to %d, from %d in %s: make it smaller", what, n, most, path)
		}
	}
	for what := range listed {
		if n := large[what]; n == 0 && !*update {
			t.Errorf("%s is small enough: remove it from %s (-update does)", what, path)
		} else {
			listed[what] = min(listed[what], n)
		}
	}
	if !*update && !*begin {
		return
	}
	var lines []string
	for what, n := range listed {
		if n > 0 {
			lines = append(lines, fmt.Sprintf("%d %s\n", n, what))
		}
	}
	slices.SortFunc(lines, func(a, b string) int {
		_, a, _ = strings.Cut(a, " ")
		_, b, _ = strings.Cut(b, " ")
		return strings.Compare(a, b)
	})
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644); err != nil {
		t.Error(err)
	}
}
