package etcdstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// keepsAll appends a record to each of n journals, one after the other.
func keepsAll(t *testing.T, s *Store, n int, key string) {
	t.Helper()
	for i := range n {
		_, added, err := s.Append(ending(t, 20*time.Second), fmt.Sprint("j", i), driver.Record{Key: key}, 9)
		if err != nil || !added {
			t.Fatalf("Append = %v, %v, want it added", added, err)
		}
	}
}

// TestReadsOfRecordsLeaveNothingInTheLog: etcd's members agree on what is written. Reads that
// travel together are none of that.
func TestReadsOfRecordsLeaveNothingInTheLog(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s, err := Open(ending(t, 20*time.Second), Config{Endpoints: []string{srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const many = 50
	keepsAll(t, s, many, "k")
	time.Sleep(100 * time.Millisecond)
	before := srv.Metric(t, proposals)
	for range 20 {
		atOnce(many, func(i int) {
			all, err := s.Records(ending(t, 20*time.Second), fmt.Sprint("j", i), "", 32)
			if err != nil || len(all) != 1 || all[0].Key != "k" {
				t.Errorf("Records = %v, %v, want the one", all, err)
			}
		})
	}
	if n := srv.Metric(t, proposals) - before; n > 5 {
		t.Errorf("%d reads were %v proposals, want none", 20*many, n)
	}
}

// proposals is how many entries etcd's log has had.
const proposals = "etcd_server_proposals_committed_total"

// TestSimulatedReadsAreRanges: etcd takes no Txn within another one for a read.
func TestSimulatedReadsAreRanges(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		keepsAll(t, s, 10, "k")
		g.set(func() {
			g.before = func(req any) {
				for _, op := range req.(*pb.TxnRequest).Success {
					if op.GetRequestRange() == nil {
						t.Errorf("seed 1: a read is %v", op)
					}
				}
			}
		})
		atOnce(10, func(i int) {
			all, err := s.Records(ending(t, 20*time.Second), fmt.Sprint("j", i), "", 32)
			if err != nil || len(all) != 1 || all[0].Key != "k" {
				t.Errorf("seed 1: Records = %v, %v, want the one", all, err)
			}
		})
	})
}

// TestSimulatedRecordsOfAJournalTravelTogether too: what is read may be read twice, and what is
// appended has keys of its own. Of one key the first alone is kept.
func TestSimulatedRecordsOfAJournalTravelTogether(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		keepsAll(t, s, 1, "k")
		const many = 100
		n := countRequests(g)
		atOnce(many, func(i int) {
			if all, err := s.Records(ending(t, 20*time.Second), "j0", "", 32); err != nil || len(all) != 1 {
				t.Errorf("seed 1: Records = %v, %v, want one", all, err)
			}
		})
		if n["TxnRequest"] > 3 {
			t.Errorf("seed 1: %d reads of a journal were %v", many, n)
		}
		n = countRequests(g)
		appendAll := func(key func(int) string) (added int) {
			var mu sync.Mutex
			atOnce(many, func(i int) {
				_, is, err := s.Append(ending(t, 20*time.Second), "j0", driver.Record{Key: key(i)}, 1000)
				if err != nil {
					t.Errorf("seed 1: Append = %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				if is {
					added++
				}
			})
			return added
		}
		if added := appendAll(func(i int) string { return fmt.Sprint("l", i) }); added != many || n["TxnRequest"] > 3 {
			t.Errorf("seed 1: %d of %d appends to a journal were added, in %v", added, many, n)
		}
		if added := appendAll(func(i int) string { return fmt.Sprint("m", i/50) }); added != 2 {
			t.Errorf("seed 1: of 100 appends of two records %d were added", added)
		}
	})
}

// TestSimulatedAppendsAfterAPauseGoOneTxnAfterTheOther: that nothing was sent for long is no sign
// that etcd is silent, where nothing was to be sent.
func TestSimulatedAppendsAfterAPauseGoOneTxnAfterTheOther(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		const many = 300
		keepsAll(t, s, many, "1") // and has all leases
		time.Sleep(time.Minute)
		b := s.journal.appends
		b.mu.Lock()
		b.startLocked() // and the next call comes before anything is sent
		silent := time.Since(b.lastProgress)
		b.mu.Unlock()
		if silent > 0 {
			t.Errorf("seed 1: etcd has been silent for %v when a request begins", silent)
		}
		synctest.Wait()
		var mu sync.Mutex
		now, most := 0, 0
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					now--
				}()
				return do(ctx)
			}
		})
		atOnce(many, func(i int) {
			_, added, err := s.Append(ending(t, 20*time.Second), fmt.Sprint("j", i), driver.Record{Key: "2"}, 9)
			if err != nil || !added {
				t.Errorf("seed 1: Append = %v, %v", added, err)
			}
		})
		mu.Lock()
		defer mu.Unlock()
		if most != 1 {
			t.Errorf("seed 1: %d requests were under way at once, want 1", most)
		}
	})
}
