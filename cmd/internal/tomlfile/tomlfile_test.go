package tomlfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/tomlfile"
)

const text = `number = 5
words = ["a", "b"]
[table]
inside.deep = "x"

[[tables]]
a = 1
`

func TestWhatAValueIs(t *testing.T) {
	_, top, err := tomlfile.Parse("f.toml", text)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]struct {
		at          string
		table, list bool
	}{
		"number": {"f.toml:1", false, false}, // the parser decodes it into a map, which is empty
		"words":  {"f.toml:2", false, true},
		"table":  {"f.toml:3", true, false},
		"tables": {"f.toml:6", false, false},
	} {
		v := top[key]
		if keys, ok := v.Table(); ok != want.table || (keys != nil) != want.table || v.IsTable() != want.table ||
			v.IsList() != want.list || v.At() != want.at {
			t.Errorf("%s: table %v, %v, list %v, at %s", key, keys, v.IsTable(), v.IsList(), v.At())
		}
	}
	below, _ := top["table"].Table()
	inside, ok := below["inside"].Table()
	var x string
	if !ok || inside["deep"].At() != "f.toml:4" || inside["deep"].Decode(&x) != nil || x != "x" {
		t.Errorf("table.inside: %v, deep = %q", inside, x)
	}
	var n int
	if err := inside["deep"].Decode(&n); err == nil || strings.ContainsAny(err.Error(), "\n") ||
		strings.HasPrefix(err.Error(), "toml") {
		t.Errorf("a string as a number: %v", err)
	}
}

func TestABrokenFileIsToldInOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"a = 1\nb = c\n":   "f.toml:2: ",
		"a = 1\n\n[b c]\n": "f.toml:3: ",
		"a = 1\na = 2":     "f.toml:2: ",
		"a = \"x\ny\"":     "f.toml:1: ",
	} {
		_, _, err := tomlfile.Parse("f.toml", text)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.ContainsAny(err.Error(), "\n\r") ||
			strings.Contains(err.Error(), "toml: ") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.toml")
	if err := os.WriteFile(path, []byte("a = 123"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := tomlfile.Read(path, 7); err != nil || got != "a = 123" {
		t.Errorf("a file as large as may be: %q, %v", got, err)
	}
	for _, path := range []string{path, "/dev/zero"} {
		if _, err := tomlfile.Read(path, 6); err == nil || err.Error() != path+": it is larger than 6 bytes" {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := tomlfile.Read(path+"x", 6); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}
