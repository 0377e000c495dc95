//go:build linux

package torture

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// TestLockModels shows what the models of the locks let pass, and that they bite. The records are
// written by hand, a line for each thing that a worker would have noted, in ns; {p} opens the
// record of process p, which ended at its own over.
func TestLockModels(t *testing.T) {
	for name, test := range map[string]struct {
		kind   string
		record string
		legal  bool
	}{
		"one after another": {kindMutex, `
			a: lock 0-1 token 1, yes 5, free 6-7
			b: lock 0-8 token 2, yes 9, free 10-11`, true},
		"had before the answer to giving it back": {kindMutex, `
			a: lock 0-1 token 1, yes 5, free 6-20
			b: lock 0-8 token 2, yes 9, free 10-11`, true},
		"two at once": {kindMutex, `
			a: lock 0-1 token 1, yes 9, free 12-13
			b: lock 2-8 token 2, yes 9, free 10-11`, false},
		"acts again after another has had it": {kindMutex, `
			a: lock 0-1 token 1, yes 30, no 31
			b: lock 2-8 token 2, yes 9, free 10-11`, false},
		"the token goes back": {kindMutex, `
			a: lock 0-1 token 2, yes 5, free 6-7
			b: lock 8-9 token 1, yes 9, free 10-11`, false},
		"the tokens of two that waited at once": {kindMutex, `
			a: lock 0-9 token 2, yes 9, free 10-11
			b: lock 0-9 token 1, yes 3, free 4-5`, true},
		"one token twice": {kindMutex, `
			a: lock 0-1 token 1, yes 5, free 6-7
			b: lock 8-9 token 1, yes 9, free 10-11`, false},
		"killed, and had by another after the deadline": {kindMutex, `
			a: lock 0-1 token 1, yes 5 until 20
			b: lock 2-21 token 2, yes 22, free 23-24`, true},
		"killed, and had by another before the deadline": {kindMutex, `
			a: lock 0-1 token 1, yes 5 until 20
			b: lock 2-19 token 2, yes 19, free 23-24`, false},
		"frozen, and given back after the deadline and the next": {kindMutex, `
			a: lock 0-1 token 1, yes 5 until 20, free 50-51
			b: lock 2-21 token 2, yes 22, free 23-24`, true},
		"given back before the deadline, and had by another": {kindMutex, `
			a: lock 0-1 token 1, yes 5 until 20, free 6-7
			b: lock 2-8 token 2, yes 9, free 23-24`, true},
		"given back before the deadline, and had by another before that": {kindMutex, `
			a: lock 0-1 token 1, yes 3 until 20, free 9-10
			b: lock 2-8 token 2, yes 9, free 23-24`, false},
		"Check says no at the deadline": {kindMutex, `
			a: lock 0-1 token 1, yes 19 until 20, no 21, free 40-41
			b: lock 2-22 token 2, yes 23, free 24-25`, true},
		"taken away, as Check says before another has it": {kindMutex, `
			a: lock 0-1 token 1, yes 5 until 20, no 9
			b: lock 2-8 token 2, yes 8, free 24-25`, true},
		"killed in the call": {kindMutex, `
			a: lock 0
			b: lock 2-8 token 2, yes 8, free 24-25`, true},
		"did not get it": {kindMutex, `
			a: trylock 0-1
			b: lock 0-8 token 2, yes 8, free 24-25`, true},
		"without tokens, one after another": {kindBare, `
			a: lock 0-1 token 2, yes 5, free 6-7
			b: lock 0-8 token 1, yes 9, free 10-11`, true},
		"without tokens, two at once": {kindBare, `
			a: lock 0-1 token 1, yes 9, free 12-13
			b: lock 2-8 token 2, yes 9, free 10-11`, false},
		"readers together, in any order": {kindRW, `
			a: rlock 0-1 token 3, yes 9, free 10-11
			b: rlock 2-3 token 2, yes 9, free 10-11
			c: lock 2-12 token 4, yes 13, free 14-15`, true},
		"a writer beside a reader": {kindRW, `
			a: rlock 0-1 token 1, yes 9, free 12-13
			b: lock 2-8 token 2, yes 9, free 10-11`, false},
		"a reader beside a writer": {kindRW, `
			a: lock 0-1 token 1, yes 9, free 12-13
			b: rlock 2-8 token 2, yes 9, free 10-11`, false},
		"two writers": {kindRW, `
			a: lock 0-1 token 1, yes 9, free 12-13
			b: lock 2-8 token 2, yes 9, free 10-11`, false},
		"a reader's token below that of the writer before it": {kindRW, `
			a: lock 0-1 token 2, yes 3, free 4-5
			b: rlock 6-8 token 1, yes 9, free 10-11`, false},
		"a writer's token below that of a reader before it": {kindRW, `
			a: rlock 0-1 token 2, yes 3, free 4-5
			b: lock 6-8 token 1, yes 9, free 10-11`, false},
		"a dead reader keeps a writer out until its deadline": {kindRW, `
			a: rlock 0-1 token 1, yes 3 until 20
			b: lock 2-8 token 2, yes 9, free 10-11`, false},
		"one token for two readers": {kindRW, `
			a: rlock 0-1 token 1, yes 3, free 4-5
			b: rlock 0-8 token 1, yes 9, free 10-11`, false},
		"three of three": {kindSemaphore, `
			a: acquire 0-1 token 1, yes 9, free 12-13
			b: acquire 0-2 token 2, yes 9, free 12-13
			c: acquire 0-3 token 3, yes 9, free 12-13
			d: acquire 0-14 token 4, yes 15, free 16-17`, true},
		"four of three": {kindSemaphore, `
			a: acquire 0-1 token 1, yes 9, free 12-13
			b: acquire 0-2 token 2, yes 9, free 12-13
			c: acquire 0-3 token 3, yes 9, free 12-13
			d: acquire 0-8 token 4, yes 8, free 16-17`, false},
		"a dead one has its slot until its deadline": {kindSemaphore, `
			a: acquire 0-1 token 1, yes 2 until 20
			b: acquire 0-2 token 2, yes 9, free 12-13
			c: acquire 0-3 token 3, yes 9, free 12-13
			d: acquire 0-8 token 4, yes 8, free 9-10`, false},
		"the token of a semaphore goes back": {kindSemaphore, `
			a: acquire 0-1 token 2, yes 9, free 12-13
			b: acquire 2-3 token 1, yes 9, free 12-13`, false},
	} {
		h := byHand(t, test.kind, test.record)
		v := judgeHolds(test.kind, "x", h.holds, time.Minute)
		if got := v.fault == ""; got != test.legal {
			t.Errorf("%s: porcupine says %s, fault %q, want legal = %v", name, v.result, v.fault, test.legal)
		}
		if v.result != porcupine.Illegal {
			continue
		}
		path := filepath.Join(t.TempDir(), "picture.html")
		if err := v.draw(test.kind, path); err != nil || len(v.window) < 2 || len(v.window) > 4 {
			t.Errorf("%s: a window of %d holds, its picture: %v", name, len(v.window), err)
		}
	}
}

