package etcdwire

import (
	"errors"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestWhichGrantsAreTakenForOnesOfTheirTerm: a grant counts if its answer bears a term that was
// known before it was asked for. Each case lists the terms that answers bear, the newest one known
// first.
func TestWhichGrantsAreTakenForOnesOfTheirTerm(t *testing.T) {
	for _, c := range []struct {
		what    string
		known   uint64
		answers []uint64
		taken   int // which of them, from 1 on; 0: none
	}{
		{"the term goes on", 7, []uint64{7}, 1},
		{"the leader has changed", 7, []uint64{8, 8}, 2},
		{"the answer of a member that caught up by a snapshot", 7, []uint64{5, 7}, 2},
		{"the same, and the leader changes", 7, []uint64{5, 8, 8}, 3},
		{"etcd began anew", 7, []uint64{2, 2}, 2},
		{"etcd began anew, and its leader changes", 7, []uint64{2, 3, 3}, 3},
		{"the leader changes each time", 7, []uint64{8, 9, 10}, 0},
		{"etcd began anew, and its leader changes each time", 7, []uint64{2, 3, 4}, 0},
	} {
		known, asked := c.known, 0
		var dropped []int
		got, err := GrantInTerm(func() uint64 { return known }, func() (int, *pb.ResponseHeader, error) {
			term := c.answers[asked]
			asked++
			known = max(known, term)
			return asked, &pb.ResponseHeader{RaftTerm: term}, nil
		}, func(n int) { dropped = append(dropped, n) })
		if c.taken == 0 {
			if !errors.Is(err, ErrMoved) || !slices.Equal(dropped, []int{1, 2, 3}) {
				t.Errorf("%s: grant %d, %v, dropped %v, want ErrMoved and all dropped", c.what, got, err, dropped)
			}
			continue
		}
		if err != nil || got != c.taken || len(dropped) != c.taken-1 {
			t.Errorf("%s: grant %d, %v, dropped %v, want grant %d and those before it dropped", c.what, got, err,
				dropped, c.taken)
		}
	}
}
