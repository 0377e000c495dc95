package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgdemo"
)

// lostStorePage returns the blocks of commands that docs/postgres-failover.md has for a store whose
// data are gone.
func lostStorePage(t *testing.T) (look, begin, join string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/postgres-failover.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n*The store's data are gone, or are those of a backup.*")
	part, _, ends := strings.Cut(rest, "\n*A member is to go.*")
	blocks := regexp.MustCompile("(?s)\n```\n# on ([^\n]*)\n(.*?)\n```\n").FindAllStringSubmatch(part, -1)
	if !ok || !ends || len(blocks) != 3 || blocks[0][1] != "each machine" || blocks[1][1] != "the machine with most" ||
		blocks[2][1] != "each other machine" {
		t.Fatalf("the page is not as this test knows it: %q", blocks)
	}
	return blocks[0][2], blocks[1][2], blocks[2][2]
}

// typed types lines of the page on a member's machine, and returns what the last command of primacy
// has printed. Where that asks a person, the answer is yes.
func (c *pgCluster) typed(name, lines string) string {
	c.Helper()
	m, said := c.members[name], ""
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		c.Logf("%s $ %s", name, line)
		rest, ok := strings.CutPrefix(line, "primacy ")
		switch {
		case ok:
			rest = strings.ReplaceAll(rest, "/etc/primacy/postgres/orders.toml", m.file)
			code := 0
			if strings.HasSuffix(rest, " --anew") {
				code = exitNo
			} else if strings.HasSuffix(rest, " --accept-loss") {
				rest += " --yes"
			}
			p := c.owner().start(strings.Fields(rest)...).within(5 * limit).ends(code)
			said = p.out.String()
			c.Logf("%s%s", said, p.err.String())
		case line == "systemctl stop primacy-postgres@orders":
			if m.runs() {
				c.ends(m)
			}
		case line == "systemctl start primacy-postgres@orders":
			c.up(m)
		default:
			c.Fatalf("the page has a command that the test does not know: %s", line)
		}
	}
	return said
}

// runs says whether a member's agent does.
func (m *pgMember) runs() bool {
	select {
	case <-m.Done():
		return false
	default:
		return true
	}
}

// most types what shows what these members have, and returns the one with most, as a person would
// choose it.
func (c *pgCluster) most(look string, names ...string) (best string) {
	c.Helper()
	var most core.Position
	row := regexp.MustCompile(`(?m)^(\w+) +(\d+) +([0-9A-F]+/[0-9A-F]+) +\S+ +(\d+): (\w+) on timeline \d+$`)
	for _, name := range names {
		said := c.typed(name, look)
		m := row.FindStringSubmatch(said)
		if m == nil || m[1] != name {
			c.Fatalf("%s says %q", name, said)
		}
		timeline, _ := strconv.ParseUint(m[2], 10, 32)
		at := core.Position{Timeline: core.Timeline(timeline)}
		var err error
		if at.LSN, err = core.ParseLSN(m[3]); err != nil {
			c.Fatal(err)
		}
		if most.Before(at) {
			most, best = at, name
		}
	}
	return best
}

// sockets is where a writer finds the members.
func (c *pgCluster) sockets() (all []pgdemo.Server) {
	for _, name := range slices.Sorted(maps.Keys(c.members)) {
		all = append(all, pgdemo.Server{Name: name, SocketDir: "127.0.0.1", Port: c.members[name].port})
	}
	return all
}

// anew is a cluster whose store is lost, and who writes to it.
type anew struct {
	*pgCluster
	writer             *pgdemo.Writer
	look, begin, joins string
}

// acknowledges waits until so many more rows are.
func (c *anew) acknowledges(rows int) {
	c.Helper()
	first, _, _, _ := c.writer.Counts()
	c.eventually("rows are acknowledged", func() bool {
		now, _, _, _ := c.writer.Counts()
		return now >= first+rows
	})
}

// primary waits until that member is the primary, with so many voters.
func (c *anew) primary(name string, voters int) {
	c.Helper()
	c.eventually(name+" is the primary", func() bool {
		j := c.list()
		return j.Primary == name && j.Record != nil && len(j.Record.Voters) == voters
	})
}

// write has the writer write, until what it returns is called.
func (c *anew) write() (rest func()) {
	ctx, cancel := context.WithCancel(c.Context())
	done := make(chan struct{})
	go func() { c.writer.Run(ctx); close(done) }()
	return func() { cancel(); <-done }
}

// has demands that a member has each row that was ever acknowledged. The writer rests.
func (c *anew) has(member string) {
	c.Helper()
	for _, s := range c.sockets() {
		if s.Name != member {
			continue
		}
		rows, err := pgdemo.Rows(c.Context(), s, limit)
		if err != nil {
			c.Fatal(err)
		}
		v := c.writer.Judge(member, map[string]map[int64]bool{member: rows})
		c.Logf("%s: %d rows acknowledged, %d of unknown outcome, %d lost", member, v.Acknowledged, v.Unknown,
			len(v.Lost))
		if len(v.Lost) > 0 || v.Acknowledged == 0 {
			c.Errorf("%s lacks %d acknowledged rows, such as %v", member, len(v.Lost), v.Lost[:min(5, len(v.Lost))])
		}
	}
}

