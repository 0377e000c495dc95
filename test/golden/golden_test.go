//go:build linux

package golden

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/programtest"
)

var update = flag.Bool("update", false, "write testdata/*.golden")

// limit is how long anything may take on a machine that is busy with something else.
const limit = time.Minute

// program is the path of the program under test.
var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		defer programtest.Remove()
		var err error
		if program, err = programtest.Program(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// book is one golden file: sections with a title each, in the order in which they are told.
type book struct {
	t     *testing.T
	path  string
	want  map[string]string
	order []string
}

func open(t *testing.T, name string) *book {
	b := &book{t: t, path: filepath.Join("testdata", name+".golden"), want: map[string]string{}}
	t.Cleanup(b.close)
	if *update {
		return b
	}
	text, err := os.ReadFile(b.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split("\n"+string(text), "\n== ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		b.want[title] = strings.TrimSpace(rest)
	}
	return b
}

// is holds that get returns what the section says, in the end: a step may take its time.
func (b *book) is(title string, get func() string) {
	b.t.Helper()
	b.order = append(b.order, title)
	if *update {
		b.want[title] = strings.TrimSpace(settled(get))
		return
	}
	want, ok := b.want[title]
	if !ok {
		b.t.Errorf("%s has no section %q", b.path, title)
		return
	}
	patience := limit
	if b.t.Failed() {
		patience = limit / 20 // what follows a difference often differs too
	}
	var got string
	for end, pause := time.Now().Add(patience), 20*time.Millisecond; time.Now().Before(end); pause = min(2*pause, time.Second) {
		if got = strings.TrimSpace(get()); got == want {
			return
		}
		time.Sleep(pause)
	}
	b.t.Errorf("%s, section %q:\n%s", b.path, title, diff(want, got))
}

// settled returns what get returns once it has said the same for a second.
func settled(get func() string) string {
	last, same := get(), 0
	for same < 4 {
		time.Sleep(250 * time.Millisecond)
		if now := get(); now != last {
			last, same = now, 0
		} else {
			same++
		}
	}
	return last
}

func (b *book) close() {
	if b.t.Failed() {
		return
	}
	if !*update {
		for title := range b.want {
			if !has(b.order, title) {
				b.t.Errorf("%s: section %q is asked by no test", b.path, title)
			}
		}
		return
	}
	var text strings.Builder
	for _, title := range b.order {
		fmt.Fprintf(&text, "== %s\n%s\n", title, b.want[title])
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		b.t.Error(err)
	}
	if err := os.WriteFile(b.path, []byte(text.String()), 0o644); err != nil {
		b.t.Error(err)
	}
}

func has(all []string, s string) bool {
	for _, x := range all {
		if x == s {
			return true
		}
	}
	return false
}

// diff shows the lines that one of two texts has and the other has not.
func diff(want, got string) string {
	count := map[string]int{}
	for _, l := range strings.Split(want, "\n") {
		count[l]++
	}
	for _, l := range strings.Split(got, "\n") {
		count[l]--
	}
	var lines []string
	for l, n := range count {
		if n > 0 {
			lines = append(lines, "- "+l)
		} else if n < 0 {
			lines = append(lines, "+ "+l)
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// What differs from run to run, and what stands for it.
var varying = []struct {
	is  *regexp.Regexp
	say string
}{
	// Signs of life come a minute after a win: only where the machine is slow.
	{regexp.MustCompile(`,\\?"before\\?":\{[^}]*\}`), ""},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d(:\d\d)?)`), "TIME"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\d{8}T\d{6}Z`), "INSTANT"},
	{regexp.MustCompile(`[A-Z2-7]{26}|\b[a-z2-7]{26}\b`), "BASE32"},
	{regexp.MustCompile(`("marks":)\[[^]]*\]`), "${1}[...]"},
	{regexp.MustCompile(`primacy_[a-z2-7]{26}`), "primacy_BASE32"},
	{regexp.MustCompile(`\b[0-9a-f]{12,}`), "HEX"},
	{regexp.MustCompile(`(\\?"(?:pid|token|claim|revision|seq|rev|beat|\w+_ms|\w+_ns)\\?": ?(?:\\?")?)\d+`), "${1}N"},
	{regexp.MustCompile(`\d{7,}`), "N"},
	{regexp.MustCompile(`(\\?"took\\?": ?\\?")[^"\\]*`), "${1}DURATION"},
	{regexp.MustCompile(`(\\?"term\\?": ?\\?")\w+ \w+`), "${1}LEASE-TOKEN"},
	// Words for people may be said better; what a program compares may not.
	{regexp.MustCompile(`(\\?"(?:err|error|detail|title)\\?": ?\\?")(?:[^"\\]|\\\\\\"|\\")*?(\\?"[,}\n])`), "${1}WORDS${2}"},
	{regexp.MustCompile(`(\\?"text\\?": ?\\?")the (?:supervisor|command)[^"\\]*`), "${1}WORDS"},
}

// hexed is a bytea of PostgreSQL as JSON has it.
var hexed = regexp.MustCompile(`"\\\\x([0-9a-f]*)"`)

// coded is a record in a register's document.
var coded = regexp.MustCompile(`"value":"(eyJ[0-9A-Za-z+/=]*)"`)

func plain(text string) string {
	text = coded.ReplaceAllStringFunc(text, func(m string) string {
		raw, err := base64.StdEncoding.DecodeString(m[len(`"value":"`) : len(m)-1])
		if err != nil {
			return m
		}
		return `"value":base64(` + string(raw) + `)`
	})
	text = hexed.ReplaceAllStringFunc(text, func(h string) string {
		raw, err := hex.DecodeString(h[4 : len(h)-1])
		if err != nil {
			return h
		}
		return strconv.Quote(string(raw))
	})
	for _, v := range varying {
		text = v.is.ReplaceAllString(text, v.say)
	}
	return text
}

// local takes out what belongs to this machine.
func (w *world) local(text string) string {
	host, _ := os.Hostname()
	return strings.NewReplacer(w.url, "URL", w.dir, "DIR", `"`+host+`"`, `"HOST"`, `\"`+host+`\"`, `\"HOST\"`, "@"+host, "@HOST").Replace(text)
}

// sorted returns lines in order, as they stand after what varies was taken out.
func sorted(lines []string) string {
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return strings.Contains(l, "alive/billing") || strings.Contains(l, "alive%2Fbilling")
	})
	for i := range lines {
		lines[i] = strings.TrimSpace(plain(lines[i]))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// world is one store and what runs against it.
type world struct {
	*testing.T
	url string
	dir string
	env []string
}

func newWorld(t *testing.T, url string) *world {
	w := &world{T: t, url: url, dir: t.TempDir()}
	if url == "" {
		w.url = "embedded:" + filepath.Join(w.dir, "store")
	}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PRIMACY_") {
			w.env = append(w.env, e)
		}
	}
	w.env = append(w.env, "PRIMACY_STORE="+w.url, "PRIMACY_TTL=60s", "XDG_RUNTIME_DIR="+w.dir, "TMPDIR="+w.dir, "HOSTNAME=host")
	return w
}

