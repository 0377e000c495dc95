//go:build linux

package failover

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// clients ask a proxy all the time, and keep what was answered.
type clients struct {
	url  string
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	all    []seen
	failed map[string]int // requests without an answer of a leader, by why
	last   seen
}

func hammer(addr string, n int) *clients {
	ctx, stop := context.WithCancel(context.Background())
	c := &clients{url: "http://" + addr + "/", stop: stop, failed: map[string]int{}}
	for range n {
		c.done.Go(func() { c.ask(ctx) })
	}
	return c
}

// ask is one client, on a connection of its own as long as that lasts.
func (c *clients) ask(ctx context.Context) {
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		s, err := one(ctx, client, c.url)
		c.mu.Lock()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			c.failed[err.Error()]++
		default:
			c.all = append(c.all, s)
			if s.Token >= c.last.Token {
				c.last = s
			}
		}
		c.mu.Unlock()
		time.Sleep(4 * time.Millisecond)
	}
}

// one asks once.
func one(ctx context.Context, client *http.Client, url string) (s seen, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // longer than any fault: what comes late must be seen
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return s, err
	}
	s.sent = boottime.Now()
	resp, err := client.Do(r)
	if err != nil {
		return s, fmt.Errorf("no answer")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("status %d", resp.StatusCode)
	}
	if err := json.NewDecoder(resp.Body).Decode(&s.answer); err != nil {
		return s, fmt.Errorf("half an answer")
	}
	s.got = boottime.Now()
	return s, nil
}

// leader returns the newest term seen, if it has answered lately.
func (c *clients) leader() (seen, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.last.Token != 0 && boottime.Now()-c.last.got < 200*time.Millisecond
}

func (c *clients) failures() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.failed)
}

func (c *clients) end() []seen {
	c.stop()
	c.done.Wait()
	return c.all
}
