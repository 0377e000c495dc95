//go:build linux

// Worker is one candidate of the torture harness, which elects with another library instead of
// Primacy.
//
//	worker --kind K --endpoints HOST:PORT,... --name NAME --id ID --ttl 3s --acts FILE --writes FILE --sink SOCKET
//
// It campaigns for ever. While the library says that it leads it records acts and sends writes to
// the sink, see [recorder]. On SIGTERM it stops to act, resigns and exits with 0, within 5 s even
// if etcd does not answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	exitUsage = 2
	// Well below the 5 s in which a worker must end: what is not resigned by then expires by
	// itself.
	endWithin = 4 * time.Second
	retryWait = 200 * time.Millisecond
)

// kinds are the libraries: each stands for election once, acts while it leads, and returns when
// that is over.
var kinds = map[string]func(context.Context, *candidate) error{
	"etcd-election":   standElection,
	"etcd-mutex":      standMutex,
	"plain-keepalive": standKeepAlive,
	"client-go":       standClientGo,
}

// candidate is what every kind needs.
type candidate struct {
	endpoints []string
	name      string // of the election: a key or a prefix in etcd
	id        string
	ttl       time.Duration // whole seconds
	rec       *recorder
}

func main() {
	log.SetFlags(log.Lmicroseconds)
	log.SetPrefix("worker: ")
	kind, c, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() {
		time.Sleep(endWithin)
		log.Print("not resigned in time; the lease expires by itself")
		os.Exit(0)
	})
	for ctx.Err() == nil {
		if err := kinds[kind](ctx, c); err != nil && ctx.Err() == nil {
			log.Printf("%v; standing again", err)
			sleep(ctx, retryWait)
		}
	}
	log.Print("ended")
}

func parse(args []string) (kind string, c *candidate, err error) {
	f := flag.NewFlagSet("worker", flag.ContinueOnError)
	names := slices.Sorted(maps.Keys(kinds))
	f.StringVar(&kind, "kind", "", "one of "+strings.Join(names, ", "))
	endpoints := f.String("endpoints", "", "etcd's client addresses, host:port, separated by commas")
	name := f.String("name", "", "of the election")
	id := f.String("id", "", "of this candidate")
	ttl := f.Duration("ttl", 3*time.Second, "how long a leader that is gone is waited for, in whole seconds")
	acts := f.String("acts", "", "file that acts are appended to")
	writes := f.String("writes", "", "file that the outcomes of writes to the sink are appended to")
	sink := f.String("sink", "", "unix socket of the sink")
	if err := f.Parse(args); err != nil {
		return "", nil, errors.New("these options are not understood")
	}
	switch {
	case f.NArg() != 0:
		return "", nil, fmt.Errorf("unexpected argument %q: there are options only", f.Arg(0))
	case kinds[kind] == nil:
		return "", nil, fmt.Errorf("--kind %q: want one of %s", kind, strings.Join(names, ", "))
	case *ttl < 2*time.Second || *ttl%time.Second != 0:
		// Below 2 s etcd raises it, and both libraries count in whole seconds.
		return "", nil, fmt.Errorf("--ttl %v: want whole seconds, from 2s", *ttl)
	case *id == "" || strings.ContainsAny(*id, " \n"):
		return "", nil, fmt.Errorf("--id %q: want a word", *id)
	case *endpoints == "" || *name == "" || *acts == "" || *writes == "" || *sink == "":
		return "", nil, errors.New("--endpoints, --name, --acts, --writes and --sink must be given")
	}
	rec, err := openRecorder(*id, *acts, *writes, *sink)
	if err != nil {
		return "", nil, err
	}
	return kind, &candidate{strings.Split(*endpoints, ","), "peers/" + kind + "/" + *name, *id, *ttl, rec}, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
