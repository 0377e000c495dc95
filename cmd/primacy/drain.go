package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

func (a *app) drainCommand() *cobra.Command {
	var reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "drain ID",
		Short: "Move everything that one candidate leads to others",
		Long: `Ask the candidate ID, for each election that it leads, to hand over to the oldest candidate of another ID, and wait until it has: before
a machine is taken out of service. What it leads where nobody else stands is left to it, and listed.

It may win again what it still stands for, once others leave: stop it before the next one goes. Locks do not move; their holders give them
back. Exit 0 if it leads nothing any more; 1 if something is left because nobody else stands; 124 if something has not moved in the time given.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return fmt.Errorf("give the ID of one candidate: 'primacy status' shows them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.drain(cmd.Context(), args[0], reason, wait) },
	}
	c.Flags().StringVar(&reason, "reason", "", "told to the candidate")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until all has moved")
	return c
}

// moveJSON is what became of one election.
type moveJSON struct {
	Name   string        `json:"name"`
	Token  primacy.Token `json:"token"`  // of the term that was to end
	Result string        `json:"result"` // moved, left, late or failed
	Leader *standingJSON `json:"leader"` // who leads now
	Error  string        `json:"error,omitempty"`
	code   int
}

// drainer moves what one candidate leads.
type drainer struct {
	*app
	s          *primacy.Session
	asker      driver.Asker
	id, reason string
	wait       time.Duration

	mu    sync.Mutex
	moves []moveJSON
}

// together is how many are moved at once: work takes its time to stop, and the store should not be asked for a thousand at a time.
const together = 16

func (a *app) drain(ctx context.Context, id, reason string, wait time.Duration) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	asker, ok := st.(driver.Asker)
	if !ok {
		return fmt.Errorf("%s cannot carry a request to a leader; stop it where it runs", st.Caps().Store)
	}
	listCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	states, err := s.List(listCtx, "")
	if err != nil {
		return err
	}
	states = slices.DeleteFunc(states, func(st primacy.State) bool { return !ledBy(st, id) })
	d := &drainer{app: a, s: s, asker: asker, id: id, reason: reason, wait: wait}
	ctx, cancel = context.WithTimeout(ctx, wait)
	defer cancel()
	var wg sync.WaitGroup
	turns := make(chan struct{}, together)
	for _, st := range states {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			d.tell(d.move(ctx, st))
		})
	}
	wg.Wait()
	return d.sum()
}

func ledBy(st primacy.State, id string) bool {
	return st.Leader != nil && st.Leader.ID == id && st.Leader.Slots == 0
}

// move moves one election. Each request is for one term of the candidate: whoever leads next is not asked.
func (d *drainer) move(ctx context.Context, st primacy.State) moveJSON {
	m := moveJSON{Name: st.Name, Token: st.Leader.Token}
	e := d.s.Election(st.Name)
	for ledBy(st, d.id) {
		r := driver.Request{Token: uint64(st.Leader.Token), By: d.s.ID(), Reason: d.reason}
		to, ok := otherThan(st, d.id)
		if !ok {
			return m.ends("left", st, exitNo, errors.New("nobody else stands"))
		}
		r.To = to
		err := d.ask(ctx, e.Name(), r)
		if err == nil {
			if next, changed := awaitChange(ctx, e, st.Leader.Token); changed {
				st = next
				continue
			}
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return m.ends("late", st, exitNotAcquired, fmt.Errorf("%s has not given it up after %v", d.id, d.wait))
		case !errors.Is(err, driver.ErrGone):
			return m.ends("failed", st, codeOf(err), err)
		}
		if st, err = e.State(ctx); err != nil {
			return m.ends("failed", st, codeOf(err), err)
		}
	}
	return m.ends("moved", st, 0, nil)
}

// ask repeats a request until the store has taken it, or never will.
func (d *drainer) ask(ctx context.Context, name string, r driver.Request) error {
	for {
		try, cancel := context.WithTimeout(ctx, d.timeout)
		err := d.asker.Ask(try, name, r)
		cancel()
		if err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrRefused) {
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", primacy.ErrUnreachable, err)
		}
	}
}

// otherThan returns the oldest candidate of another ID. A claim of another program has none: then it is "", whoever is next.
func otherThan(st primacy.State, id string) (to string, ok bool) {
	for _, w := range st.Waiting {
		if w.Slots != 0 || w.ID == id {
			continue
		}
		if ok = true; w.ID != "" {
			return w.ID, true
		}
	}
	return "", ok
}

func (m moveJSON) ends(result string, st primacy.State, code int, err error) moveJSON {
	m.Result, m.code = result, code
	if st.Leader != nil {
		l := standingToJSON(*st.Leader)
		m.Leader = &l
	}
	if err != nil {
		m.Error = oneLine(err)
	}
	return m
}

// tell prints one line as soon as it is known what became of an election; -o json waits for all.
func (d *drainer) tell(m moveJSON) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.moves = append(d.moves, m)
	switch {
	case d.output == "json":
	case d.output == "ndjson":
		_ = d.writeJSON(m)
	case m.Error != "":
		fmt.Fprintf(d.stdout, "%s: %s: %s\n", clean(m.Name), m.Result, m.Error)
	case m.Leader == nil:
		fmt.Fprintf(d.stdout, "%s: moved: nobody leads\n", clean(m.Name))
	default:
		fmt.Fprintf(d.stdout, "%s: moved: %s leads under token %d\n", clean(m.Name), orDash(m.Leader.ID), m.Leader.Token)
	}
}

// sum says how it went on the whole.
func (d *drainer) sum() error {
	slices.SortFunc(d.moves, func(a, b moveJSON) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	if d.output == "json" {
		if err := d.writeJSON(append([]moveJSON{}, d.moves...)); err != nil {
			return err
		}
	}
	code, stays := 0, 0
	for _, m := range d.moves {
		if code = max(code, m.code); m.code != 0 {
			stays++
		}
	}
	switch {
	case code != 0:
		return fail(code, "%s still leads %d of the %d it led", d.id, stays, len(d.moves))
	case len(d.moves) == 0:
		d.say("%s leads nothing", d.id)
	}
	return nil
}