// proc is one run of the program.
type proc struct {
	w      *world
	cmd    *exec.Cmd
	mu     sync.Mutex
	out    bytes.Buffer
	errs   bytes.Buffer
	exited chan struct{}
}

type locked struct {
	p *proc
	b *bytes.Buffer
}

func (l locked) Write(b []byte) (int, error) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.b.Write(b)
}

func (w *world) start(args ...string) *proc {
	w.Helper()
	p := &proc{w: w, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = w.env, w.dir
	p.cmd.Stdout, p.cmd.Stderr = locked{p, &p.out}, locked{p, &p.errs}
	if err := p.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		close(p.exited)
	}()
	w.Cleanup(func() { // a command is given the time to end with all it started
		p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.exited:
		case <-time.After(limit):
			p.cmd.Process.Kill()
			<-p.exited
		}
	})
	return p
}

func (p *proc) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// prints waits until the standard output has a word.
func (p *proc) prints(word string) *proc {
	p.w.Helper()
	for end := time.Now().Add(limit); !strings.Contains(p.text(), word); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.w.Fatalf("%v does not print %q: %s", p.cmd.Args[1:], word, p.errs.String())
		}
	}
	return p
}

// ends waits for the end and returns the exit code.
func (p *proc) ends() int {
	p.w.Helper()
	select {
	case <-p.exited:
	case <-time.After(2 * limit):
		p.w.Fatalf("%v does not end: %s", p.cmd.Args[1:], p.errs.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop ends it by a signal.
func (p *proc) stop() int {
	p.w.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	return p.ends()
}

// say returns the standard output of a run that ends by itself, with its exit code.
func (w *world) say(args ...string) string {
	w.Helper()
	p := w.start(args...)
	code := p.ends()
	return w.local(plain(fmt.Sprintf("%sexit %d", p.text(), code)))
}

func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not in %v: %s", limit, what)
		}
	}
}

func (w *world) write(name, text string) string {
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	return path
}
