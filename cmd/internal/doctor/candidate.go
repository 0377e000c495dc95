package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/embedded"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/open"
)

// Conf is what a candidate reads from its stdin, one line of JSON: a store URL with a password
// stands in no argument list.
type Conf struct {
	Store    string // URL; or
	Embedded string // the directory of the embedded store
	Name, ID string
	TTL      time.Duration
}

// open opens the store, for as long as it takes.
func (c Conf) open(ctx context.Context) (driver.Store, error) {
	for {
		st, err := c.try(ctx)
		if err == nil {
			return st, nil
		}
		if e := sleep(ctx, 200*time.Millisecond); e != nil {
			return nil, err
		}
	}
}

func (c Conf) try(ctx context.Context) (driver.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if c.Embedded != "" {
		endpoint, done, err := embedded.Reach(c.Embedded) // an endpoint is good in one process only
		if err != nil {
			return nil, err
		}
		st, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}})
		if err != nil {
			done()
		}
		return st, err
	}
	return open.Open(ctx, c.Store)
}

// Candidate is the process that the torture runs several of. It stands for election, and while it
// leads it acts: every few milliseconds it reads the clock, then asks whether it leads, then does
// its work, and only then writes, as any user's program would. So a write may come late, when the
// process was paused in between.
type Candidate struct {
	In  io.Reader // the configuration; its end is the end of the process
	Out io.Writer // what it has done, a line each

	// Leads is asked before each act: [Leads] but in tests that must see a cheat caught.
	Leads   func(term context.Context, t *primacy.Term) error
	Overrun primacy.Overrun

	conf Conf
	mu   sync.Mutex // of Out
}

// Leads returns nil if this process may act: its term was not asked to end, and leads at this
// instant.
func Leads(term context.Context, t *primacy.Term) error {
	if term.Err() != nil {
		return context.Cause(term)
	}
	return t.Check()
}

// Run stands until ctx ends or the other end of In is closed. Then it gives up its lease.
func (c *Candidate) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := bufio.NewReader(c.In)
	line, err := in.ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &c.conf) != nil {
		return fmt.Errorf("this verb is for `primacy doctor --torture` itself")
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel() // the doctor is gone
		time.Sleep(5 * time.Second)
		os.Exit(1)
	}()
	st, err := c.conf.open(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	s, err := primacy.NewSession(st, &primacy.Options{ID: c.conf.ID, TTL: c.conf.TTL, Overrun: c.Overrun, History: -1})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		err = s.Run(ctx, c.conf.Name, func(tctx context.Context, t *primacy.Term) error { return c.lead(ctx, tctx, t) })
		if ctx.Err() == nil && err != nil {
			return err
		}
	}
	end, cancelEnd := cleanupContext(ctx)
	defer cancelEnd()
	return s.Close(end)
}

// lead acts while it leads.
func (c *Candidate) lead(life, term context.Context, t *primacy.Term) error {
	var wg sync.WaitGroup
	wg.Go(func() { c.proclaim(term, t) })
	defer wg.Wait()
	for life.Err() == nil {
		at := now() // before Check: whoever says yes now led at this instant
		if c.Leads(term, t) != nil {
			return nil
		}
		_ = sleep(life, time.Duration(1+rand.IntN(4))*time.Millisecond) // the work
		c.write("w %d %d\n", at, uint64(t.Token()))
	}
	return nil
}

// proclaim writes to the store itself, through the fence that each store has: a value is replaced
// only while the claim stands.
func (c *Candidate) proclaim(term context.Context, t *primacy.Term) {
	for n := 1; sleep(term, 100*time.Millisecond) == nil; n++ {
		if t.Proclaim(term, fmt.Append(nil, n)) == nil {
			c.write("p %d %d\n", n, uint64(t.Token()))
		}
	}
}

// write writes one line in one piece.
func (c *Candidate) write(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := fmt.Fprintf(c.Out, format, args...); err != nil {
		os.Exit(1) // nobody listens
	}
}
