package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// view shows the demo: a live picture on a terminal, plain lines elsewhere.
type view struct {
	w     io.Writer
	live  bool
	width int
	ttl   time.Duration
	nodes []*node
	began time.Time

	mu    sync.Mutex
	drawn int // lines of the picture on the screen
	wg    sync.WaitGroup
	stop  chan struct{}
}

func newView(w io.Writer, ttl time.Duration, nodes []*node) *view {
	v := &view{w: w, ttl: ttl, nodes: nodes, began: time.Now(), stop: make(chan struct{}), width: 80}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		v.live = true
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 20 {
			v.width = cols
		}
		v.wg.Go(v.animate)
	}
	return v
}

func (v *view) animate() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			v.mu.Lock()
			v.erase()
			v.draw()
			v.mu.Unlock()
		case <-v.stop:
			return
		}
	}
}

// line prints one line of the story, above the picture.
func (v *view) line(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	s := fmt.Sprintf("%5.1fs  %s", time.Since(v.began).Seconds(), fmt.Sprintf(format, args...))
	fmt.Fprintln(v.w, v.fit(s))
	if v.live {
		v.draw()
	}
}

// close ends the picture and leaves the story on the screen.
func (v *view) close() {
	close(v.stop)
	v.wg.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.live = false
}

func (v *view) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.w, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func (v *view) draw() {
	rows := []string{"", fmt.Sprintf("  %-8s %-20s %8s  %s", "ID", "STATE", "TOKEN", "LEASE LEFT")}
	for _, n := range v.nodes {
		state, tok, bar := n.say(), "", ""
		if token, left := n.lease(); left > 0 {
			tok = fmt.Sprint(token)
			bar = v.bar(left)
			if state == "stands" {
				state = "LEADS"
			}
		}
		rows = append(rows, fmt.Sprintf("  %-8s %-20s %8s  %s", n.id, state, tok, bar))
	}
	rows = append(rows, "")
	for _, r := range rows {
		fmt.Fprintln(v.w, v.fit(r))
	}
	v.drawn = len(rows)
}

const barWidth = 24

func (v *view) bar(left time.Duration) string {
	full := min(barWidth, int(float64(left)/float64(v.ttl)*barWidth+0.5))
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full) + fmt.Sprintf(" %.1fs", left.Seconds())
}

// fit cuts a line to the terminal: a wrapped one would spoil the picture.
func (v *view) fit(s string) string {
	if r := []rune(s); v.live && len(r) > v.width-1 {
		return string(r[:v.width-2]) + "…"
	}
	return s
}
