//go:build linux

package torture

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/safety"
)

// act is one line of what commands write.
type act struct {
	at    time.Duration
	token uint64
	id    string
}

// journal is the file that all commands write, as read so far. Its order is that of the appends.
type journal struct {
	path string
	read int64
	acts []act
	top  act // the last act under the largest token
}

// poll reads what is new.
func (j *journal) poll(t testing.TB) {
	t.Helper()
	f, err := os.Open(j.path)
	if os.IsNotExist(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, max(0, info.Size()-j.read))
	n, _ := f.ReadAt(text, j.read)
	text = text[:bytes.LastIndexByte(text[:n], '\n')+1]
	j.read += int64(len(text))
	for line := range bytes.Lines(text) {
		var a act
		if _, err := fmt.Sscanf(string(line), "%d %d %s", &a.at, &a.token, &a.id); err != nil {
			t.Fatalf("%s: %q: %v", j.path, line, err)
		}
		j.acts = append(j.acts, a)
		if a.token >= j.top.token {
			j.top = a
		}
	}
}

func readActs(t testing.TB, path string) []act {
	t.Helper()
	j := &journal{path: path}
	j.poll(t)
	return j.acts
}

// late is a term whose acts after an instant are excused, and that instant: a cgroup that froze its
// supervisor, guardian and command was thawed, or an operator removed its claim.
type late struct {
	token uint64
	thaw  time.Duration
	index int // in the journal: what was appended later was written after the thaw
}

// history returns the terms that the acts tell of, without acts that followed a thaw.
func (j *journal) history(thaws []late) ([]safety.Interval, error) {
	var kept bytes.Buffer
	for _, a := range j.acts {
		if !isLate(a, thaws) {
			fmt.Fprintf(&kept, "%d %d %s\n", a.at, a.token, a.id)
		}
	}
	return safety.Read("torture", &kept)
}

func isLate(a act, thaws []late) bool {
	for _, l := range thaws {
		if a.token == l.token && a.at >= l.thaw {
			return true
		}
	}
	return false
}

// fence plays a resource that refuses a token smaller than one it has seen. It returns how many
// acts that refuses, and how many of them were not appended after a thaw: nothing else may need a
// fence.
func (j *journal) fence(thaws []late) (refused, unexpected int) {
	var seen uint64
	for i, a := range j.acts {
		if a.token >= seen {
			seen = a.token
			continue
		}
		refused++
		known := false
		for _, l := range thaws {
			known = known || a.token == l.token && i >= l.index
		}
		if !known {
			unexpected++
		}
	}
	return refused, unexpected
}

// gap returns for how long nobody acted before the term of token began.
func (j *journal) gap(token uint64, thaws []late) time.Duration {
	var last, first time.Duration
	for _, a := range j.acts {
		switch {
		case a.token == token && (first == 0 || a.at < first):
			first = a.at
		case a.token < token && !isLate(a, thaws):
			last = max(last, a.at)
		}
	}
	return first - last
}
