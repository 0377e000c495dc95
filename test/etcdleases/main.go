//go:build unix

// Etcdleases shows, on a cluster of three stock etcd servers that it starts itself, the ways in
// which an etcd lease does not last as long as an acknowledged renewal promised. It uses etcd's own
// client and nothing of this project. The page: docs/etcd-leases.md.
//
//	go run ./test/etcdleases deposed|woken|snapshot [-etcd VERSION|PATH] [-for DURATION]
//
// It needs Go and a Unix: each fault is done by stopping processes of its own (SIGSTOP, SIGCONT).
// The servers run in a temporary folder on loopback. All that was started is gone when it ends,
// also on Ctrl-C. It exits with 0 if the fault was shown, with 3 if its timing did not come about
// (the last line says why), and with 1 if it could not try.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// newest is the version of etcd that is run if no other is asked for.
const newest = "3.7.3"

// A fault returns nil when it was shown, and an error of kind errNotShown when its timing did not
// come about.
var faults = map[string]func(*run) error{"deposed": deposed, "woken": woken, "snapshot": snapshot}

var errNotShown = errors.New("not shown")

func main() {
	// SIGPIPE too: "etcdleases deposed | head" must not leave servers behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func command(ctx context.Context, args []string, out, problems io.Writer) int {
	flags := flag.NewFlagSet("etcdleases", flag.ContinueOnError)
	flags.SetOutput(problems)
	etcd := flags.String("etcd", newest, "version of etcd, built from the Go module proxy, or the path of a server")
	limit := flags.Duration("for", 100*time.Second, "try this long")
	flags.Usage = func() {
		fmt.Fprintln(problems, "usage: etcdleases deposed|woken|snapshot [-etcd VERSION|PATH] [-for DURATION]")
		flags.PrintDefaults()
	}
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	if err := flags.Parse(args); err != nil || faults[name] == nil || flags.NArg() > 0 {
		if err == nil {
			flags.Usage()
		}
		return 2
	}
	err := show(ctx, name, *etcd, *limit, out)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(problems, "etcdleases: interrupted")
	case errors.Is(err, errNotShown):
		fmt.Fprintln(out, err)
		return 3
	default:
		fmt.Fprintln(problems, "etcdleases:", err)
	}
	return 1
}

// show starts a cluster and does the fault to it.
func show(ctx context.Context, name, etcd string, limit time.Duration, out io.Writer) error {
	binary, err := server(ctx, etcd, out)
	if err != nil {
		return err
	}
	version, err := versionOf(ctx, binary)
	if err != nil {
		return err
	}
	var extra []string
	if name == "snapshot" {
		extra = []string{"--snapshot-count=10"} // with the default, 10,000 or 100,000, it takes as many writes
	}
	c, err := start(ctx, binary, extra)
	if err != nil {
		return err
	}
	defer c.stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit+time.Minute, fmt.Errorf("%w: it took too long", errNotShown))
	defer cancel()
	r := &run{ctx: ctx, cluster: c, out: out, begun: time.Now(), limit: limit}
	r.say("three members of %s run, %s leads", version, c.leader(ctx))
	err = faults[name](r)
	switch {
	case errors.Is(context.Cause(ctx), errNotShown):
		return context.Cause(ctx)
	case err != nil && !errors.Is(err, errNotShown): // a member did not answer in time
		return fmt.Errorf("%w in %v: %w", errNotShown, limit, err)
	}
	return err
}

// run is one demonstration.
type run struct {
	*cluster
	ctx   context.Context
	out   io.Writer
	begun time.Time
	limit time.Duration
}

// say prints a line of the timeline.
func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.out, "%7.3f s  %s\n", time.Since(r.begun).Seconds(), fmt.Sprintf(format, args...))
}

// gone prints the last line of a demonstration that succeeded.
func (r *run) gone(acknowledged, gone time.Time, ttl int64) error {
	fmt.Fprintf(r.out, "The lease acknowledged at %.3f s was gone at %.3f s: it lasted %.3f s of its ttl of %d s.\n",
		acknowledged.Sub(r.begun).Seconds(), gone.Sub(r.begun).Seconds(), gone.Sub(acknowledged).Seconds(), ttl)
	return nil
}

// sleep waits, and says whether to go on.
func (r *run) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-r.ctx.Done():
		return false
	}
}
