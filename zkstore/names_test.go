package zkstore

import (
	"math"
	"slices"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

func TestNamesDoNotCollide(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "a/b", "a%2Fb", "a%2fb", ".", "..", "...", "@leases", "%40leases", "", " ", "ö", "\xff", "\x00", "a.b", ".a", "A"} {
		part := escape(name)
		if other, ok := seen[part]; ok {
			t.Errorf("%q and %q are both %q", name, other, part)
		}
		seen[part] = name
		if back, ok := unescape(part); !ok || back != name {
			t.Errorf("%q = %q = %q, %v", name, part, back, ok)
		}
	}
	for _, part := range []string{"@leases", "%", "%2", "%2f", "%61", ".a", "a b", "%zz"} {
		if name, ok := unescape(part); ok {
			t.Errorf("%q was taken for the name %q", part, name)
		}
	}
}

func TestANodeIsReadAsItWasWritten(t *testing.T) {
	for _, c := range []driver.Claim{{ID: "x"}, {ID: "y/ü", Slots: 3, Seat: "abc1"}, {ID: "", Slots: driver.Unlimited, Seat: "2"}} {
		n, ok := parse("/d", nodeName("0123456789abcdef", c)+"0000000012")
		if !ok || n.slots != c.Slots || n.seat != c.Seat || n.hash != hashOf(c.ID) || n.seq != 12 || n.lease != "0123456789abcdef" {
			t.Errorf("%+v = %+v, %v", c, n, ok)
		}
	}
}

// ZooKeeper's counter of children has 32 bits; where it has come to its end, only the czxid tells
// who came first.
func TestTheOrderOutlivesTheCounterOfChildren(t *testing.T) {
	for _, seqs := range [][]int64{{1, 2, 3}, {math.MaxInt32, math.MaxInt32, math.MaxInt32}, {math.MaxInt32 - 1, math.MinInt32, math.MinInt32 + 1}, {math.MaxInt32 - 1, math.MaxInt32, math.MaxInt32}} {
		nodes := []node{{seq: seqs[2], czxid: 30}, {seq: seqs[0], czxid: 10}, {seq: seqs[1], czxid: 20}}
		inOrder(nodes)
		if nodes[0].czxid != 10 || nodes[1].czxid != 20 || nodes[2].czxid != 30 {
			t.Errorf("%v: order %+v", seqs, nodes)
		}
	}
}

func TestWhoIsWatched(t *testing.T) {
	for _, c := range []struct {
		slots []int // of those in front, then our own
		want  []int
	}{
		{[]int{0}, nil},
		{[]int{0, 0, 0}, []int{0, 1}},
		{[]int{0, 0, 0, 0, 0, 0}, []int{2, 3, 4}},
		{[]int{-1, -1, 0}, []int{0, 1}},
		{[]int{-1, -1, -1}, nil},
		{[]int{0, -1, 0, -1, -1}, []int{2}},
		{[]int{2, 2, 2}, []int{0, 1}},
		{[]int{2, 2, 2, 2}, []int{1, 2}},
		{[]int{2, 2}, nil},
		{[]int{2, 0, 2}, []int{1}},
	} {
		nodes := make([]node, len(c.slots))
		for i, n := range c.slots {
			nodes[i] = node{seq: int64(i), slots: n}
		}
		var got []int
		for _, n := range lookouts(nodes, len(nodes)-1) {
			got = append(got, int(n.seq))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: watches %v, want %v", c.slots, got, c.want)
		}
	}
}
