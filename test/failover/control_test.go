//go:build linux

package failover

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// TestFailoverControl takes away what keeps clients from a former leader: the proxy does not ask
// who leads, and the service does not ask for its term. A whole node that is frozen and thawed must
// then be seen to act after the next leader, or this harness sees nothing.
func TestFailoverControl(t *testing.T) {
	if os.Getenv("FAILOVER_CONTROL") == "" {
		t.Skip("FAILOVER_CONTROL is not set: one round and more of a frozen node, as long as it takes")
	}
	programtest.Needs(t, "haproxy", "ip", "setpriv")
	if servertest.CgroupRoot() == "" {
		t.Skip("no cgroup of version 2: nothing else freezes a node so that the kernel does not wake it")
	}
	t.Setenv(blindEnv, "yes")
	checks := regexp.MustCompile(`(?m)^\s+(option httpchk|http-check .*|default-server .*)$`)
	blind := examples["haproxy"]
	blind.change = func(text string) string { return checks.ReplaceAllString(text, "") }
	s := newServiceWith(t, 3*time.Second, blind)
	for round := range 10 {
		lead := s.leader(0)
		group := servertest.NewCgroup(t, s.which(int(lead.ID[4]-'0'), []int{0, 1, 2})...)
		group.Freeze()
		seen, stop := flood(s.clients.url)
		if !within(20*time.Second, func() bool { return seen().top() > lead.Token }) {
			t.Fatal("nobody leads while a node is frozen")
		}
		time.Sleep(300 * time.Millisecond)
		group.Thaw()
		time.Sleep(time.Second)
		stop()
		if v := judge(seen()); v.byInstant != nil {
			t.Logf("round %d: %v; %d old answers came late", round+1, v.byInstant, v.overtaken)
			return
		}
	}
	t.Error("no node that was frozen was seen to act afterwards")
}

type sightings []seen

func (s sightings) top() (token uint64) {
	for _, one := range s {
		token = max(token, one.Token)
	}
	return token
}

// flood asks every 20 ms, each time on a connection of its own, whatever became of the others.
func flood(url string) (all func() sightings, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var got sightings
	var running sync.WaitGroup
	running.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			running.Go(func() {
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
				if s, err := one(ctx, client, url); err == nil {
					mu.Lock()
					got = append(got, s)
					mu.Unlock()
				}
			})
		}
	})
	all = func() sightings {
		mu.Lock()
		defer mu.Unlock()
		return append(sightings(nil), got...)
	}
	return all, func() { cancel(); running.Wait() }
}
