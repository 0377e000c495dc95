package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/cmd/internal/postgres/patroni"
)

const (
	makeFile = "primacy postgres adopt --patroni /etc/patroni/patroni.yml --secrets /etc/primacy/postgres > " +
		"/etc/primacy/postgres/orders.toml"
	adoptStandby = "primacy postgres adopt -f /etc/primacy/postgres/orders.toml"
	adoptPrimary = adoptStandby + " --primary"
	stopPatroni  = "systemctl disable --now patroni"
	startMember  = "systemctl enable --now primacy-postgres@orders"
	pausePatroni = "patronictl -c /etc/patroni/patroni.yml pause --wait"
)

func (c *keptCluster) others(machine string) []string {
	return slices.DeleteFunc(slices.Clone(machines), func(m string) bool { return m == machine })
}

// stays looks for so long that one server alone is the primary, or none.
func (c *keptCluster) stays(primary string, d time.Duration) {
	c.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if now := c.leader(); now != primary && now != "" {
			c.Fatalf("primaries: %s, want %s alone", now, primary)
		}
	}
}

// begunBefore leaves in the store what a takeover leaves that was killed before it had its term.
func (c *keptCluster) begunBefore() {
	c.Helper()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{c.etcd.Addr()}, DialTimeout: limit})
	if err != nil {
		c.Fatal(err)
	}
	defer cli.Close()
	const key = "/service/orders/initialize"
	resp, err := cli.Get(c.Context(), key)
	if err != nil || len(resp.Kvs) != 1 {
		c.Fatal(resp, err)
	}
	if _, err := cli.Put(c.Context(), key, patroni.Guarded(string(resp.Kvs[0].Value))); err != nil {
		c.Fatal(err)
	}
	if out := c.ctl("edit-config", "--set", "pause=null", "--force", "orders"); !strings.Contains(out, "changed") {
		c.Fatalf("patronictl: %s", out)
	}
}

// TestAPatroniThatWasOffIsNoSecondManager: its machine was off during the migration, so nobody has
// disabled it. It finds no leader's key, for the members have no [api].
func TestAPatroniThatWasOffIsNoSecondManager(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	c := newKeptCluster(t, "    synchronous_mode: false")
	primary := c.leader()
	standby, late := c.others(primary)[0], c.others(primary)[1]
	for _, m := range []string{primary, standby} {
		c.typed(m, makeFile)
		if err := os.WriteFile(c.members[m].file, []byte(c.bare(m)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.typed(primary, pausePatroni)
	for _, m := range machines {
		c.typed(m, stopPatroni)
	}
	c.typed(standby, adoptStandby)
	c.typed(standby, startMember)
	c.typed(primary, adoptPrimary)
	c.begunBefore()
	c.typed(primary, startMember)
	c.eventually("it is the primary", func() bool { return c.list().Primary == primary && c.leader() == primary })
	c.patroni(late)
	c.eventually("it refuses to run", func() bool { return c.managers[late].Exited() })
	c.stays(primary, 10*time.Second)
}

// TestAnOldAdoptionTakesNothing: it was given up, and not taken back. Its server has become a
// standby since, and Patroni is stopped in a pause again.
func TestAnOldAdoptionTakesNothing(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	c := newKeptCluster(t, "    synchronous_mode: false")
	was := c.leader()
	next := c.others(was)[0]
	c.typed(was, makeFile)
	c.typed(was, pausePatroni)
	for _, m := range machines {
		c.typed(m, stopPatroni)
	}
	c.typed(was, adoptPrimary)
	for _, m := range append([]string{was}, c.others(was)...) {
		c.typed(m, "systemctl enable --now patroni")
	}
	c.typed(was, "patronictl -c /etc/patroni/patroni.yml resume --wait")
	c.eventually("Patroni switches over", func() bool {
		c.ctl("switchover", "--leader", was, "--candidate", next, "--force", "orders")
		return c.leader() == next
	})
	c.eventually("the former primary follows", func() bool {
		return strings.Count(c.ctl("list", "-f", "json"), `"State": "running"`) == 3
	})
	c.typed(was, pausePatroni)
	for _, m := range machines {
		c.typed(m, stopPatroni)
	}
	c.eventually("Patroni's keys are gone", func() bool {
		return !strings.Contains(c.ctl("list", "-f", "json"), "Member")
	})
	c.owner().start("postgres", "-f", c.members[was].file).ends(exitUsage).complains("is a standby's now", "--undo")
	c.stays(next, time.Second)
	undo := []string{"postgres", "adopt", "-f", c.members[was].file, "--undo"}
	c.owner().start(undo...).ends(0).complains("adopted no more")
	c.owner().start(undo...).ends(exitNo).inOneLine().complains("was not adopted")
}
