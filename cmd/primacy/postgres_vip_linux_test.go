package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// vip is the address that moves.
const vip = "192.0.2.1"

// soon is how fast a vip-manager is that nothing holds up.
const soon = 100 * time.Millisecond

// vipManager returns the program, or nothing. Debian 12 has none that reads etcd's present API, so
// make tools installs none.
func vipManager(t *testing.T) string {
	path, err := exec.LookPath("vip-manager")
	if err != nil {
		t.Log("only the key is looked at: there is no vip-manager; Debian 13 has it in the package vip-manager2")
		return ""
	}
	out, _ := exec.Command(path, "--version").CombinedOutput()
	m := regexp.MustCompile(`version:\s+(\d+)\.(\d+)`).FindStringSubmatch(string(out))
	if m == nil || m[1] == "1" || m[1] == "2" {
		t.Logf("only the key is looked at: %s is older than 3: %s", path, out)
		return ""
	}
	t.Logf("vip-manager %s.%s", m[1], m[2])
	return path
}

// addressed is a cluster with a vip-manager for each member, on a machine of its own.
type addressed struct {
	*shownCluster
	net      *etcdtest.Network
	managers map[string]*servertest.Process

	mu      sync.Mutex
	changes []change // of who has the address, and of the key leader
}

// change says that a member has the address from then on, or has it no more; or, where key is true,
// that the key leader names it; "" is nobody.
type change struct {
	at     time.Time
	member string
	has    bool
	key    bool
}

func (a *addressed) note(c change) {
	c.at = time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changes = append(a.changes, c)
}

// manage starts the vip-manager of a member on machine i.
func (a *addressed) manage(path, member string, i int) {
	a.Helper()
	line := a.net.On(i, []string{path, "--ip", vip, "--netmask", "32", "--interface", "eth0", "--dcs-type", "etcd",
		"--dcs-endpoints", "http://" + a.etcd.Addr(), "--trigger-key", "/service/orders/leader",
		"--trigger-value", member})
	a.managers[member] = &servertest.Process{}
	if err := a.managers[member].Run(a.T, exec.Command(line[0], line[1:]...),
		filepath.Join(a.dir, member+"-vip.log")); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		a.managers[member].Kill()
		if a.Failed() {
			a.Logf("the end of the log of %s's vip-manager:\n%s", member, a.managers[member].LogTail())
		}
	})
}

var local = regexp.MustCompile("-- " + regexp.QuoteMeta(vip) + "\n +/32 host LOCAL")

// has says whether a member's machine has the address.
func (a *addressed) has(member string) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/fib_trie", a.managers[member].PID()))
	return local.Match(text)
}

// watch looks who has the address, and whom the key names, until ctx ends.
func (a *addressed) watch(ctx context.Context, keys *clientv3.Client) {
	was := map[string]bool{}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	leader := keys.Watch(ctx, "/service/orders/leader")
	for {
		select {
		case <-ctx.Done():
			return
		case resp := <-leader:
			for _, e := range resp.Events {
				a.note(change{member: string(e.Kv.Value), has: e.Type == clientv3.EventTypePut, key: true})
			}
		case <-tick.C:
			for member := range a.managers {
				if is := a.has(member); is != was[member] {
					was[member] = is
					a.note(change{member: member, has: is})
				}
			}
		}
	}
}

// moved waits until the address is where it belongs, and there alone.
func (a *addressed) moved(to string) {
	a.Helper()
	a.eventually("the address is at "+to+" alone", func() bool {
		for member := range a.managers {
			if a.has(member) != (member == to) {
				return false
			}
		}
		return true
	})
}

// named is the member that the key named last.
func (a *addressed) named() (member string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.changes {
		if c.key {
			member = c.member
		}
	}
	return member
}

// judge looks that the address was never at two: where it was, a vip-manager must have been told in
// time, and be late by itself.
func (a *addressed) judge() {
	a.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var holders []string
	named, freed, shortest := "", time.Time{}, time.Hour
	for i, c := range a.changes {
		switch {
		case c.key && c.has && c.member != named:
			if named != "" {
				a.Errorf("the key named %s, and then %s, and nobody between", named, c.member)
			}
			if !freed.IsZero() {
				shortest = min(shortest, c.at.Sub(freed))
			}
			named = c.member
		case c.key && !c.has:
			named, freed = "", c.at
		case !c.key && !c.has:
			holders = slices.DeleteFunc(holders, func(m string) bool { return m == c.member })
		case !c.key:
			holders = append(holders, c.member)
			if len(holders) < 2 {
				continue
			}
			late, told := time.Hour, freed
			for _, d := range a.changes[i:] {
				if !d.key && !d.has && d.member == holders[0] {
					late = d.at.Sub(told)
					break
				}
			}
			a.Logf("the address was at %v: the former one dropped it %v after it was told", holders, late)
			if late < soon || late > limit {
				a.Errorf("the address was at %v", holders)
			}
		}
	}
	a.Logf("the key named nobody for %v at least", shortest)
	if shortest == time.Hour {
		a.Error("the key never changed")
	}
}

// TestVIPManager: the address of a vip-manager, and the key that it follows, in ten switchovers
// by patronictl and a kill of the primary's agent.
func TestVIPManager(t *testing.T) {
	onlyInVerify(t)
	path := vipManager(t)
	t.Parallel()
	oneDemo(t)
	nw := etcdtest.NewNetwork(t, 4) // the last one is etcd's
	a := &addressed{net: nw, managers: map[string]*servertest.Process{}}
	a.shownCluster = newShownClusterOn(t, etcdtest.Options{Hosts: []string{nw.Host(3)},
		Wrap: func(_ int, cmd []string) []string { return nw.On(3, cmd) }}, 3, "8s")
	for i, member := range machines {
		if path != "" {
			a.manage(path, member, i)
		}
	}
	keys, err := clientv3.New(clientv3.Config{Endpoints: []string{a.etcd.Addr()}, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.watch(ctx, keys); close(done) }()

	a.moved(a.whole().Primary)
	for range 10 {
		a.says(a.ctl("switchover", "--force"), "Successfully switched over to")
		a.moved(a.whole().Primary)
	}
	was := a.whole().Primary
	a.members[was].Kill()
	now := ""
	a.eventually("another is the primary", func() bool { now = a.list().Primary; return now != "" && now != was })
	a.moved(now)
	a.eventually("the key names it", func() bool { return a.named() == now })
	cancel()
	<-done
	a.judge()
}
