package etcdstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/servertest"

	"testing/quick"
)

func TestClaimKeysSayWhatTheyAreOf(t *testing.T) {
	s := &Store{layout: layout{"primacy/"}}
	check := func(name string, seat uint32, slots int16, lease int64) bool {
		id := seatID{Name: name}
		if seat%3 > 0 {
			id.Seat = fmt.Sprintf("s%x", seat)
		}
		n := max(int(slots), driver.Unlimited)
		dir, key := s.lineDir(name), s.claimKey(id, n, hex(lease&(1<<63-1)))
		got, session := parseClaim(dir, key)
		exclusive := key >= dir && key < dir+etcdwire.SharedMark
		shared := key >= dir+etcdwire.SharedMark && key < dir+etcdwire.SharedEnd
		return got == n && session == hex(lease&(1<<63-1)) && exclusive == (n == 0) && shared == (n != 0)
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 5000}); err != nil {
		t.Error(err)
	}
	dir := s.lineDir("a")
	for key, want := range map[string]int{"12": 0, "b/12": 0, "zz": 0, "": 0, "~": -1, "~x/12": -1, "~-3/12": -1,
		"~0/12": -1, "~3": 3, "~3/": 3} {
		if got, _ := parseClaim(dir, dir+key); got != want {
			t.Errorf("slots of the key %q = %d, want %d", key, got, want)
		}
	}
	for _, n := range []int{1, 2, 12, driver.Unlimited} { // no other number's keys are within a number's
		for _, m := range []int{1, 2, 12, driver.Unlimited} {
			key, same := s.claimKey(seatID{Name: "a", Seat: "1"}, n, "12"), slotsDir(dir, m)
			if in := key >= same && key < etcdwire.PrefixEnd(same); in != (n == m) {
				t.Errorf("the key with %d slots is among those with %d: %v", n, m, in)
			}
		}
	}
}

func TestWrongClaimsAreNamed(t *testing.T) {
	for _, c := range []driver.Claim{{Seat: "a/b"}, {Seat: "a.b"}, {Seat: "ä"}, {Seat: "~"}, {Seat: "a b"},
		{Seat: "12345678901234567"}, {Slots: -2}} {
		c.Name, c.ID = "n", "c"
		if checkClaims(c) == nil {
			t.Errorf("nothing is wrong with %+v", c)
		}
	}
	for _, c := range []driver.Claim{{}, {Seat: "aZ09"}, {Seat: "1234567890123456"}, {Slots: driver.Unlimited},
		{Slots: 1 << 20}} {
		c.Name, c.ID = "n", "c"
		if err := checkClaims(c); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// crowd is a line in which everybody waits as Wait does, with nothing but the signals of its watch.
type crowd struct {
	dir   string
	line  []*mvccpb.KeyValue // oldest first
	rev   int64
	ahead map[string]etcdwire.Span // who waits, and for what
	held  map[string]bool          // who knows that it holds
	looks int
}

// before answers as etcd does to the reads of the function of that name.
func (c *crowd) before(i, slots int) (first, shared []*mvccpb.KeyValue) {
	for j := i - 1; j >= 0; j-- {
		n, _ := parseClaim(c.dir, string(c.line[j].Key))
		switch {
		case n == 0 && len(first) == 0:
			first = append(first, c.line[j])
		case n != 0 && len(shared) < slots+1:
			shared = append(shared, c.line[j])
		}
	}
	return first, shared
}

func (c *crowd) look(i int) {
	key := string(c.line[i].Key)
	slots, _ := parseClaim(c.dir, key)
	first, shared := c.before(i, slots)
	if slots == 0 && i > 0 {
		first = c.line[i-1 : i]
	}
	c.looks++
	held, wait := evaluate(c.dir, slots, first, shared)
	if !held {
		c.ahead[key] = wait
		return
	}
	delete(c.ahead, key)
	c.held[key] = true
	followed := slices.ContainsFunc(c.line[i+1:],
		func(kv *mvccpb.KeyValue) bool { return strings.HasPrefix(string(kv.Key), c.dir+etcdwire.SharedMark) })
	if slots > 0 && followed {
		c.event(key, true)
	}
}

// event tells those who watch the key.
func (c *crowd) event(key string, put bool) {
	for i := 0; i < len(c.line); i++ {
		w, waits := c.ahead[string(c.line[i].Key)]
		if waits && (key == w.Key || w.End != "" && key >= w.Key && key < w.End) && (!put || w.Puts) {
			c.look(i)
		}
	}
}

func (c *crowd) enter(slots int) {
	c.rev++
	s := &Store{layout: layout{"p/"}}
	c.line = append(c.line, &mvccpb.KeyValue{Key: []byte(s.claimKey(seatID{Name: "a", Seat: fmt.Sprint(c.rev)}, slots, "12")),
		CreateRevision: c.rev})
	c.look(len(c.line) - 1)
}

func (c *crowd) leave(i int) {
	key := string(c.line[i].Key)
	c.line = slices.Delete(slices.Clone(c.line), i, i+1)
	delete(c.ahead, key)
	delete(c.held, key)
	c.event(key, false)
}

// TestWhoWaitsHearsOfItsTurn: in lines of all kinds, whoever comes and goes in whatever order,
// each claim knows that it holds as soon as it does, by the signals maxAlone; and a release costs
// a bounded number of looks, however many wait.
func TestWhoWaitsHearsOfItsTurn(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		slots := []int{driver.Unlimited, 1, 2, 3, 5}[rnd.IntN(5)]
		c := &crowd{dir: "p/a/", ahead: map[string]etcdwire.Span{}, held: map[string]bool{}}
		for range 200 {
			c.looks = 0
			before := len(c.held)
			switch {
			case len(c.line) < 30 && rnd.IntN(2) == 0:
				if rnd.IntN(5) == 0 {
					c.enter(0)
				} else {
					c.enter(slots)
				}
			case len(c.line) > 0:
				c.leave(rnd.IntN(len(c.line)))
			}
			_, held := ranks(c.dir, c.line)
			for i, kv := range c.line {
				if held[i] != c.held[string(kv.Key)] {
					t.Fatalf("seed %d, %d slots: claim %d of %d holds: %v, and knows: %v", seed, slots, i,
						len(c.line), held[i], !held[i])
				}
			}
			// Those who came to hold, the one who is first now, and one who was woken by who
			// stood before it.
			readers := 0
			if slots == driver.Unlimited {
				readers = len(c.line) // all who waited for one writer's key
			}
			if most := max(len(c.held)-before, 0) + slots + 3 + readers; c.looks > most {
				t.Fatalf("seed %d, %d slots: %d looks, want %d at most", seed, slots, c.looks, most)
			}
		}
	}
}
