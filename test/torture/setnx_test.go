//go:build linux

package torture

import (
	"context"
	"log"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/internal/boottime"
)

// kindSetNX is a control: the lock that most programs have on Redis.
const kindSetNX = "set-nx"

// TestStoreControl does harm to candidates that hold SET key value NX PX ttl on Redis, renew it,
// and go on until they hear that it is no longer theirs. They must be seen to lead twice.
func TestStoreControl(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	s := emptyTorture(t, newSeed(t), time.Second)
	s.store = onRedis().start(t)
	s.addLine("control", slices.Repeat([]string{kindSetNX}, 3)...)
	few := []lane{{name: "links", kinds: aimed("requests held", "silent link"), most: 200 * time.Millisecond}}
	for _, v := range s.run(few, 8*time.Second) {
		t.Log("\n" + v.String())
		if len(v.overlaps) == 0 {
			t.Errorf("%s: no overlap: these faults prove nothing", v.line.name)
		}
	}
}

// The scripts of the control compare and then act, as all such locks do.
var (
	extendMine = redis.NewScript(`return redis.call("GET", KEYS[1]) == ARGV[1] and redis.call("PEXPIRE", KEYS[1], ARGV[2]) or 0`)
	deleteMine = redis.NewScript(`return redis.call("GET", KEYS[1]) == ARGV[1] and redis.call("DEL", KEYS[1]) or 0`)
)

// setNX stands by SET NX PX, again and again.
func (w *workerArgs) setNX(ctx context.Context, a *actor) error {
	c := redis.NewClient(&redis.Options{Addr: w.endpoints, ReadTimeout: w.ttl / 4, MaxRetries: -1})
	defer c.Close()
	for ctx.Err() == nil {
		if won, err := c.SetNX(ctx, w.name, w.id, w.ttl).Result(); err != nil || !won {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if err := w.holdNX(ctx, c, a); err != nil {
			return err
		}
	}
	return nil
}

// holdNX leads until it hears that another does. Its word that it leads is a flag.
func (w *workerArgs) holdNX(ctx context.Context, c *redis.Client, a *actor) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var lost atomic.Bool
	go func() {
		for !lost.Load() && ctx.Err() == nil {
			mine, err := extendMine.Run(ctx, c, []string{w.name}, w.id, w.ttl.Milliseconds()).Int()
			if err != nil {
				log.Print(err) // and tries again
			}
			lost.Store(err == nil && mine == 0)
			time.Sleep(w.ttl / 3)
		}
	}()
	err := a.lead(uint64(boottime.Now()), func() bool { return !lost.Load() && ctx.Err() == nil })
	limit, end := context.WithTimeout(context.Background(), time.Second)
	defer end()
	_ = deleteMine.Run(limit, c, []string{w.name}, w.id).Err()
	return err
}
