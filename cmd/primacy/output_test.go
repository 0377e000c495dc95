package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/primacy-go/primacy"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "",
		"web-1.example:80":              "web-1.example:80",
		"a\nb\tc\x00d":                  "a·b·c·d",
		"\x1b[2Jx":                      "·[2Jx",
		"\xff\xfe":                      "··",
		"grün 🙂 日本":                     "grün 🙂 日本",
		"\u202egnp.exe":                 "·gnp.exe", // would be read backwards
		"\u200bx\u00adx\ufeff":          "·x·x·",    // unseen
		"\u009b31m":                     "·31m",     // ESC [ in one
		strings.Repeat("x", 60):         strings.Repeat("x", 60),
		strings.Repeat("x", 61):         strings.Repeat("x", 59) + "…",
		strings.Repeat("ü", 1_000_000):  strings.Repeat("ü", 59) + "…",
		strings.Repeat("🙂", 60):         strings.Repeat("🙂", 60),
		strings.Repeat("\xff", 500_000): strings.Repeat("·", 59) + "…",
	} {
		if got := clean(in); got != want {
			t.Errorf("%q: got %q, want %q", clip(in), got, clip(want))
		}
	}
	safe := func(b []byte) bool {
		s := clean(string(b))
		return utf8.ValidString(s) && utf8.RuneCountInString(s) <= 60 &&
			!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) &&
			clean(s) == s
	}
	if err := quick.Check(safe, &quick.Config{MaxCount: 2000}); err != nil {
		t.Error(err)
	}
}

func clip(s string) string {
	if len(s) > 2000 {
		return s[:2000] + "…"
	}
	return s
}

