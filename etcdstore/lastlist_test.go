package etcdstore

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// listsAll says whether req reads all claims of some lines, and asks whether any has changed.
func listsAll(req any) (all, asks bool) {
	ranges := []*pb.RangeRequest{}
	switch r := req.(type) {
	case *pb.RangeRequest:
		ranges = append(ranges, r)
	case *pb.TxnRequest:
		for _, op := range r.Success {
			if one := op.GetRequestRange(); one != nil {
				ranges = append(ranges, one)
			}
		}
	}
	for _, r := range ranges {
		all = all || len(r.RangeEnd) > 0 && r.MinModRevision == 0
		asks = asks || r.MinModRevision > 0
	}
	return all, asks
}

// TestSimulatedAListThatIsReadAgain: whatever happens to claims, a list that is read again and
// again is the one that is read for the first time. Where nothing happens no claim is read.
func TestSimulatedAListThatIsReadAgain(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		watcher, g := gatedAt(t, c, 0, 0)
		s, _ := gatedAt(t, c, 1, 1)
		full, asked := 0, 0
		g.set(func() {
			g.before = func(req any) {
				all, asks := listsAll(req)
				if all {
					full++
				}
				if asks {
					asked++
				}
			}
		})
		rnd := rand.New(rand.NewPCG(1, 1))
		leases := []*lease{granted(t, s, "a", time.Minute), granted(t, s, "b", time.Minute)}
		var stand []driver.Place
		of := map[string]*lease{} // by the claim's ID
		prefix := ""
		same := func(what string) {
			t.Helper()
			want, err := s.readLines(ending(t, 5*time.Second), "test", s.prefix+escape(prefix))
			if err != nil {
				t.Fatal(err)
			}
			got, err := watcher.Lines(ending(t, 5*time.Second), prefix)
			if err != nil || !reflect.DeepEqual(got, want.lines) {
				t.Fatalf("after %s: Lines = %+v, %v, want %+v", what, got, err, want.lines)
			}
			for _, l := range got { // what a caller does to his copy is his own affair
				if l.Holder != nil {
					l.Holder.Owner = "changed"
					for i := range l.Holder.Value {
						l.Holder.Value[i] = 'X'
					}
				}
				for i := range l.Waiters {
					l.Waiters[i].Owner = "changed"
				}
			}
		}
		for n := range 600 {
			if n%100 == 0 {
				prefix = []string{"", "x/", "x/1"}[n/100%3]
			}
			time.Sleep(500 * time.Millisecond)
			what := rnd.IntN(7)
			i := rnd.IntN(len(leases))
			switch {
			case what == 0: // a new claim, with whatever was there
				name, id := fmt.Sprintf("%s/%d", []string{"x", "y"}[rnd.IntN(2)], rnd.IntN(4)), fmt.Sprint("c", n)
				p, err := leases[i].Claim(ending(t, 5*time.Second), driver.Claim{Name: name, ID: id,
					Value: []byte("v")})
				if err != nil {
					t.Fatal(err)
				}
				stand, of[id] = append(stand, p[0]), leases[i]
			case what == 1 && len(stand) > 0:
				k := rnd.IntN(len(stand))
				_ = of[stand[k].ID].Release(ending(t, 5*time.Second), stand[k])
				stand = append(stand[:k], stand[k+1:]...)
			case what == 2 && len(stand) > 0:
				p := stand[rnd.IntN(len(stand))]
				_ = of[p.ID].Update(ending(t, 5*time.Second), p, []byte(fmt.Sprint("v", n)))
			case what == 3 && rnd.IntN(5) == 0: // all claims of a session at once
				if err := leases[i].Close(ending(t, 5*time.Second)); err != nil {
					t.Fatal(err)
				}
				leases[i] = granted(t, s, fmt.Sprint("s", n), time.Minute)
			case what == 4: // what is no claim changes the revision too
				appended(t, s, "j", fmt.Sprint("k", n))
			case what == 5 && len(stand) > 0: // one goes and another comes: as many as before
				p := stand[0]
				_ = of[p.ID].Release(ending(t, 5*time.Second), p)
				id := fmt.Sprint("r", n)
				in, err := leases[i].Claim(ending(t, 5*time.Second), driver.Claim{Name: p.Name, ID: id})
				if err != nil {
					t.Fatal(err)
				}
				stand, of[id] = append(stand[1:], in[0]), leases[i]
			}
			for _, l := range leases {
				if err := l.Renew(ending(t, 5*time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			same(fmt.Sprintf("step %d, %d", n, what))
		}
		same("the last step") // and it is the last
		before, asks := full, asked
		for range 20 {
			time.Sleep(500 * time.Millisecond)
			same("nothing")
		}
		if full != before || asked != asks+20 {
			t.Errorf("twenty lists of the same claims were read whole %d times, and asked about %d times", full-before,
				asked-asks)
		}
		time.Sleep(2 * listKept)
		if watcher.lastList.of(prefix) != nil {
			t.Error("a list that nobody asks for is kept")
		}
		before = full
		same("a while")
		if full == before {
			t.Error("a list that was not kept is not read")
		}
	})
}

// TestAListOfARestoredCluster: one that was restored from a backup has an older revision, of which
// nothing is known. Nor is anything known where etcd answers too little.
func TestAListOfARestoredCluster(t *testing.T) {
	l := &list{at: readAt{10, 2}, counts: []int64{2}}
	two := []*pb.RangeResponse{{Count: 2}}
	if !l.stands(two, readAt{10, 2}) || !l.stands(two, readAt{11, 2}) {
		t.Error("a list that has not changed does not stand")
	}
	if l.stands(two, readAt{9, 2}) || l.stands(nil, readAt{11, 2}) || l.stands(two, readAt{11, 3}) {
		t.Error("a list stands of which nothing is known")
	}
}
