//go:build linux

package fencetest

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/redisfence"
)

// losing is a connection that loses one answer.
type losing struct {
	net.Conn
	lose   *atomic.Bool
	onLoss func()
}

func (l *losing) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 && l.lose.CompareAndSwap(true, false) {
		l.Conn.Close()
		l.onLoss()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// A client that repeats by itself tells only of its last attempt: the first one has landed, a newer
// leader has raised, and the error is ErrStale. With MaxRetries: -1 the answer that was lost is an
// error of the network.
func TestWhatARepeatedCommandTells(t *testing.T) {
	t.Parallel()
	socket := startRedis(t)
	direct := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	t.Cleanup(func() { direct.Close() })
	for key, c := range map[string]struct {
		retries int
		stale   bool
	}{"{a}": {0, true}, "{b}": {-1, false}} {
		f := redisfence.Fence{Key: key + ":fence"}
		if err := redisfence.Raise(t.Context(), direct, f, stamp(7)); err != nil {
			t.Fatal(err)
		}
		var lose atomic.Bool
		onLoss := func() {
			if err := redisfence.Raise(context.Background(), direct, f, stamp(9)); err != nil {
				t.Error(err)
			}
		}
		old := redis.NewClient(&redis.Options{MaxRetries: c.retries,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				conn, err := net.Dial("unix", socket)
				return &losing{conn, &lose, onLoss}, err
			}})
		t.Cleanup(func() { old.Close() })
		if err := old.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		lose.Store(true)
		_, err := redisfence.Call(t.Context(), old, f, stamp(7), "INCR", key+":n")
		if err == nil || errors.Is(err, fence.ErrStale) != c.stale || direct.Get(t.Context(), key+":n").Val() != "1" {
			t.Errorf("MaxRetries %d: %v, n = %s, want ErrStale: %v", c.retries, err,
				direct.Get(t.Context(), key+":n").Val(), c.stale)
		}
	}
}

// redisLimits: how many arguments one Call takes.
func redisLimits(t *testing.T, c *redis.Client, f redisfence.Fence) {
	if err := redisfence.Raise(t.Context(), c, f, stamp(7)); err != nil {
		t.Fatal(err)
	}
	push := func(n int) error {
		values := make([]any, n)
		for i := range values {
			values[i] = i
		}
		_, err := redisfence.Call(t.Context(), c, f, stamp(7), "RPUSH", "{l}:list", values...)
		return err
	}
	if err := push(7900); err != nil {
		t.Errorf("7900 arguments: %v", err)
	}
	if err := push(8000); err == nil || !strings.Contains(err.Error(), "too many results to unpack") {
		t.Errorf("8000 arguments: %v", err)
	}
}
