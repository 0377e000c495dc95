package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// A worker is this program again, as a process of its own: one that can be killed, or whose memory
// can be looked at. It reads a job and then orders from its standard input, a line each, and ends
// with it.

const workerArg = "worker"

// job is what a worker does.
type job struct {
	Do        string // "lead": a session for each name; "stand": one session for all; "ask": leads, and asks all the time
	Contender string
	Endpoints []string
	Prefix    string
	N         int             // how many names, Prefix-0 and so on
	TTLs      []time.Duration // by name, the last for all others
}

func (j job) name(i int) string { return j.Prefix + "-" + strconv.Itoa(i) }

func (j job) names() []string {
	names := make([]string, j.N)
	for i := range names {
		names[i] = j.name(i)
	}
	return names
}

func (j job) ttl(i int) time.Duration { return j.TTLs[min(i, len(j.TTLs)-1)] }

// event is what a worker tells, a line of JSON each.
type event struct {
	Kind       string        // "ready", "won": all of them; "stats", "closed", "woke", "error"
	At         time.Duration `json:",omitempty"` // boot clock
	Took       time.Duration `json:",omitempty"`
	Goroutines int           `json:",omitempty"`
	Text       string        `json:",omitempty"`
}

func workerMain() int {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	var j job
	if err == nil {
		err = json.Unmarshal(line, &j)
	}
	var s Session
	if err == nil {
		s, err = j.start(context.Background())
	}
	if err != nil {
		tell(event{Kind: "error", Text: err.Error()})
		return 1
	}
	return obey(in, s)
}

// obey answers orders until there are no more.
func obey(in *bufio.Reader, s Session) int {
	for {
		order, err := in.ReadString('\n')
		if err == io.EOF {
			return 0
		}
		if err != nil {
			return 1
		}
		switch order {
		case "stats\n":
			debug.FreeOSMemory() // what is garbage is not what it takes
			tell(event{Kind: "stats", Goroutines: runtime.NumGoroutine()})
		case "close\n":
			if err := s.Close(context.Background()); err != nil {
				tell(event{Kind: "error", Text: err.Error()})
			}
			tell(event{Kind: "closed"})
		}
	}
}

func tell(e event) {
	e.At = boottime.Now()
	line, _ := json.Marshal(e)
	_, _ = os.Stdout.Write(append(line, '\n'))
}

// start does the job. What it won stays its own until the process ends. The session is the one for
// all names, if there is one.
func (j job) start(ctx context.Context) (Session, error) {
	c := find(j.Contender)
	if c == nil {
		return nil, fmt.Errorf("no contender %q", j.Contender)
	}
	p, err := c.Dial(ctx, j.Endpoints)
	if err != nil {
		return nil, err
	}
	if j.Do == "lead" {
		return nil, j.lead(ctx, p)
	}
	s, err := p.Session(ctx, j.ttl(0))
	if err != nil {
		return nil, err
	}
	if j.Do == "ask" {
		return s, j.ask(ctx, s)
	}
	go j.stand(ctx, s)
	tell(event{Kind: "ready"})
	return s, nil
}

// lead wins each name with a session of its own. They start at different times, so that their
// renewals do.
func (j job) lead(ctx context.Context, p Process) error {
	err := parallel(ctx, j.N, j.N, func(ctx context.Context, i int) error {
		if err := sleep(ctx, rand.N(j.ttl(i)/3)); err != nil {
			return err
		}
		s, err := p.Session(context.WithoutCancel(ctx), j.ttl(i))
		if err != nil {
			return err
		}
		_, err = s.Campaign(ctx, j.name(i))
		return err
	})
	if err == nil {
		tell(event{Kind: "ready"})
	}
	return err
}

// ask leads and asks whether it does, and tells what the first answer after a long pause of the
// process was.
func (j job) ask(ctx context.Context, s Session) error {
	h, err := s.Campaign(ctx, j.name(0))
	if err != nil {
		return err
	}
	go func() {
		for last := boottime.Now(); ; time.Sleep(200 * time.Microsecond) {
			now := boottime.Now()
			answer := h.Check()
			if now-last > j.ttl(0) {
				text := "yes"
				if answer != nil {
					text = "no"
				}
				tell(event{Kind: "woke", Text: text})
				return
			}
			last = now
		}
	}()
	tell(event{Kind: "ready"})
	return nil
}

// stand stands for all names, and tells when it has won them all.
func (j job) stand(ctx context.Context, s Session) {
	begin := time.Now()
	var won atomic.Int64
	err := standAll(ctx, s, j.names(), func() {
		if won.Add(1) == int64(j.N) {
			tell(event{Kind: "won", Took: time.Since(begin)})
		}
	})
	if err != nil {
		tell(event{Kind: "error", Text: err.Error()})
	}
}

// standAll stands for all names until ctx ends, with a goroutine for each where the library knows
// no better.
func standAll(ctx context.Context, s Session, names []string, won func()) error {
	if crowd, ok := s.(Crowd); ok {
		return crowd.Stand(ctx, names, func(string, Held) { won() })
	}
	return parallel(ctx, len(names), len(names), func(ctx context.Context, i int) error {
		_, err := campaignOn(ctx, s, names[i])
		if err == nil {
			won()
		}
		return err
	})
}

// campaignOn campaigns until it has won. A server that ten thousand goroutines ask at once answers
// that those are too many.
func campaignOn(ctx context.Context, s Session, name string) (h Held, err error) {
	for range 100 {
		if h, err = s.Campaign(ctx, name); err == nil || ctx.Err() != nil {
			return h, err
		}
		if err := sleep(ctx, 50*time.Millisecond+rand.N(100*time.Millisecond)); err != nil {
			return nil, err
		}
	}
	return nil, err
}
