package cron

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestOutputThatNobodyReadsHoldsUpNoRelease: a run whose command has ended is told, and a shard
// goes to others, also where our own output is stalled. However many end meanwhile, they leave
// nothing behind. Once the output moves again it has all lines, and says how many are lost.
func TestOutputThatNobodyReadsHoldsUpNoRelease(t *testing.T) {
	var lines Lines
	out, stalled := io.Pipe()
	say := func(text string) (wait func()) {
		pipes, wait, err := lines.PassOn("[n/0001] ", stalled, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pipes[0].WriteString(text); err != nil {
			t.Fatal(err)
		}
		return wait
	}
	ended, first := make(chan struct{}), say("a\nb\n") // nobody reads
	go func() { first(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the end of a command was waited for, for 30 s")
	}
	before := runtime.NumGoroutine()
	began := time.Now()
	for range 50 {
		say("lost\n")()
	}
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("the end of fifty commands was waited for, for %v", took)
	}
	if left := runtime.NumGoroutine() - before; left > 5 {
		t.Errorf("fifty commands have left %d goroutines behind", left)
	}
	var mu sync.Mutex
	var read strings.Builder
	go func() {
		part := make([]byte, 4096)
		for {
			n, err := out.Read(part)
			mu.Lock()
			read.Write(part[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	for i := 0; ; i++ {
		say(fmt.Sprintf("again %d\n", i))()
		mu.Lock()
		got := read.String()
		mu.Unlock()
		if strings.Contains(got, "[n/0001] (") {
			if !strings.HasPrefix(got, "[n/0001] a\n") || !strings.Contains(got, "lines were lost: nobody read them)") {
				t.Errorf("read %q", got)
			}
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("that lines are lost is not told: %q", got)
		}
	}
	var all strings.Builder
	pipes, wait, err := lines.PassOn("[n/0002] ", &all)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = pipes[0].WriteString("last words")
	wait()
	if all.String() != "[n/0002] last words\n" {
		t.Errorf("where the output is read %q is passed on", all.String())
	}
}
