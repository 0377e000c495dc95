//go:build linux

package torture

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/open"
)

// workerArgs are the flags of a worker program, ours or a foreign one.
type workerArgs struct {
	kind, endpoints, name, id, acts, writes, sink string
	ttl                                           time.Duration
}

func (w *workerArgs) flags() *flag.FlagSet {
	f := flag.NewFlagSet("worker", flag.ExitOnError)
	f.StringVar(&w.kind, "kind", "", "primacy, mutex, locks, or a control: plain-keepalive, etcd-election, set-nx")
	f.StringVar(&w.endpoints, "endpoints", "", "etcd's members, host:port,…")
	f.StringVar(&w.name, "name", "", "of the election")
	f.StringVar(&w.id, "id", "", "of the candidate")
	f.DurationVar(&w.ttl, "ttl", 3*time.Second, "of the lease")
	f.StringVar(&w.acts, "acts", "", "file")
	f.StringVar(&w.writes, "writes", "", "file")
	f.StringVar(&w.sink, "sink", "", "the register's unix socket")
	return f
}

func (w *workerArgs) urls() []string {
	var urls []string
	for _, ep := range strings.Split(w.endpoints, ",") {
		urls = append(urls, "http://"+ep)
	}
	return urls
}

// The ways of a library worker, from the environment.
const (
	storeEnv = "TORTURE_STORE_URL"
	// not empty: acts on when its context has ended, for as long as Check says yes, unless it was
	// asked to hand over
	zealEnv  = "TORTURE_ZEAL"
	reignEnv = "TORTURE_REIGN" // resigns after so long
)

// workerMain is a candidate in a process of its own. It ends on SIGTERM, after resigning.
func workerMain() error {
	var w workerArgs
	if err := w.flags().Parse(os.Args[1:]); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if w.kind == kindLocks {
		return w.locks(ctx)
	}
	a, err := newActor(w.id, w.acts, w.writes, w.sink)
	if err != nil {
		return err
	}
	switch w.kind {
	case "primacy":
		return w.primacy(ctx, a)
	case "plain-keepalive":
		return w.control(ctx, a, keepaliveTerm)
	case "etcd-election":
		return w.control(ctx, a, electionTerm)
	case kindMutex:
		return w.mutex(ctx, a)
	case kindSetNX:
		return w.setNX(ctx, a)
	}
	return fmt.Errorf("unknown kind %q", w.kind)
}

// session opens the store and a session. It returns what closes both.
func (w *workerArgs) session(ctx context.Context) (*primacy.Session, func(), error) {
	store, err := openPatiently(ctx, os.Getenv(storeEnv))
	if err != nil {
		return nil, nil, err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := primacy.NewSession(store, &primacy.Options{ID: w.id, TTL: w.ttl, Overrun: primacy.OverrunWait,
		Logger: logger})
	check(err)
	return s, func() {
		limit, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := s.Close(limit); err != nil {
			log.Print(err)
		}
		store.Close()
	}, nil
}

// primacy stands by the library, again and again.
func (w *workerArgs) primacy(ctx context.Context, a *actor) error {
	s, done, err := w.session(ctx)
	if err != nil {
		return nil // told to end before there was a store
	}
	defer done()
	reign, _ := time.ParseDuration(os.Getenv(reignEnv))
	zealous := os.Getenv(zealEnv) != ""
	for ctx.Err() == nil {
		err := s.Run(ctx, w.name, func(own context.Context, t *primacy.Term) error {
			end := boottime.Now() + reign
			return a.lead(numbered(uint64(t.Token())), func() bool {
				switch {
				case t.Check() != nil, ctx.Err() != nil, reign > 0 && boottime.Now() > end:
					return false
				}
				return own.Err() == nil || zealous && !errors.Is(context.Cause(own), primacy.ErrTransferred)
			})
		})
		log.Printf("stood, led, and ended: %v", err)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// How many goroutines of a process want the mutex, and for how long each has it at most.
const (
	mutexLoops = 2
	mutexReign = 500 * time.Millisecond
)

// mutex has goroutines contend for one mutex, and acts while one of them holds it.
func (w *workerArgs) mutex(ctx context.Context, a *actor) error {
	s, done, err := w.session(ctx)
	if err != nil {
		return nil
	}
	defer done()
	var wg sync.WaitGroup
	for range mutexLoops {
		wg.Go(func() {
			for rng := rand.New(rand.NewPCG(rand.Uint64(), 0)); ctx.Err() == nil; {
				err := s.Mutex(w.name, nil).Do(ctx, func(_ context.Context, t *primacy.Term) error {
					end := boottime.Now() + between(rng, 10*time.Millisecond, mutexReign)
					return a.lead(uint64(t.Token()),
						func() bool { return t.Check() == nil && ctx.Err() == nil && boottime.Now() < end })
				})
				if err != nil {
					log.Printf("held the lock, and ended: %v", err)
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	return nil
}

func openPatiently(ctx context.Context, url string) (driver.Store, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		store, err := open.Open(attempt, url)
		cancel()
		if err == nil {
			return store, nil
		}
		log.Print(err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// numbered is the token or, on a store that has none, the present: it says as well which term is
// the later one, as long as there are never two at once.
func numbered(token uint64) uint64 {
	if token == 0 {
		return uint64(boottime.Now())
	}
	return token
}

// The environment of a command under `primacy run`.
const (
	dirEnv  = "TORTURE_DIR"
	sinkEnv = "TORTURE_SINK"
)

// commandMain acts without asking: a command has no Check. That it is gone in time is what `primacy
// run` promises.
func commandMain() error {
	token, _ := strconv.ParseUint(os.Getenv("PRIMACY_TOKEN"), 10, 64)
	token = numbered(token)
	dir, mark := os.Getenv(dirEnv), fmt.Sprintf("%d-%d", token, os.Getpid())
	a, err := newActor(os.Getenv("PRIMACY_ID"), filepath.Join(dir, "acts-"+mark), filepath.Join(dir, "writes-"+mark),
		os.Getenv(sinkEnv))
	if err != nil {
		return err
	}
	return a.lead(token, func() bool { return true })
}
