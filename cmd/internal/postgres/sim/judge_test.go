package sim

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// court is a world in which nothing happens but what its judge is told.
type court struct {
	*World
	servers []*server
	claims  []*claim
	commits []commit
}

// sound is a history in which nothing is wrong: pg1 is born a primary and acknowledges a commit,
// and pg2, which has it, is promoted after it.
func sound() *court {
	c := &court{World: &World{rng: rand.New(rand.NewPCG(1, 1)), cuts: map[[2]int]bool{}}}
	c.store = &store{w: c.World, up: true}
	c.judge.w = c.World
	for i := range 3 {
		n := newNode(c.World, i)
		n.disk.state.SystemID, n.disk.state.Incarnation = "7", "i"
		n.srv = &server{process: process{w: c.World}, n: n, primary: true, token: uint64(i + 1)}
		n.srv.loaded = core.Sync{Kind: core.SyncNobody}
		n.agent = &agent{n: n}
		c.nodes, c.servers = append(c.nodes, n), append(c.servers, n.srv)
		c.claims = append(c.claims, &claim{a: n.agent, token: uint64(i + 1), key: uint64(i + 1)})
	}
	c.judge.promoted(c.servers[0], 1, 1)
	c.write(0, c.record(0))
	c.commit(0, 0)
	c.copy(0, 1)
	c.write(1, c.record(1))
	c.judge.promoted(c.servers[1], 2, 2)
	return c
}

// record is that of the term of a node: it is the primary, and the other two vote.
func (c *court) record(i int) core.Record {
	r := core.Record{Token: uint64(i + 1), Granted: core.Timeline(i + 1), SystemID: "7", Timeline: core.Timeline(i + 1),
		Primary: c.nodes[i].identity(), Acks: 1, Needed: 2, Durability: core.Quorum}
	for k, n := range c.nodes {
		if k != i {
			r.Voters = append(r.Voters, n.identity())
		}
	}
	return r
}

func (c *court) write(i int, r core.Record) {
	c.judge.recorded(c.claims[i], c.store.record, &r)
	c.store.record, c.store.key = &r, c.claims[i].key
}

// commit has a node's server acknowledge its next commit, under the token.
func (c *court) commit(i int, token uint64) {
	s := c.servers[i]
	if token != 0 {
		s.token = token
	}
	id := s.insert(1)
	c.judge.acked(s, commit{pos: len(s.n.disk.wal), id: id})
}

func (c *court) copy(from, to int) {
	c.nodes[to].disk.wal = append(wal(nil), c.nodes[from].disk.wal...)
}

// Each of these is one fact more than a sound history has, and its rule must see it: a judge that
// is blind to it would be noticed by nobody, as the core that ships breaks none.
func TestTheJudgeSees(t *testing.T) {
	if c := sound(); c.judge.violated != "" {
		t.Fatalf("of a sound history: %s", c.judge.violated)
	}
	for what, c := range map[string]struct {
		add  func(c *court)
		says string
	}{
		"a promotion without a commit": {func(c *court) {
			c.write(2, c.record(2))
			c.judge.promoted(c.servers[2], 3, 3)
		}, "is promoted under token 3 without it"},
		"a commit acknowledged after the next one was promoted": {func(c *court) { c.commit(0, 1) },
			"pg2 (token 2) was promoted without"},
		"a server promoted by hand that acknowledges": {func(c *court) {
			c.servers[2].token = 0
			c.commit(2, 0)
		}, "was promoted by hand and has acknowledged"},
		"an acknowledgement of another database": {func(c *court) {
			c.nodes[1].disk.state.SystemID = "8"
			c.commit(1, 2)
		}, "there is no record of its database"},
		"two promotions in a term": {func(c *court) {
			c.copy(1, 2)
			c.judge.promoted(c.servers[2], 3, 2)
		}, "term 2 promotes pg2 and pg3"},
		"a timeline given twice": {func(c *court) {
			c.copy(1, 2)
			c.write(2, c.record(2))
			c.judge.promoted(c.servers[2], 2, 3)
		}, "timeline 2 is given to pg2 and pg3"},
		"a timeline that goes back": {func(c *court) {
			c.copy(1, 2)
			r := c.record(2)
			r.Timeline = 0
			c.write(2, r)
			c.judge.promoted(c.servers[2], 0, 3)
		}, "are out of order"},
		"another than the record says": {func(c *court) {
			c.copy(1, 2)
			r := c.record(2)
			r.Primary = c.nodes[0].identity()
			r.Voters = nil
			c.write(2, r)
			c.judge.promoted(c.servers[2], 3, 3)
		}, "the record says"},
		"a promotion without a record": {func(c *court) {
			c.copy(1, 2)
			c.judge.promoted(c.servers[2], 3, 3)
		}, "of which there is no record"},
		"a promotion under a store that was lost": {func(c *court) {
			c.store.losses = 1
			c.judge.promoted(c.servers[2], 3, 1<<32|3)
		}, "of a store that was lost"},
		"a record in a store that was lost": {func(c *court) {
			c.store.losses = 1
			c.write(2, c.record(2))
		}, "into a store that was lost"},
		"a record of another term": {func(c *court) {
			r := c.record(2)
			r.Token = 2
			c.write(2, r)
		}, "term 3 writes a record of term 2"},
		"a primary that votes": {func(c *court) {
			r := c.record(2)
			r.Voters = append(r.Voters, r.Primary)
			c.write(2, r)
		}, "is among the voters"},
		"a record that takes back": {func(c *court) {
			r := c.record(2)
			r.Granted = 1
			c.write(2, r)
		}, "takes back: granted 1 after 2"},
		"a first record before the promotion": {func(c *court) {
			c.store.record = nil
			c.write(2, c.record(2))
		}, "the first record comes before the promotion"},
		"acknowledgements that two can give without the record's voters": {func(c *court) {
			s := c.servers[1]
			s.loaded = core.Sync{Kind: core.SyncAlone}
			c.judge.overlap(s)
		}, "k + q > |V ∪ S| does not hold"},
	} {
		w := sound()
		c.add(w)
		if !strings.Contains(w.judge.violated, c.says) {
			t.Errorf("%s: %q, want %q", what, w.judge.violated, c.says)
		}
	}
}