func TestWho(t *testing.T) {
	for want, s := range map[string]*primacy.Entry{
		"(nobody)":                  nil,
		"a·b":                       {ID: "a\nb", Value: []byte("v")},
		"v· (another program)":      {Value: []byte("v\x1b"), Lease: "1f"},
		"another program, lease 1f": {Lease: "1f"},
		"another program, lease -":  {},
	} {
		if got := who(s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{"primacy: a": "a", "a\nb\r\nc\n": "a; b; c"} {
		if got := oneLine(fail(1, "%s", in)); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestTwoLeadersBites(t *testing.T) {
	ms := func(n int) time.Duration { return time.Hour + time.Duration(n)*time.Millisecond }
	for name, c := range map[string]struct {
		periods             []period
		instants, backwards int
	}{
		"nobody": {nil, 0, 0},
		"one":    {[]period{{token: 5, first: ms(0), last: ms(100)}}, 0, 0},
		"one after the other": {[]period{{token: 5, first: ms(0), last: ms(100)},
			{token: 6, first: ms(101), last: ms(200)}}, 0, 0},
		"in the same instant": {[]period{{token: 5, first: ms(0), last: ms(100)},
			{token: 6, first: ms(100), last: ms(200)}}, 1, 0},
		"for 10 ms": {[]period{{token: 5, first: ms(0), last: ms(100)},
			{token: 6, first: ms(90), last: ms(200)}}, 3, 0},
		"one within another": {[]period{{token: 5, first: ms(0), last: ms(100)},
			{token: 6, first: ms(50), last: ms(60)}}, 3, 0},
		"a long one and a third": {[]period{{token: 5, first: ms(0), last: ms(100)},
			{token: 6, first: ms(10), last: ms(10)}, {token: 7, first: ms(50), last: ms(50)}}, 2, 0},
		"backwards": {[]period{{token: 6, first: ms(0), last: ms(1)},
			{token: 5, first: ms(2), last: ms(3)}}, 0, 1},
		"backwards behind one": {[]period{{token: 6, first: ms(0), last: ms(1)},
			{token: 4, first: ms(2), last: ms(3)}, {token: 5, first: ms(4), last: ms(5)}}, 0, 2},
	} {
		if i, b := twoLeaders(c.periods); i != c.instants || b != c.backwards {
			t.Errorf("%s: got %d instants, %d backwards; want %d, %d", name, i, b, c.instants, c.backwards)
		}
	}
}

func TestReadReigns(t *testing.T) {
	dir := t.TempDir()
	read := func(text string) ([]period, error) {
		file := filepath.Join(dir, "acts")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readPeriods(file)
	}
	got, err := read("100 7 b\n300 5 a\n90 7 b\n110 7 b\n200 5 a\n18446 9223372036854775808 c\n400 5")
	want := []period{{7, "b", 90, 110, 3}, {5, "a", 200, 300, 2}, {1 << 63, "c", 18446, 18446, 1}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := read(""); err != nil || len(got) != 0 {
		t.Errorf("an empty file: %v, %v", got, err)
	}
	// A torn or mixed line must not be skipped: what it hides might be the second leader.
	for _, text := range []string{"\n", "100 7\n", "100 7 b c\n", "x 7 b\n", "100 -7 b\n",
		"100 7 b\n100 7 b200 5 a\n"} {
		if got, err := read(text); err == nil || !strings.Contains(err.Error(), "is not what a worker writes") {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
	if _, err := readPeriods(filepath.Join(dir, "nosuch")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}

func TestHasPassword(t *testing.T) {
	for store, want := range map[string]bool{
		"": false, "embedded:": false, "embedded:/a@b:c": false, "etcd://h": false,
		"etcd://h:2379,h2:2379/prefix": false,
		"etcd://[::1]:2379":            false, "etcd://user@h": false, "etcd://user@h?password-file=/x": false,
		"etcd://u:p@h": true, "etcd://u:@h": true, "etcds://u:p@h:1/x?ca=/f": true, "etcd://:p@h": true,
		"etcd://u:a/b@h": true, "etcd://u:a?b@h": true, "etcd://u:a#b@h": true, "etcd://u:a@b@h": true,
		"etcd://u:a://b@h": true, "postgres://u@h/d?sslmode=require&sslpassword=p": true,
		"postgres://u@h/d?password=p": true, "postgres://u@h/d?p%61ssword=p": true,
		"postgres://u@h/d?passfile=/x&sslkey=/y": false, "redis://h?sentinel-password-file=/x": false,
	} {
		if got := hasPassword(store); got != want {
			t.Errorf("%s: got %v", store, got)
		}
	}
	// However it is written, one that is there is seen.
	seen := func(user, pw, rest string) bool { return hasPassword("etcd://" + user + ":" + pw + "@" + rest) }
	if err := quick.Check(seen, nil); err != nil {
		t.Error(err)
	}
}

func TestTheStateFileFolderMustBeOurs(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if got, err := runtimeDir(); err != nil || got != filepath.Join(dir, "primacy") {
		t.Fatalf("got %q, %v", got, err)
	}
	for name, spoil := range map[string]func(path string) error{
		"open to all": func(path string) error { return os.Chmod(path, 0o755) },
		"a link": func(path string) error {
			if err := os.Rename(path, path+"-elsewhere"); err != nil {
				return err
			}
			return os.Symlink(path+"-elsewhere", path)
		},
	} {
		dir := t.TempDir()
		t.Setenv("XDG_RUNTIME_DIR", dir)
		if err := os.Mkdir(filepath.Join(dir, "primacy"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := spoil(filepath.Join(dir, "primacy")); err != nil {
			t.Fatal(err)
		}
		if _, err := runtimeDir(); err == nil || !strings.Contains(err.Error(), dir) ||
			!strings.Contains(err.Error(), "mode 0700") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// An ID in the store may be any text, and errors have IDs: a terminal is not given its controls.
func TestAnErrorHasNoControlsForTheTerminal(t *testing.T) {
	err := errors.New("primacy: \x1b[2Jweb\u202e-1 has not\tgiven it up\nafter 30s")
	if got := oneLine(err); got != "·[2Jweb·-1 has not·given it up; after 30s" {
		t.Errorf("%q", got)
	}
}
