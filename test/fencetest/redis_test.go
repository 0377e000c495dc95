//go:build linux

package fencetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/redisfence"
)

func TestRedis(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: startRedis(t)})
	t.Cleanup(func() { c.Close() })
	t.Run("rules", func(t *testing.T) { redisRules(t, c, redisfence.Fence{Key: "{r}:fence"}) })
	t.Run("scripts", func(t *testing.T) { redisScripts(t, c, redisfence.Fence{Key: "{s}:fence"}) })
	t.Run("limits", func(t *testing.T) { redisLimits(t, c, redisfence.Fence{Key: "{l}:fence"}) })
	t.Run("writers", func(t *testing.T) { redisWriters(t, c, redisfence.Fence{Key: "{w}:fence"}) })
}

func redisRules(t *testing.T, c *redis.Client, f redisfence.Fence) {
	ctx := t.Context()
	set := func(s fence.Stamp, v any) error {
		_, err := redisfence.Call(ctx, c, f, s, "SET", "{r}:k", v)
		return err
	}
	at := func(token primacy.Token, origin string) fence.Stamp {
		return fence.Stamp{Name: "x", Token: token, Origin: origin}
	}
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	want("never raised", set(at(7, ""), 1), fence.ErrNotRaised)
	want("raise 7", redisfence.Raise(ctx, c, f, at(7, "")), nil)
	want("write 7", set(at(7, ""), 1), nil)
	want("write 9, raised by nobody", set(at(9, ""), 2), fence.ErrNotRaised)
	want("raise 9", redisfence.Raise(ctx, c, f, at(9, "")), nil)
	want("late write 7", set(at(7, ""), 3), fence.ErrStale)
	want("raise 7 again", redisfence.Raise(ctx, c, f, at(7, "")), fence.ErrStale)
	// Numbers that a double cannot tell apart, and another length.
	huge := primacy.Token(math.MaxUint64)
	want("raise 10", redisfence.Raise(ctx, c, f, at(10, "")), nil)
	want("raise 9 after 10", redisfence.Raise(ctx, c, f, at(9, "")), fence.ErrStale)
	want("raise 2^64-1", redisfence.Raise(ctx, c, f, at(huge, "a")), nil)
	want("write 2^64-2", set(at(huge-1, "a"), 4), fence.ErrStale)
	want("another origin", set(at(huge, "b"), 5), fence.ErrOrigin)
	want("another election", set(fence.Stamp{Name: "y", Token: huge, Origin: "a"}, 6), primacy.ErrInvalid)
	var stale *fence.StaleError
	if err := set(at(huge-1, "a"), 4); !errors.As(err, &stale) || stale.Token != huge-1 || stale.Largest != huge {
		t.Errorf("tokens: %+v", stale)
	}
	want("adopt", redisfence.Adopt(ctx, c, f, at(3, "b")), nil)
	want("old origin", set(at(huge, "a"), 7), fence.ErrOrigin)
	want("new origin", set(at(3, "b"), 8), nil)
	c.Del(ctx, f.Key) // an eviction, or FLUSHALL
	want("after the fence was lost", set(at(3, "b"), 9), fence.ErrNotRaised)
	if got := c.Get(ctx, "{r}:k").Val(); got != "8" {
		t.Errorf("k = %s, want 8: a refused write landed", got)
	}
}

func redisScripts(t *testing.T, c *redis.Client, f redisfence.Fence) {
	ctx, s := t.Context(), stamp(7)
	if err := redisfence.Raise(ctx, c, f, s); err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{
		// as if the fence were not there
		"return {KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], #KEYS, #ARGV}": "[{s}:a {s}:b]",
		"return redis.call('SET', KEYS[1], ARGV[1])":                         "OK",
		"return redis.status_reply('FINE') -- no newline":                    "FINE",
		"local x = 1":           "<nil>",
		"return nil":            "<nil>",
		"return 5":              "5",
		"return tostring(seen)": "table: ",
	} {
		got, err := redisfence.Eval(ctx, c, f, s, script, []string{"{s}:a", "{s}:b"}, "v", 2)
		if err != nil || !strings.HasPrefix(strings.TrimSuffix(fmt.Sprint(got), "]"), strings.TrimSuffix(want, "]")) {
			t.Errorf("%s = %v, %v, want %s", script, got, err, want)
		}
	}
	for _, script := range []string{"return redis.call('INCR', KEYS[1])", "return redis.error_reply('own')",
		"error('own')", "return redis.call('NOSUCH')", "syntax error"} {
		if got, err := redisfence.Eval(ctx, c, f, s, script, []string{"{s}:a"}); err == nil ||
			errors.Is(err, fence.ErrStale) {
			t.Errorf("%s = %v, %v, want its error", script, got, err)
		}
	}
	if got, err := redisfence.Call(ctx, c, f, s, "GET", "{s}:none"); got != nil || err != nil {
		t.Errorf("GET of nothing = %v, %v", got, err)
	}
	if got, err := redisfence.Call(ctx, c, f, s, "HSET", "{s}:h", "a", 1, "b", 2); got != int64(2) || err != nil {
		t.Errorf("HSET = %v, %v", got, err)
	}
}

// redisWriters: a list that only ever grows by the newest leader.
func redisWriters(t *testing.T, c *redis.Client, f redisfence.Fence) {
	var wg sync.WaitGroup
	var turn atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 40 {
				s := stamp(primacy.Token(1 + turn.Add(1)/8 + rand.Int64N(3)))
				err := redisfence.Raise(t.Context(), c, f, s)
				if err == nil {
					_, err = redisfence.Call(t.Context(), c, f, s, "RPUSH", "{w}:list", s.Token.String())
				}
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var last primacy.Token
	list := c.LRange(t.Context(), "{w}:list", 0, -1).Val()
	for _, text := range list {
		var token primacy.Token
		if err := token.UnmarshalText([]byte(text)); err != nil || token < last {
			t.Errorf("%s after %d", text, last)
		}
		last = token
	}
	if len(list) < 10 {
		t.Errorf("only %d writes landed", len(list))
	}
}
