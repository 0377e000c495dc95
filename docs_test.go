package primacy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that the documents name exists: an invariant without its test is a handOverRequest.
func TestTheDocumentsNameTestsThatExist(t *testing.T) {
	exists := map[string]bool{}
	fn := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range fn.FindAllSubmatch(b, -1) {
			exists[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range []string{"docs/invariants.md", "docs/track-record.md", "docs/guarantees.md", "docs/fencing.md",
		"docs/locks.md"} {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(b, -1)
		if len(names) < 10 {
			t.Errorf("%s names only %d tests", doc, len(names))
		}
		for _, m := range names {
			if !exists[string(m[1])] {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
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
	// Who is new reads these two first.
	for doc, most := range map[string]int{"README.md": 6_000, "ARCHITECTURE.md": 10_000} {
		if b, err := os.ReadFile(doc); err != nil || len(b) > most {
			t.Errorf("%s has %d bytes, at most %d are read (%v)", doc, len(b), most, err)
		}
	}
}
