//go:build linux

package torture

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/open"
)

const pauseTTL = 2 * time.Second // etcd's least

// pauseMain leads and asks all the time whether it leads, and when it does not any more leads
// again. It writes lines:
//
//	leads AT                     it has a term, at AT
//	gap BEFORE FIRST yes|no      the first question after a pause, begun at FIRST; the one before
//	                             it had ended at BEFORE
//	over LAST FLAGS DONE         the last question that was answered with yes was begun at LAST;
//	                             so many later ones were
//	                             asked while the context had not ended; and when that did
func pauseMain() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	store, err := open.Open(ctx, os.Getenv(storeEnv))
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		s, err := primacy.NewSession(store, &primacy.Options{TTL: pauseTTL})
		if err != nil {
			return err
		}
		term, err := s.Election("pause/"+s.ID()).Campaign(ctx, nil)
		if err == nil {
			askAllTheTime(term)
		}
		_ = s.Close(ctx)
	}
	return ctx.Err()
}

// askAllTheTime goes on for a second after the term has ended.
func askAllTheTime(term *primacy.Term) {
	fmt.Println("leads", boottime.Now().Nanoseconds())
	var done atomic.Int64
	context.AfterFunc(term.Context(), func() { done.Store(int64(boottime.Now())) })
	var last, before, since time.Duration
	flags := 0
	for since == 0 || boottime.Now() < since+time.Second {
		begun := boottime.Now()
		yes := term.Check() == nil
		flag := done.Load() == 0
		if before != 0 && begun-before > pauseTTL/2 {
			fmt.Println("gap", before.Nanoseconds(), begun.Nanoseconds(),
				map[bool]string{true: "yes", false: "no"}[yes])
		}
		before = boottime.Now()
		switch {
		case yes:
			last = begun
		case flag:
			flags++
		}
		if !yes && since == 0 {
			since = before
		}
		time.Sleep(50 * time.Microsecond) // the others of this machine want to live, too
	}
	fmt.Println("over", last.Nanoseconds(), flags, done.Load())
}

// paused is one helper process and what it has written.
type paused struct {
	proc
	lines  chan string
	leads  bool // by the last line that was read
	frozen time.Duration
}

func startPaused(t *testing.T, url string) *paused {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helperEnv+"=pause", storeEnv+"="+url)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	onethread.Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	p := &paused{proc: find(t, cmd.Process.Pid, "helper"), lines: make(chan string, 1000)}
	go func() {
		defer close(p.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	return p
}

// line returns the rest of the next line that begins with one of words, and that word.
func (p *paused) line(t *testing.T, words ...string) (word, rest string) {
	t.Helper()
	limit := time.After(2 * time.Minute) // on a busy machine leases this short are lost and granted again
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				t.Fatalf("the helper ended without a line %q", words)
			}
			if word, rest = p.note(l); slices.Contains(words, word) {
				return word, rest
			}
		case <-limit:
			t.Fatalf("no line %q after two minutes", words)
		}
	}
}

// note takes what a line says of who leads.
func (p *paused) note(line string) (word, rest string) {
	word, rest, _ = strings.Cut(line, " ")
	switch word {
	case "leads":
		p.leads = true
	case "over":
		p.leads = false
	}
	return word, rest
}

// awaitTerm returns when the helper leads, by all that it has written so far.
func (p *paused) awaitTerm(t *testing.T) {
	for {
		select {
		case l, ok := <-p.lines:
			if !ok {
				t.Fatal("the helper has ended")
			}
			p.note(l)
			continue
		default:
		}
		if p.leads {
			return
		}
		p.line(t, "leads")
	}
}

// TestPause freezes processes that lead for longer than their lease lives. For half of them the
// network is slow, so that the reply to a renewal is often on its way when the process freezes, and
// there when it wakes.
func TestPause(t *testing.T) {
	t.Parallel()
	pauses(t, onEtcd().start(t), rounds(t, briefly(2, 6)))
}

// pauses freezes so many processes that lead on that store.
func pauses(t *testing.T, store *installed, n int) {
	var helpers []*paused
	for i := range n {
		links, url := store.links(t)
		for _, l := range links {
			if i%2 == 1 {
				l.Delay(80*time.Millisecond, etcdtest.Down) // twice in a renewal of etcd, whose limit is 400 ms
			}
		}
		helpers = append(helpers, startPaused(t, url))
	}
	led := 0
	for try := 0; led < (n+1)/2; try++ { // on a busy machine leases this short are lost just then
		if try == 10 {
			t.Fatalf("%d of %d led when they were frozen, the others had just lost their terms: this test shows less "+
				"than it should", led, try*n)
		}
		for _, p := range helpers {
			time.Sleep(time.Duration(rand.Int64N(int64(pauseTTL / 5)))) // at any moment of a renewal
			p.awaitTerm(t)
			freeze(t, p.proc)
			p.frozen = boottime.Now()
		}
		for _, p := range helpers {
			if p.afterThaw(t) {
				led++
			}
		}
	}
}

// afterThaw judges what a helper says of the term that it had when it was frozen. False: it had
// none, which happens on a busy machine.
func (p *paused) afterThaw(t *testing.T) bool {
	waitUntil(p.frozen + 2*pauseTTL)
	thaw := boottime.Now()
	p.signal(t, syscall.SIGCONT)
	var before, first, last, done, next time.Duration
	var answer string
	var flags int
	for first < thaw { // a busy machine may have made a gap before
		word, rest := p.line(t, "gap", "leads")
		if word == "gap" {
			scan(t, rest, "%d %d %s", &before, &first, &answer)
		} else if scan(t, rest, "%d", &next); next >= thaw {
			t.Log("it did not lead when it was frozen")
			return false
		}
	}
	if before > p.frozen || answer != "no" {
		t.Errorf("the first Check after the thaw said %q, want no (begun %v after it; the one before had ended "+
			"%v before the freeze)",
			answer, first-thaw, p.frozen-before)
	}
	_, rest := p.line(t, "over")
	scan(t, rest, "%d %d %d", &last, &flags, &done)
	if last >= p.frozen {
		t.Errorf("a Check begun %v after the thaw said yes", last-thaw)
	}
	t.Logf("first Check %v after the thaw: %s; context ended %v after the thaw; a flag would have said yes %d times",
		first-thaw, answer, done-thaw, flags)
	return p.frozen-last < pauseTTL/2
}

func scan(t *testing.T, text, format string, to ...any) {
	t.Helper()
	if _, err := fmt.Sscanf(text, format, to...); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
}
