//go:build linux

package pgtorture

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// settle is settled, and fails the test where that returns an error.
func (c *cluster) settle(limit time.Duration, written bool) *machine {
	c.tb.Helper()
	p, err := c.settled(limit, written)
	if err != nil {
		c.tb.Fatal(err)
	}
	return p
}

// settled returns the primary once the whole cluster has been well for a moment: the store shows
// it, all others stream, and rows are written. What ends meanwhile is started again, as a service
// manager does.
func (c *cluster) settled(limit time.Duration, written bool) (*machine, error) {
	c.tb.Helper()
	var last error
	var since time.Time // it has been well
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(30 * time.Millisecond) {
		c.restart()
		p, err := c.well(written)
		switch {
		case err != nil:
			last, since = err, time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > c.stable: // what was just done has shown by now
			return p, nil
		}
	}
	text := ""
	for _, m := range c.machines {
		text += fmt.Sprintf("\n%s (runs: %v):\n%s", m.name, m.runs(), m.tail(12))
	}
	return nil, fmt.Errorf("the cluster is not well after %v: %w%s", limit, last, text)
}

// restart starts the agents that have ended.
func (c *cluster) restart() {
	for _, m := range c.machines {
		if m.runs() {
			continue
		}
		if text := m.unexpected(); text != "" {
			c.complain(text)
		}
		_ = m.start()
	}
}

// complain fails the test, or says so where nothing was promised.
func (c *cluster) complain(text string) {
	if c.keeper.promises() {
		c.tb.Error(text)
		return
	}
	fmt.Fprintf(c.marks(), "%s %s\n", time.Now().Format("15:04:05.000"), text)
}

// well returns the primary if all is well now.
func (c *cluster) well(written bool) (*machine, error) {
	p, timeline, err := c.keeper.primary(c)
	if err != nil {
		return nil, err
	}
	rows, err := c.ask(p, "SELECT pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication"+
		" WHERE state = 'streaming' AND "+c.keeper.standbys()+")")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	if rows[0][0] != "f" || rows[0][1] != strconv.Itoa(members-1) {
		return nil, fmt.Errorf("%s: in recovery: %s, %s standbys stream", p.name, rows[0][0], rows[0][1])
	}
	if !written {
		return p, nil
	}
	now := boottime.Now()
	for _, a := range c.acks.since(max(0, c.acks.len()-100)) {
		if a.node == p.name && (a.timeline == timeline || timeline == 0) && now-a.ret < time.Second {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no row was acknowledged by %s on timeline %d in the last second", p.name, timeline)
}

// verdict is what the judges say of some rows.
type verdict struct {
	rows  int      // that were acknowledged
	lost  int      // of these, that not all nodes have
	two   int      // pairs of nodes that acknowledged at once, or in the wrong order
	wrong []string // in words
}

// verify looks for the rows that were acknowledged since the last time, on all nodes, and for who
// acknowledged them when.
func (c *cluster) verify(p *machine) (v verdict, err error) {
	all := c.acks.since(c.verified)
	at, err := c.ask(p, "SELECT pg_current_wal_flush_lsn()")
	if err != nil {
		return v, err
	}
	var first, last uint64
	for i, a := range all {
		if i == 0 {
			first, last = a.round(), a.round()
		}
		first, last = min(first, a.round()), max(last, a.round())
	}
	missing := map[uint64]bool{}
	for _, m := range c.machines {
		if m != p {
			if err := c.replayed(m, at[0][0]); err != nil {
				return v, err
			}
		}
		has, err := c.has(m, rowID(first, 0, 0), rowID(last+1, 0, 0))
		if err != nil {
			return v, err
		}
		lost := judgeRows(all, has)
		for _, a := range lost {
			missing[a.id] = true
		}
		if len(lost) > 0 {
			v.wrong = append(v.wrong, fmt.Sprintf("%d acknowledged rows are not on %s; the first: %+v, the last: %+v",
				len(lost), m.name, lost[0], lost[len(lost)-1]))
		}
	}
	c.reigns.add(all)
	two := c.reigns.news()
	v.wrong = append(append(v.wrong, two...), c.keeper.judge(c)...)
	v.rows, v.lost, v.two = len(all), len(missing), len(two)
	c.verified += len(all)
	return v, nil
}

// has returns the numbers of the rows on a machine, from one on and below another.
func (c *cluster) has(m *machine, from, to uint64) (map[uint64]bool, error) {
	ids, err := c.ask(m, fmt.Sprintf("SELECT id FROM rows WHERE id >= %d AND id < %d", from, to))
	if err != nil {
		return nil, err
	}
	has := map[uint64]bool{}
	for _, r := range ids {
		id, _ := strconv.ParseUint(r[0], 10, 64)
		has[id] = true
	}
	return has, nil
}

// replayed waits until a standby has replayed so far.
func (c *cluster) replayed(m *machine, lsn string) error {
	var last error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		rows, err := c.ask(m, "SELECT pg_last_wal_replay_lsn() >= '"+lsn+"'")
		if err == nil && rows[0][0] == "t" {
			return nil
		}
		last = err
	}
	return fmt.Errorf("%s does not come to replay %s: %w", m.name, lsn, last)
}

// finish judges what is left: all nodes have the same rows, and nothing stays behind the agents.
func (c *cluster) finish(order []int) (wrong []string) {
	c.tb.Helper()
	c.stop()
	p := c.settle(settleWithin, false)
	v, err := c.verify(p)
	if err != nil {
		return append(v.wrong, err.Error())
	}
	wrong = v.wrong
	if err := c.alike(); err != nil {
		wrong = append(wrong, err.Error())
	}
	if !c.keeper.promises() {
		return wrong
	}
	wrong = append(wrong, c.keeper.left(c)...)
	for _, i := range order {
		if err := c.machines[i].terminate(20 * time.Second); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	for _, m := range c.machines {
		for end := time.Now().Add(3 * time.Second); len(m.procs()) > 0; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				wrong = append(wrong, fmt.Sprintf("left of %s: %v", m.name, m.procs()))
				break
			}
		}
	}
	return append(wrong, c.claimsLeft()...)
}

// alike returns nil once all nodes have the same rows. What a writer sent last may still be under
// way.
func (c *cluster) alike() (err error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var has []string
		err = nil
		for _, m := range c.machines {
			rows, e := c.ask(m, "SELECT count(*), coalesce(sum(hashint8(id)::bigint), 0) FROM rows")
			if e != nil {
				err = e
				break
			}
			has = append(has, strings.Join(rows[0], " "))
		}
		if err == nil && slices.Equal(has[1:], has[:len(has)-1]) {
			return nil
		}
		err = errors.Join(err, fmt.Errorf("rows and their sum differ between the nodes: %v", has))
	}
	return err
}
