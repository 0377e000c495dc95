package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy/internal/boottime"
)

// workerTick is how often a worker writes that it acts.
const workerTick = 5 * time.Millisecond

// workerCommand is the demo's work: it acts as leader by appending a line every 5 ms, without asking whether it may. So the file shows
// when somebody really acted, as seen by those who did.
func (a *app) workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker FILE",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := os.OpenFile(args[0], os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				return err
			}
			defer f.Close()
			return act(f, os.Getenv("PRIMACY_TOKEN"), os.Getenv("PRIMACY_ID"))
		},
	}
}

func act(w io.Writer, token, id string) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	tick := time.NewTicker(workerTick)
	defer tick.Stop()
	for {
		// One write, one line: appends of several processes do not mix.
		if _, err := fmt.Fprintf(w, "%d %s %s\n", boottime.Now().Nanoseconds(), token, id); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-term:
			return nil
		}
	}
}

// reign is what the workers wrote under one token.
type reign struct {
	token       uint64
	id          string
	first, last time.Duration // on the boot clock
	acts        int
}

// readReigns reads what workers wrote, in order of their first act. A last line without its end is being written just now.
func readReigns(path string) ([]reign, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	byToken := map[uint64]*reign{}
	lines := strings.Split(string(b), "\n")
	for i, line := range lines[:len(lines)-1] {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s:%d: %q is not what a worker writes", path, i+1, line)
		}
		ns, err1 := strconv.ParseInt(fields[0], 10, 64)
		token, err2 := strconv.ParseUint(fields[1], 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("%s:%d: %q is not what a worker writes", path, i+1, line)
		}
		at := time.Duration(ns)
		r := byToken[token]
		if r == nil {
			r = &reign{token: token, id: fields[2], first: at, last: at}
			byToken[token] = r
		}
		r.first, r.last, r.acts = min(r.first, at), max(r.last, at), r.acts+1
	}
	reigns := make([]reign, 0, len(byToken))
	for _, r := range byToken {
		reigns = append(reigns, *r)
	}
	slices.SortFunc(reigns, func(a, b reign) int { return int(a.first - b.first) })
	return reigns, nil
}

// twoLeaders counts the ticks during which workers of two tokens acted, and the tokens that did not grow.
func twoLeaders(reigns []reign) (instants, backwards int) {
	var until time.Duration
	var largest uint64
	for _, r := range reigns {
		if overlap := min(until, r.last) - r.first; overlap >= 0 && until > 0 {
			instants += 1 + int(overlap/workerTick)
		}
		if r.token <= largest {
			backwards++
		}
		until, largest = max(until, r.last), max(largest, r.token)
	}
	return instants, backwards
}