// TestLockWindow looks that the fault in a long history is found, and shown without the rest.
func TestLockWindow(t *testing.T) {
	var record strings.Builder
	for i := range 500 {
		fmt.Fprintf(&record, "a: lock %d-%d token %d, yes %d, free %d-%d\n", 10*i, 10*i+1, i+1, 10*i+5, 10*i+6, 10*i+7)
	}
	h := byHand(t, kindMutex, record.String())
	if v := judgeHolds(kindMutex, "x", h.holds, time.Minute); v.fault != "" {
		t.Fatal(v.fault)
	}
	h.holds[300].lastYes = h.holds[301].back + 1
	v := judgeHolds(kindMutex, "x", h.holds, time.Minute)
	if v.result != porcupine.Illegal || len(v.window) != 2 || v.window[0] != h.holds[300] ||
		v.window[1] != h.holds[301] {
		t.Errorf("porcupine says %s, a window of %d holds, %s", v.result, len(v.window), v.fault)
	}
}

// byHand turns the short form into the records of workers, and reads those.
func byHand(t *testing.T, kind, text string) *lockHistory {
	t.Helper()
	h := &lockHistory{without: map[string]int{}}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		who, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		var record strings.Builder
		for _, part := range strings.Split(rest, ", ") {
			lineByHand(t, &record, kind, part)
		}
		if err := h.read([]byte(record.String()), fmt.Sprint(who, i), 1000000); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func lineByHand(t *testing.T, record *strings.Builder, kind, part string) {
	t.Helper()
	var word string
	var from, to, token, until int
	scan := func(format string, values ...any) bool {
		n, _ := fmt.Sscanf(part, format, values...)
		return n == len(values)
	}
	switch {
	case scan("%s %d-%d token %d", &word, &from, &to, &token):
		fmt.Fprintf(record, "call %d 1 %s x %s\nheld %d %d 1 %d 0\n", from, kind, word, from, to, token)
	case scan("yes %d until %d", &from, &until):
		fmt.Fprintf(record, "yes %d %d 1 %d\n", from, from, until)
	case scan("yes %d", &from):
		fmt.Fprintf(record, "yes %d %d 1 0\n", from, from)
	case scan("no %d", &from):
		fmt.Fprintf(record, "no %d %d 1 expired\n", from, from)
	case scan("free %d-%d", &from, &to):
		fmt.Fprintf(record, "free %d 1\nfreed %d %d 1 ok\n", from, from, to)
	case scan("%s %d-%d", &word, &from, &to):
		fmt.Fprintf(record, "call %d 1 %s x %s\nnot %d %d 1 held\n", from, kind, word, from, to)
	case scan("%s %d", &word, &from):
		fmt.Fprintf(record, "call %d 1 %s x %s\n", from, kind, word)
	default:
		t.Fatalf("%q is not of the short form", part)
	}
}
