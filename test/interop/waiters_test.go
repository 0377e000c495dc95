//go:build linux

package interop

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
)

// The environment of a process that is many waiters.
const (
	serverEnv = "INTEROP_SERVER"
	crowdEnv  = "INTEROP_CROWD" // the kind
	sizeEnv   = "INTEROP_SIZE"  // how many sessions
)

// crowdTTL is long, so that hardly a renewal falls among the requests that are counted.
const crowdTTL = 300 * time.Second

// comeEvery is the time from one waiter of a process to its next.
const comeEvery = 30 * time.Millisecond

// waiter is a session on a connection of its own, as each program has it. It waits for the line
// once.
type waiter struct {
	tap   tap
	told  chan string // what to do when it holds
	wait  func(ctx context.Context) (release func(context.Context) error, err error)
	close func(ctx context.Context) error
}

// crowds is who is compared, by name.
var crowds = map[string]func(ctx context.Context, c *clientv3.Client, w *waiter) error{
	"our Election": ofOurs(func(ctx context.Context, s *primacy.Session) (*primacy.Term, error) {
		return s.Election(lineName).Campaign(ctx, nil)
	}),
	"our Mutex": ofOurs(func(ctx context.Context, s *primacy.Session) (*primacy.Term, error) {
		return s.Mutex(lineName, nil).Lock(ctx)
	}),
	"etcd's Mutex":        mutexOf(newEtcds),
	"the drop-in's Mutex": mutexOf(newDropIn),
}

// ofOurs makes a session of ours, which waits as it is told.
func ofOurs(wait func(context.Context, *primacy.Session) (*primacy.Term, error)) func(context.Context,
	*clientv3.Client, *waiter) error {
	return func(ctx context.Context, c *clientv3.Client, w *waiter) error {
		store, err := etcdstore.New(ctx, c, etcdstore.Options{})
		if err != nil {
			return err
		}
		s, err := primacy.NewSession(store, &primacy.Options{TTL: crowdTTL})
		if err != nil {
			return err
		}
		w.wait = func(ctx context.Context) (func(context.Context) error, error) {
			t, err := wait(ctx, s)
			if err != nil {
				return nil, err
			}
			return t.Resign, nil
		}
		w.close = func(ctx context.Context) error {
			if err := s.Close(ctx); err != nil {
				return err
			}
			return store.Close()
		}
		return s.Ready(ctx)
	}
}

// mutexOf makes a session with the API of etcd's package, whose mutex it waits for.
func mutexOf(open func(c *clientv3.Client, ttl int) (session, error)) func(context.Context, *clientv3.Client,
	*waiter) error {
	return func(_ context.Context, c *clientv3.Client, w *waiter) error {
		s, err := open(c, int(crowdTTL.Seconds()))
		if err != nil {
			return err
		}
		w.wait = func(ctx context.Context) (func(context.Context) error, error) {
			m := s.(maker).mutex()
			if err := m.Lock(ctx); err != nil {
				return nil, err
			}
			return m.Unlock, nil
		}
		w.close = func(context.Context) error { return s.Close() }
		return nil
	}
}

// newWaiter connects one.
func newWaiter(ctx context.Context, kind, addr string) (*waiter, error) {
	w := &waiter{told: make(chan string, 1)}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop(),
		DialOptions: w.tap.options()})
	if err != nil {
		return nil, err
	}
	if err := crowds[kind](ctx, c, w); err != nil {
		return nil, err
	}
	end := w.close
	w.close = func(ctx context.Context) error {
		if err := end(ctx); err != nil {
			return err
		}
		return c.Close()
	}
	return w, nil
}

// hall is a process of many waiters.
type hall struct {
	mu      sync.Mutex
	waiters []*waiter
	going   context.CancelFunc // makes all who wait give up
	waiting sync.WaitGroup
}

// waitMain is that process. It says "ready" when all have their leases, hears "stand", and says
// "held I" whenever one of them has the line. Then it hears "release I", or "leave I" if the
// session shall end too. At "go" all who wait give up, end their sessions, and "gone" is said. It
// answers "seen I FROM TO" with what that one sent and heard in that time, and "report" with what
// the process weighs. It ends with its input.
func waitMain() error {
	ctx := context.Background()
	n, err := strconv.Atoi(os.Getenv(sizeEnv))
	if err != nil {
		return err
	}
	h := &hall{waiters: make([]*waiter, n)}
	errs := make([]error, n)
	var wg sync.WaitGroup
	turns := make(chan struct{}, 5)
	for i := range h.waiters {
		turns <- struct{}{}
		wg.Go(func() {
			for range 5 { // a server that a thousand come to at once may not answer each in time
				h.waiters[i], errs[i] = newWaiter(ctx, os.Getenv(crowdEnv), os.Getenv(serverEnv))
				if errs[i] == nil {
					break
				}
			}
			<-turns
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	h.say("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := h.obey(ctx, in.Text()); err != nil {
			return fmt.Errorf("%q: %w", in.Text(), err)
		}
	}
	return nil
}

func (h *hall) obey(ctx context.Context, order string) error {
	verb, args, _ := strings.Cut(order, " ")
	var i int
	var from, to time.Duration
	switch verb {
	case "stand":
		ctx, h.going = context.WithCancel(ctx)
		for i, w := range h.waiters {
			h.waiting.Go(func() { h.wait(ctx, i, w) })
			time.Sleep(comeEvery) // a crowd, not a stampede
		}
	case "release", "leave":
		if _, err := fmt.Sscan(args, &i); err != nil {
			return err
		}
		h.waiters[i].told <- verb
	case "seen":
		if _, err := fmt.Sscan(args, &i, (*int64)(&from), (*int64)(&to)); err != nil {
			return err
		}
		h.say("seen %s", strings.Join(h.waiters[i].tap.between(from, to), ","))
	case "go":
		h.going()
		h.waiting.Wait()
		h.say("gone")
	case "report":
		h.say("weighs %d %d", resident(os.Getpid()), runtime.NumGoroutine())
	}
	return nil
}

func (h *hall) say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (h *hall) wait(ctx context.Context, i int, w *waiter) {
	release, err := w.wait(ctx)
	switch {
	case err == nil:
		h.say("held %d", i)
		verb := <-w.told
		if err = release(ctx); err == nil && verb == "leave" {
			err = w.close(ctx)
		}
	case ctx.Err() != nil:
		err = w.close(context.Background())
	}
	if err != nil {
		h.say("failed %d %v", i, err)
	}
}

// resident returns how many kB of memory a process has.
func resident(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kB int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kB); n == 1 {
			return kB
		}
	}
	return 0
}