// TestTheLostStorePageHolds types every command that docs/postgres-failover.md has for a store
// whose data are gone, and for one from a backup. The member with most has each row that was
// acknowledged before. A former primary that comes back late is no primary, and acknowledges
// nothing.
func TestTheLostStorePageHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	t.Parallel()
	oneDemo(t)
	c := &anew{pgCluster: postgresCluster(t, 3, "8s")}
	c.look, c.begin, c.joins = lostStorePage(t)
	c.writer = pgdemo.NewWriter(c.sockets(), 3*time.Second)
	was := c.whole()
	former, best, behind := was.Primary, was.Record.Voters[0].Name, was.Record.Voters[1].Name
	if err := pgdemo.Prepare(t.Context(), c.sockets(), limit); err != nil {
		t.Fatal(err)
	}
	rest := c.write()
	defer func() { rest() }()
	c.acknowledges(10)
	adopt := func(member string, args ...string) *prog {
		return c.owner().start(append([]string{"postgres", "adopt", "-f", c.members[member].file}, args...)...).
			within(3 * limit)
	}
	adopt(best, "--anew").ends(exitUsage).inOneLine().complains("primacy with process ID")

	// It is wiped. One member lacks what was acknowledged last, and the primary's machine is lost
	// with the store's.
	c.members[behind].Kill()
	adopt(behind, "--anew", "--accept-loss", "--yes").ends(exitNo).inOneLine().
		complains("not adopted: the store has record", "start the members")
	c.acknowledges(50)
	c.swaps("rm -r etcd", c.members[former])
	c.says(c.members[best], 0, storeLost)
	if got := c.most(c.look, behind, best); got != best {
		t.Fatalf("%s is said to have most, and %s has it", got, best)
	}
	adopt(behind).ends(exitNo).inOneLine().complains("not adopted: "+storeLost, "has seen record")
	c.typed(best, c.begin)
	c.primary(best, 0)
	rest()
	c.has(best)
	rest = c.write()
	from := c.said(c.members[former])
	c.up(c.members[former])
	c.says(c.members[former], from, "before it was adopted anew, and "+best+" is the primary now")
	c.owner().start("postgres", "check", "-f", c.members[former].file).within(limit).ends(exitNo).
		says("FAIL  cluster: this member is of the cluster before it was adopted anew")
	if c.writes(former) == nil {
		t.Errorf("%s, a former primary, acknowledges a row", former)
	}
	c.typed(behind, c.joins)
	c.acknowledges(10)
	c.primary(best, 1)
	c.ends(c.members[former])
	adopt(former, "--anew", "--accept-loss", "--yes").ends(exitNo).inOneLine().complains("was adopted anew already")
	c.typed(former, c.joins)
	c.whole()

	// It is set back, after another has become the primary. All members are there.
	c.swaps("cp -r etcd backup")
	c.whole()
	c.eventually("each member stands once", func() bool { // leases may have run out while etcd was away
		return len(c.list().Members) == len(c.members)
	})
	c.verb("switchover", "--to", behind).ends(0)
	c.acknowledges(20)
	logs := map[string]int{}
	for name, m := range c.members {
		logs[name] = c.said(m)
	}
	c.swaps("rm -r etcd; mv backup etcd")
	for name, m := range c.members {
		c.says(m, logs[name], storeLost)
	}
	best = c.most(c.look, slices.Sorted(maps.Keys(c.members))...)
	for name := range c.members {
		if name == former && name != best {
			first, _, _ := strings.Cut(c.begin, "\n")
			c.typed(name, first) // a person has chosen wrongly, and sees it
		}
	}
	c.typed(best, c.begin)
	c.primary(best, 0)
	rest()
	c.has(best)
	rest = c.write()
	for name := range c.members {
		if name != best {
			c.typed(name, c.joins)
		}
	}
	c.acknowledges(10)
	c.whole()
	rest()
	c.has(best)
}

// TestWhatAdoptAnewRefuses: flags that say nothing together.
func TestWhatAdoptAnewRefuses(t *testing.T) {
	w := plainWorld(t)
	w.start("postgres", "adopt", "-f", "x", "--anew", "--primary").ends(exitUsage).inOneLine().
		complains("--anew goes without")
	w.start("postgres", "adopt", "-f", "x", "--accept-loss").ends(exitUsage).inOneLine().complains("goes with --anew")
	w.start("postgres", "adopt", "-f", filepath.Join(w.dir, "none"), "--anew").ends(exitUsage).inOneLine()
}
