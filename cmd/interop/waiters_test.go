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
	"go.etcd.io/etcd/client/v3/concurrency"
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

// crowdTTL is long, so that no renewal falls into the minute in which requests are counted.
const crowdTTL = 300 * time.Second

// crowd makes sessions on one connection. Each call of the result waits for the line once, and returns what releases it.
type crowd func(ctx context.Context, addr string, n int) ([]waiter, error)

type waiter func(ctx context.Context) (release func(context.Context) error, err error)

// crowds is who is compared, by name.
var crowds = map[string]crowd{
	"our Election": func(ctx context.Context, addr string, n int) ([]waiter, error) {
		return ourCrowd(ctx, addr, n, func(s *primacy.Session) waiter {
			return func(ctx context.Context) (func(context.Context) error, error) {
				t, err := s.Election(lineName).Campaign(ctx, nil)
				if err != nil {
					return nil, err
				}
				return t.Resign, nil
			}
		})
	},
	"etcd's Mutex": theirCrowd,
}

func ourCrowd(ctx context.Context, addr string, n int, wait func(*primacy.Session) waiter) ([]waiter, error) {
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{addr}})
	if err != nil {
		return nil, err
	}
	return each(n, func(i int) (waiter, error) {
		s, err := primacy.NewSession(store, primacy.Options{ID: fmt.Sprintf("%d-%d", os.Getpid(), i), TTL: crowdTTL})
		if err != nil {
			return nil, err
		}
		return wait(s), s.Ready(ctx)
	})
}

func theirCrowd(ctx context.Context, addr string, n int) ([]waiter, error) {
	c, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{addr}, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	return each(n, func(int) (waiter, error) {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(int(crowdTTL.Seconds())))
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) (func(context.Context) error, error) {
			m := concurrency.NewMutex(s, linePrefix)
			if err := m.Lock(ctx); err != nil {
				return nil, err
			}
			return m.Unlock, nil
		}, nil
	})
}

// each makes n waiters, several at a time.
func each(n int, one func(i int) (waiter, error)) ([]waiter, error) {
	all, errs := make([]waiter, n), make([]error, n)
	var wg sync.WaitGroup
	turns := make(chan struct{}, 20)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() { all[i], errs[i] = one(i); <-turns })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// waitMain is a process of many waiters. It says "ready" when all have their leases, hears "stand", says "held I" whenever one of them
// has the line, hears "release I", and hears "report", to which it says what it weighs. It ends with its input.
func waitMain() error {
	ctx := context.Background()
	n, err := strconv.Atoi(os.Getenv(sizeEnv))
	if err != nil {
		return err
	}
	waiters, err := crowds[os.Getenv(crowdEnv)](ctx, os.Getenv(serverEnv), n)
	if err != nil {
		return err
	}
	h := &hall{release: make([]chan struct{}, n)}
	for i := range h.release {
		h.release[i] = make(chan struct{})
	}
	h.say("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch verb, arg, _ := strings.Cut(in.Text(), " "); verb {
		case "stand":
			for i, w := range waiters {
				go h.wait(ctx, i, w)
			}
		case "release":
			i, err := strconv.Atoi(arg)
			if err != nil {
				return err
			}
			close(h.release[i])
		case "report":
			h.say("weighs %d %d", resident(os.Getpid()), runtime.NumGoroutine())
		}
	}
	return nil
}

// hall is where the waiters of one process stand.
type hall struct {
	mu      sync.Mutex
	release []chan struct{}
}

func (h *hall) say(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (h *hall) wait(ctx context.Context, i int, w waiter) {
	release, err := w(ctx)
	if err == nil {
		h.say("held %d", i)
		<-h.release[i]
		err = release(ctx)
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
