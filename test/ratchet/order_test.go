package ratchet

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mostUp is how many uses of the root package may run against the order of its files. It may only
// shrink.
const mostUp = 15

// TestTheFilesOfTheRootStandInAnOrder: each file uses only what those after it in ARCHITECTURE.md
// define, but for mostUp names. A name that a file uses often counts once.
func TestTheFilesOfTheRootStandInAnOrder(t *testing.T) {
	text, err := os.ReadFile(root + "/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	if m := regexp.MustCompile(`(?s)uses only those after it[^:]*: (.*?)\.\s`).FindSubmatch(text); m != nil {
		order = regexp.MustCompile(`\w+`).FindAllString(string(m[1]), -1)
	}
	fset := token.NewFileSet()
	paths, err := filepath.Glob(root + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var all []*ast.File
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".go")
		if strings.HasSuffix(name, "_test") || name == "doc" {
			continue
		}
		if !slices.Contains(order, name) {
			t.Errorf("ARCHITECTURE.md does not say where %s.go stands", name)
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	if len(all) != len(order) {
		t.Errorf("ARCHITECTURE.md orders %d files, there are %d", len(order), len(all))
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	pkg, err := conf.Check("primacy", fset, all, info)
	if err != nil {
		t.Fatal(err)
	}
	at := func(p token.Pos) int {
		return slices.Index(order, strings.TrimSuffix(filepath.Base(fset.Position(p).Filename), ".go"))
	}
	up := map[string]bool{}
	noName := func(*types.Package) string { return "" }
	for id, o := range info.Uses {
		fn, _ := o.(*types.Func)
		method := fn != nil && fn.Signature().Recv() != nil
		if o.Pkg() == pkg && (method || o.Parent() == pkg.Scope()) && at(o.Pos()) < at(id.Pos()) {
			name := o.Name()
			if method {
				name = types.TypeString(fn.Signature().Recv().Type(), noName) + "." + name
			}
			up[order[at(id.Pos())]+".go uses "+name+" of "+order[at(o.Pos())]+".go"] = true
		}
	}
	if len(up) != mostUp {
		t.Errorf("%d uses run against the order, want %d (if they are fewer, make mostUp smaller):", len(up), mostUp)
		for use := range up {
			t.Log(use)
		}
	}
}
