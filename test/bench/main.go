// Command bench measures Primacy beside other libraries: both in one run, against the same servers,
// in turns. It prints the table of figures with the ratio of the two, and the goal of each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settings are the command line.
type settings struct {
	EnvOptions
	rows     []int
	peers    string
	jsonFile string
	svgFile  string
}

// Report is what a run found, as it is written with -json.
type Report struct {
	Date    string   `json:"date"`
	Machine string   `json:"machine"`
	Store   string   `json:"store"`
	Members int      `json:"members"`
	Setup   string   `json:"setup"`
	Peer    string   `json:"peer"`
	Reps    int      `json:"repetitions"`
	Results []Result `json:"results"`
	Growth  []Result `json:"growth,omitempty"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == workerArg {
		os.Exit(workerMain())
	}
	s, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := s.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*settings, error) {
	s := &settings{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	rows := f.String("rows", "", "rows of the table to measure, as 6,10; empty: all")
	sizes := f.String("sizes", "", "how cost grows: numbers of elections or waiters, as 10,100,1000,10000; empty: not measured")
	f.StringVar(&s.Store, "store", "etcd", "what to measure on: "+strings.Join(storeNames(), ", "))
	f.IntVar(&s.Members, "members", 1, "members of the etcd cluster, 1 or 3")
	f.BoolVar(&s.Namespaces, "namespaces", false, "each member in a network namespace of its own (Linux, root)")
	f.BoolVar(&s.Slow, "slow", false, "each fdatasync of etcd's log takes 2 ms longer, as on a slow disk")
	f.StringVar(&s.Dir, "dir", "", "folder on the disk that etcd writes to (default: the system's for temporary files)")
	f.IntVar(&s.Reps, "reps", 5, "repetitions")
	f.StringVar(&s.peers, "peer", "", "whom to measure beside us, several with commas; empty: all that the store has")
	f.StringVar(&s.jsonFile, "json", "", "write the results to this file")
	f.StringVar(&s.svgFile, "svg", "", "draw the ratios into this file")
	f.BoolVar(&s.Verbose, "v", false, "say what each slice gave")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if s.rows, err = numbers(*rows); err != nil {
		return nil, fmt.Errorf("-rows: %w", err)
	}
	if s.Sizes, err = numbers(*sizes); err != nil {
		return nil, fmt.Errorf("-sizes: %w", err)
	}
	return s, s.check(f.Args())
}

func (s *settings) check(rest []string) error {
	k, ok := stores[s.Store]
	if !ok {
		return fmt.Errorf("-store %q: known are %s", s.Store, strings.Join(storeNames(), ", "))
	}
	known := knownRows(k.kind)
	for _, r := range s.rows {
		if !slices.Contains(known, r) {
			return fmt.Errorf("-rows: there is no row %d on %s; known are %v", r, s.Store, known)
		}
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case s.Members != 1 && s.Members != 3:
		return fmt.Errorf("-members %d: 1 or 3", s.Members)
	case k.kind != "etcd" && (s.Members != 1 || s.Namespaces || s.Slow || len(s.Sizes) > 0):
		return fmt.Errorf("-members, -namespaces, -slow and -sizes are for etcd, not for %s", s.Store)
	case s.Reps < 1:
		return fmt.Errorf("-reps %d: at least 1", s.Reps)
	}
	_, err := byName(k.kind, s.peers)
	return err
}

func numbers(list string) ([]int, error) {
	var ns []int
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a whole number from 1", part)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

// run measures, prints, and writes the files.
func (s *settings) run(ctx context.Context) error {
	e, err := start(s.EnvOptions)
	if err != nil {
		return err
	}
	defer e.close()
	peers, err := byName(e.Kind, s.peers)
	if err != nil {
		return err
	}
	for _, peer := range peers {
		if err := e.warm(ctx, peer); err != nil {
			return err
		}
		report, err := s.against(ctx, e, peer)
		if report != nil {
			report.print(os.Stdout)
			err = errors.Join(err, s.write(report))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// against measures us beside one peer. What was found before an error comes back with it.
func (s *settings) against(ctx context.Context, e *Env, peer *Contender) (*Report, error) {
	ours := oursFor(peer)
	if ours == nil {
		return nil, fmt.Errorf("nothing of ours runs on %s", peer.Store)
	}
	setup, err := s.describe(e)
	if err != nil {
		return nil, err
	}
	r := &Report{Date: time.Now().UTC().Format(time.RFC3339), Machine: fmt.Sprintf("%d × %s, %s", runtime.NumCPU(), runtime.GOARCH, runtime.Version()),
		Store: s.Store, Members: s.Members, Setup: setup, Peer: peer.Name, Reps: s.Reps}
	e.logf("%s beside %s: %s; %s", ours.Name, peer.Name, setup, r.Machine)
	for _, b := range benches(e.Kind) {
		if !s.wants(b) {
			continue
		}
		found, err := b.run(ctx, e, ours, peer)
		e.box.failed = e.box.failed || err != nil && ctx.Err() == nil
		for _, f := range found {
			if s.wantsRow(f.Row) {
				r.Results = append(r.Results, f)
			}
		}
		slices.SortStableFunc(r.Results, func(a, b Result) int { return a.Row - b.Row })
		if err != nil {
			return r, err
		}
	}
	for _, size := range s.Sizes {
		grown, err := grow(ctx, e, ours, peer, size)
		r.Growth = append(r.Growth, grown...)
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

func (s *settings) describe(e *Env) (string, error) {
	speed, err := disk(e.box.dir)
	if err != nil {
		return "", err
	}
	where := "on loopback"
	if s.Namespaces {
		where = "in network namespaces"
	}
	text := fmt.Sprintf("%s %s, processes of their own; disk %s", e.servers.text, where, speed)
	if s.Slow {
		text += fmt.Sprintf(", and %v more for etcd", slowSync)
	}
	return text, nil
}

func (s *settings) wantsRow(row int) bool { return len(s.rows) == 0 || slices.Contains(s.rows, row) }

func (s *settings) wants(b *Bench) bool {
	return slices.ContainsFunc(b.Lines, func(l Line) bool { return s.wantsRow(l.Row) })
}

func (s *settings) write(r *Report) error {
	if s.jsonFile != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.jsonFile, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if s.svgFile != "" {
		return os.WriteFile(s.svgFile, []byte(drawing(r)), 0o644)
	}
	return nil
}
