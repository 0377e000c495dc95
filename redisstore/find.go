package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// othersLimit is how long find waits for the other answers once one has come.
	othersLimit = 300 * time.Millisecond
	// askedAtOnce is how many of a large cluster are asked.
	askedAtOnce = 7
)

// finder finds the one server that has the store's keys, where that changes: the primary that
// sentinels name, or the master of the slot in a cluster. It asks all who know at once, since one
// of them may be dead, frozen, or cut off and behind. It takes the answer that more than half of
// them give as soon as they have given it, else the most frequent of the answers that come soon.
//
// go-redis's own client for sentinels waits for a frozen sentinel. Its client for clusters repeats
// calls whose outcome is unknown, and uses a dead master until it looks again, 10 s later.
type finder struct {
	who   string // for errors
	first []string
	ask   func(ctx context.Context, addr string) (where string, others []string, err error)
	reach dialer

	mu      sync.Mutex
	learned []string
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// found makes clients of the server that f finds.
func (f *finder) found(o redis.Options) clientMaker {
	o.Addr = strings.Join(f.first, ",")
	return func(pool int) *redis.Client {
		o := o
		o.Dialer = f.dialer()
		return redis.NewClient(own(&o, pool))
	}
}

// dialer dials the server, and finds it again when it cannot be dialed. A server that has become
// the wrong one is left with its client.
func (f *finder) dialer() dialer {
	asking := make(chan struct{}, 1)
	at := ""
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		select {
		case asking <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		var err error
		if at == "" {
			at, err = f.find(ctx)
		}
		to := at
		<-asking
		if err != nil {
			return nil, err
		}
		c, err := f.reach(ctx, network, to)
		if err != nil {
			asking <- struct{}{}
			if at == to {
				at = ""
			}
			<-asking
		}
		return c, err
	}
}

// list returns whom to ask.
func (f *finder) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Clone(f.first)
	for _, addr := range f.learned {
		if !slices.Contains(all, addr) {
			all = append(all, addr)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), askedAtOnce)]
}

type answer struct {
	where  string
	others []string
	err    error
}

// find asks where the server is.
func (f *finder) find(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	all := f.list()
	answers := make(chan answer, len(all))
	for _, addr := range all {
		go func() {
			where, others, err := f.ask(ctx, addr)
			answers <- answer{where, others, err}
		}()
	}
	votes := map[string]int{}
	var errs []error
	var enough <-chan time.Time
	for n := 0; n < len(all); n++ {
		select {
		case w := <-answers:
			if w.err != nil {
				errs = append(errs, w.err)
				continue
			}
			f.learn(w.others)
			if votes[w.where]++; 2*votes[w.where] > len(all) {
				return w.where, nil
			}
			if enough == nil {
				enough = time.After(othersLimit)
			}
			continue
		case <-enough:
		case <-ctx.Done():
			errs = append(errs, ctx.Err())
		}
		break
	}
	best := ""
	for where, n := range votes {
		if n > votes[best] {
			best = where
		}
	}
	if best == "" {
		return "", fmt.Errorf("%s: %w", f.who, errors.Join(errs...))
	}
	return best, nil
}

// learn remembers who else can be asked.
func (f *finder) learn(others []string) {
	if len(others) > 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.learned = others
	}
}

// straight dials a server, with TLS if c is not nil.
func straight(c *tls.Config) dialer {
	d := &net.Dialer{Timeout: dialLimit, KeepAlive: 5 * time.Minute}
	if c == nil {
		return d.DialContext
	}
	return (&tls.Dialer{NetDialer: d, Config: c}).DialContext
}
