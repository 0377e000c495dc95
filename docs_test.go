package primacy_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that the documents name exists: an invariant without its test is a wish.
func TestTheDocumentsNameTestsThatExist(t *testing.T) {
	exists := map[string]bool{}
	asked := map[string]string{} // what a test is skipped without, at its beginning
	fn := regexp.MustCompile(`(?ms)^func (Test\w+)\(.*?^}`)
	skipped := regexp.MustCompile(`(?s)\A[^{]*\{\n(?:\t[^\n]*\n){0,3}?\tif os\.Getenv\("(\w+)"\) == "" \{\n\t\tt\.Skip`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range fn.FindAllSubmatch(b, -1) {
			exists[string(m[1])] = true
			if by := skipped.FindSubmatch(m[0]); by != nil {
				asked[string(m[1])] = string(by[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for doc, least := range map[string]int{"docs/invariants.md": 10, "docs/track-record.md": 10,
		"docs/guarantees.md": 10, "docs/fencing.md": 10, "docs/locks.md": 10, "docs/evidence.md": 5,
		"docs/postgres.md": 0, "docs/serve.md": 0} {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(b, -1)
		if len(names) < least {
			t.Errorf("%s names only %d tests", doc, len(names))
		}
		for _, m := range names {
			if !exists[string(m[1])] {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
			// What no target of the Makefile sets is set by nobody: the test is skipped for ever.
			if by := asked[string(m[1])]; by != "" && !strings.Contains(string(makefile), by+"=") {
				t.Errorf("%s names %s, which is skipped unless %s is set, which the Makefile never does", doc, m[1],
					by)
			}
		}
	}
	// In the tables of guarantees.md each row is a promise.
	b, _ := os.ReadFile("docs/guarantees.md")
	for row := range strings.Lines(string(b)) {
		if strings.HasPrefix(row, "| ") && !strings.Contains(row, "held by") && !strings.Contains(row, "`Test") &&
			!strings.Contains(row, "the same") {
			t.Errorf("docs/guarantees.md promises without a test: %s", row)
		}
	}
	// The number of mutations stands in one place beside the patches themselves.
	patches, err := filepath.Glob("test/mutations/*.patch")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile("docs/evidence.md"); err != nil ||
		!strings.Contains(string(b), fmt.Sprintf("| %d rules taken out", len(patches))) {
		t.Errorf("docs/evidence.md does not say that there are %d mutations (%v)", len(patches), err)
	}
	// Who is new reads these two first.
	for doc, most := range map[string]int{"README.md": 6_000, "ARCHITECTURE.md": 10_000} {
		if b, err := os.ReadFile(doc); err != nil || len(b) > most {
			t.Errorf("%s has %d bytes, at most %d are read (%v)", doc, len(b), most, err)
		}
	}
}

// everyEngineer are the words of exported types and of the program's verbs that need no glossary:
// Go's own, and those of the trade.
const everyEngineer = "lost cause code error event info kind limit map number options owner place reason record request state stats update value " +
	"mutex rwmutex locker semaphore slots caps clock rate server space step news journal lister asker admin exchanger revoker transferer examiner check probe " +
	"ended overrun tally not in remaining life level finding viewer timer id handler callbacks tracer collector " +
	"run leader status lock cron serve top dashboard doctor demo dev schema version help completion stores"

// Every entry of the glossary is used, and every exported type and every verb of the program is
// made of its words or of everybody's.
func TestTheGlossaryIsTrue(t *testing.T) {
	b, err := os.ReadFile("docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, w := range strings.Fields(everyEngineer) {
		known[w] = true
	}
	var all strings.Builder // what the words are used in
	for _, pattern := range []string{"*.md", "docs/*.md", "*.go", "driver/*.go", "cmd/primacy/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, f := range files {
			if f != filepath.Join("docs", "glossary.md") && !strings.HasSuffix(f, "_test.go") {
				text, _ := os.ReadFile(f)
				all.Write(text)
			}
		}
	}
	entries := regexp.MustCompile(`(?m)^\| ([a-zA-Z, ]+) \| `).FindAllSubmatch(b, -1)[1:] // without the head
	if len(entries) > 25 {
		t.Errorf("the glossary has %d entries, and what needs a 26th needs another name", len(entries))
	}
	for _, e := range entries {
		for w := range strings.SplitSeq(string(e[1]), ", ") {
			known[strings.ToLower(w)] = true
			if n := len(regexp.MustCompile(`(?i)\b`+w).FindAllString(all.String(), 3)); n < 3 {
				t.Errorf("the glossary explains %q, which is used %d times", w, n)
			}
		}
	}
	for _, dir := range []string{".", "driver"} {
		for _, name := range exportedTypes(t, dir) {
			for _, w := range regexp.MustCompile(`[A-Z]+[a-z]*`).FindAllString(name, -1) {
				if w = strings.ToLower(w); !known[w] && !known[strings.TrimSuffix(w, "s")] {
					t.Errorf("%s: the type %s has the word %q, which is neither in docs/glossary.md nor everybody's",
						dir, name, w)
				}
			}
		}
	}
	commands, err := os.ReadFile("docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^primacy ([a-z]+)`).FindAllSubmatch(commands, -1) {
		if w := string(m[1]); !known[w] {
			t.Errorf("docs/commands.md: the verb %q is neither in docs/glossary.md nor everybody's", w)
		}
	}
}

func exportedTypes(t *testing.T, dir string) (names []string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() {
					names = append(names, ts.Name.Name)
				}
			}
		}
	}
	if len(names) < 5 {
		t.Fatalf("%s: only %v", dir, names)
	}
	return names
}

// Every link of a document to a file of this repository leads somewhere.
func TestTheLinksOfTheDocumentsLead(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	seen := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range link.FindAllSubmatch(b, -1) {
			seen++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), string(m[1]))); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			}
		}
		return err
	})
	if err != nil || seen < 30 {
		t.Errorf("%d links were looked at (%v)", seen, err)
	}
}
