// Package top is a live picture of all elections in a store, for a terminal: the worst first, and
// keys that hand them over.
package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/primacy-go/primacy"
)

// Options say what is shown, and where.
type Options struct {
	Source  Source
	Every   time.Duration // from one refresh to the next
	In, Out *os.File      // a terminal
	Colours bool
	ASCII   bool
	// Value says to people what the candidate of an election announces.
	Value func(name string, e primacy.Entry) string
	// Act does what an operator has confirmed, and returns what became of it in words; nil: the
	// store carries no requests.
	Act func(context.Context, Action) (string, error)
}

// ErrUnderWay is returned where the page was left before it was known what became of a request.
var ErrUnderWay = errors.New("left while a request was under way: it may still be carried out")

// session is a page on a terminal.
type session struct {
	o       Options
	ui      *ui
	painter painter
	before  *term.State // the terminal's modes; nil while it is not ours

	keys    chan string
	signals chan os.Signal
	news    chan struct{} // the watcher has something new
	results chan result
	orders  chan string // to the terminal; one at a time, so that a slow line gets fewer pictures, not older ones
	written chan error
	writing bool
}

type result struct {
	text string
	err  error
}

// Run shows the page until the operator leaves it, the terminal is gone, or ctx ends. It leaves the
// terminal as it was.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := newWatcher(o.Source, o.Every)
	s := &session{o: o, keys: make(chan string), signals: make(chan os.Signal, 8), news: make(chan struct{}, 1),
		results: make(chan result, 1),
		orders:  make(chan string), written: make(chan error, 1), painter: painter{colours: o.Colours}}
	s.ui = &ui{store: o.Source.Store, watch: w, ascii: o.ASCII, now: time.Now, can: o.Act != nil, view: w.view(),
		said: o.Value, act: func(a Action) { s.start(ctx, a) }}
	w.ready = func() {
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
	signal.Notify(s.signals, syscall.SIGWINCH, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGTSTP, syscall.SIGCONT)
	defer signal.Stop(s.signals)
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	go s.write()
	go readKeys(o.In, s.keys)
	ended := make(chan struct{})
	go func() { defer close(ended); w.run(ctx) }()
	err := s.loop(ctx)
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Second): // a store that does not obey
	}
	if err == nil && s.ui.busy {
		err = ErrUnderWay
	}
	return err
}

const (
	// The other screen, no cursor, no wrapping at the edge, and no reordering of letters that are
	// written from the right.
	begins = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[8l"
	ends   = "\x1b[8h\x1b[?7h\x1b[?25h\x1b[?1049l"
)

func (s *session) enter() (err error) {
	if s.before, err = term.MakeRaw(int(s.o.In.Fd())); err != nil {
		return fmt.Errorf("the terminal: %w", err)
	}
	s.painter.forget()
	s.painter.begin = begins
	s.resize()
	return nil
}

func (s *session) resize() {
	w, h, err := term.GetSize(int(s.o.Out.Fd()))
	if err != nil || w <= 0 || h <= 0 {
		w, h = 80, 24 // a serial line does not know
	}
	s.ui.w, s.ui.h = min(w, 1000), min(h, 500)
	s.painter.forget()
}

// leave gives the terminal back as it was. What is still being written is waited for a moment: a
// line that is stuck must not keep us.
func (s *session) leave() {
	if s.before == nil {
		return
	}
	if s.writing {
		select {
		case <-s.written:
			s.writing = false
		case <-time.After(time.Second):
		}
	}
	if !s.writing {
		// On a terminal without another screen the last row is where the shell goes on.
		s.send(fmt.Sprintf("\x1b[0m\x1b[%d;1H\x1b[K", s.ui.h) + ends)
		select {
		case <-s.written:
			s.writing = false
		case <-time.After(time.Second):
		}
	}
	_ = term.Restore(int(s.o.In.Fd()), s.before)
	s.before = nil
}

func (s *session) write() {
	for order := range s.orders {
		_, err := s.o.Out.WriteString(order)
		s.written <- err
	}
}

func (s *session) send(order string) {
	s.writing = true
	s.orders <- order
}

// loop draws after each thing that happens, as soon as the terminal has taken the picture before.
func (s *session) loop(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !s.ui.quit {
		if !s.writing {
			s.ui.refresh()
			if out := s.painter.paint(s.ui.draw()); out != "" {
				s.send(out)
			}
		}
		select {
		case key, ok := <-s.keys:
			if !ok {
				return nil // the terminal is gone
			}
			s.ui.refresh()
			s.ui.press(key)
		case <-s.news:
		case <-tick.C:
		case r := <-s.results:
			s.ui.watch.hurry()
			if s.ui.done(r.err != nil, r.text); r.err != nil {
				s.ui.message += r.err.Error()
			}
		case err := <-s.written:
			if s.writing = false; err != nil {
				return nil // the terminal is gone
			}
		case sig := <-s.signals:
			if s.hear(sig) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
		if s.ui.redraw {
			s.ui.redraw = false
			s.painter.forget()
		}
		if s.ui.suspend {
			s.ui.suspend = false
			if err := s.stop(); err != nil {
				return err
			}
		}
	}
	return nil
}

// hear returns whether a signal ends the page.
func (s *session) hear(sig os.Signal) bool {
	switch sig {
	case syscall.SIGWINCH:
		s.resize()
	case syscall.SIGTSTP:
		s.ui.suspend = true
	case syscall.SIGCONT: // stopped by what cannot be heard: the modes may be the shell's
		_, _ = term.MakeRaw(int(s.o.In.Fd()))
		s.painter.begin = begins
		s.resize()
	default:
		return true
	}
	return false
}

// stop suspends the job, and goes on when it is continued. SIGSTOP, since the runtime takes SIGTSTP
// from then on that it was asked for once.
func (s *session) stop() error {
	if orphaned() {
		s.ui.say(true, "there is no shell to go back to")
		return nil
	}
	s.leave()
	if err := syscall.Kill(0, syscall.SIGSTOP); err != nil {
		return err
	}
	for stopped := true; stopped; {
		select {
		case sig := <-s.signals:
			switch sig {
			case syscall.SIGCONT:
				stopped = false
			case syscall.SIGWINCH, syscall.SIGTSTP:
			default:
				s.ui.quit, stopped = true, false
			}
		case <-time.After(time.Second):
			stopped = false
		}
	}
	if s.ui.quit {
		return nil
	}
	return s.enter()
}

// orphaned says whether nobody would continue this job: its parent is no shell that minds jobs.
func orphaned() bool {
	parent := os.Getppid()
	theirs, err := unix.Getsid(parent)
	ours, err2 := unix.Getsid(0)
	group, err3 := unix.Getpgid(parent)
	return errors.Join(err, err2, err3) != nil || theirs != ours || group == unix.Getpgrp()
}

// start does an action beside the page.
func (s *session) start(ctx context.Context, a Action) {
	go func() {
		text, err := s.o.Act(ctx, a)
		s.results <- result{text, err}
	}()
}
