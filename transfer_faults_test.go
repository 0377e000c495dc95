package primacy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
)

// TestTransfersBehindABadNetwork moves a name about in every way at once while calls are lost, late and doubled: by the leaders' own will, by
// request, by priority, and by resigning. At no instant do two say yes, tokens grow, and in the end everybody stands once and nobody else.
func TestTransfersBehindABadNetwork(t *testing.T) {
	const ids = "abcde"
	handOvers := 0
	for seed := range uint64(6) {
		bubble(t, func(t *testing.T, b *world) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			c := inLine(t, b, "")
			var nets []drivertest.FaultyStore
			var right [len(ids)]atomic.Pointer[Term]
			var largest Token
			for i, id := range ids {
				net := drivertest.Faulty(c.tap, drivertest.Faults{Seed: seed*100 + uint64(i), Delay: 50 * time.Millisecond, Drop: 0.05, Lose: 0.1, Late: 0.05, Twice: 0.05, Lag: 3 * time.Second})
				nets = append(nets, net)
				c.roams(net, i, string(id), seed, &right)
			}
			asks := b.session("operator", c.tap, Options{})
			for end := b.clock() + 5*time.Minute; b.clock() < end; time.Sleep(time.Duration(rnd.Int64N(int64(500 * time.Millisecond)))) {
				leads := 0
				for i := range right {
					if term := right[i].Load(); term != nil && term.Check() == nil {
						leads++
						if term.Token() < largest {
							t.Errorf("seed %d: token %v leads after %v", seed, term.Token(), largest)
						}
						largest = max(largest, term.Token())
					}
				}
				if leads > 1 {
					t.Fatalf("seed %d: %d lead", seed, leads)
				}
				if rnd.IntN(40) == 0 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, _ = asks.Election("n").Ask(ctx, Request{To: ids[rnd.IntN(len(ids)):][:1], Reason: "seed"})
					cancel()
				}
			}
			for _, net := range nets {
				net.Set(drivertest.Faults{})
			}
			time.Sleep(time.Minute) // also what was late has arrived
			got := c.line()
			for tries := 0; len(got) != len(ids) && tries < 100; tries++ { // one who has just handed over stands again in a moment
				time.Sleep(100 * time.Millisecond)
				got = c.line()
			}
			if len(got) != len(ids) {
				t.Errorf("seed %d: in the end the line is %s", seed, got)
			}
			handOvers += int(c.tap.calls.Load())
		})
	}
	if handOvers < 100 {
		t.Errorf("only %d calls of Transfer", handOvers)
	}
}

// roams runs a candidate that stops in its own way each time.
func (c *crowd) roams(net drivertest.FaultyStore, i int, id string, seed uint64, right *[5]atomic.Pointer[Term]) {
	rnd := rand.New(rand.NewPCG(seed, uint64(i)))
	s := c.session(id, net, Options{Overrun: OverrunWait})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.t.Cleanup(func() { cancel(); <-done })
	work := func(ctx context.Context, term *Term) error {
		right[i].Store(term)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(1+rnd.IntN(20)) * time.Second):
			if rnd.IntN(2) == 0 {
				limit, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = term.Transfer(limit, fmt.Sprintf("%c", 'a'+rnd.IntN(5)))
			}
		}
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		return nil
	}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = s.Candidate("n", &CampaignOptions{Priority: i, Steady: 7 * time.Second}).RunOnce(ctx, work)
		}
	}()
}
