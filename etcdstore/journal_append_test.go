package etcdstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedAppendWhoseAnswerIsLost: another member finds the record, and cannot tell who
// brought it. That is no "somebody else was first", by which nobody would do what the record
// stands for; it is where the record is another one.
func TestSimulatedAppendWhoseAnswerIsLost(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		appended(t, s, "j", "1")
		loses := func(key, value string) (bool, error) {
			member, err := s.wire.Members.Current()
			if err != nil {
				t.Fatal(err)
			}
			m := slices.Index(c.Endpoints(), member.Host())
			c.Hold(0, m, false, true)
			defer c.Hold(0, m, false, false)
			_, added, err := s.Append(ending(t, 10*time.Second), "j", driver.Record{Key: key, Value: []byte(value)}, 9)
			return added, err
		}
		if added, err := loses("2", "mine"); err == nil || driver.IsFinal(err) || added {
			t.Errorf("seed 1: Append = %v, %v, want an unknown etcdwire.Outcome", added, err)
		}
		if added, err := loses("1", "mine"); err != nil || added {
			t.Errorf("seed 1: Append of what another has kept = %v, %v, want false", added, err)
		}
		mustKeep(t, c, "j/1=v", "j/2=mine")
	})
}

// TestSimulatedAppendWithoutRights is refused, in one line that says what is missing.
func TestSimulatedAppendWithoutRights(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		refuse(g, putsRecord, rpctypes.ErrGRPCPermissionDenied)
		_, added, err := s.Append(ending(t, 10*time.Second), "j", driver.Record{Key: "k"}, 9)
		if !errors.Is(err, driver.ErrRefused) || added || !strings.Contains(err.Error(), "permission denied") ||
			!strings.Contains(err.Error(), "primacy/@journal/") {
			t.Errorf("seed 1: Append = %v, %v, want ErrRefused, and where the rights are missing", added, err)
		}
		// A user may not attach a record to a lease that has another one which he may not write:
		// then it has no lease.
		refuse(g, func(req any) bool {
			txn, _ := req.(*pb.TxnRequest)
			return putsRecord(req) && txn.Success[0].GetRequestPut().Lease != 0
		}, rpctypes.ErrGRPCPermissionDenied)
		for _, key := range []string{"1", "2"} {
			appended(t, s, "other", key)
			if kv := only(t, c, s.journalDir("other")+key); kv.Lease != 0 {
				t.Errorf("seed 1: the record hangs on lease %x", kv.Lease)
			}
		}
	})
}

// TestSimulatedTrimming: clients append to one journal, in no order. In the end there are not
// fewer than are to be kept, nor do the largest lack; there are not many more; and it did not
// take a request for each.
func TestSimulatedTrimming(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		const keep, each = 20, 120
		var all sync.WaitGroup
		for i := range 3 {
			s, g := gatedAt(t, c, i, i)
			all.Go(func() {
				for n := range each {
					key := fmt.Sprintf("%04d", (n*7%each)*3+i)
					if _, _, err := s.Append(ending(t, 20*time.Second), "j", driver.Record{Key: key},
						keep); err != nil {
						t.Errorf("seed 1: Append: %v", err)
					}
				}
			})
			defer func() {
				if n := g.calls.Load(); n > each*3/2 {
					t.Errorf("seed 1: %d appends took %d requests", each, n)
				}
			}()
		}
		all.Wait()
		synctest.Wait()
		time.Sleep(time.Second)
		got := recordsIn(c)
		if len(got) < keep || len(got) > keep+2*slack(keep) {
			t.Errorf("seed 1: %d records are left of those that keep %d", len(got), keep)
		}
		for i := range min(keep, len(got)) {
			if want := fmt.Sprintf("j/%04d=", 3*each-1-i); got[len(got)-1-i] != want {
				t.Errorf("seed 1: record %d is %s, want %s", i, got[len(got)-1-i], want)
			}
		}
	})
}

// TestSimulatedTrimmingOfMany: a journal that has grown far beyond what is to be kept now.
func TestSimulatedTrimmingOfMany(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		const many, keep = page + 100, 5
		for i := range many {
			if _, _, err := s.Append(ending(t, 20*time.Second), "j", driver.Record{Key: fmt.Sprintf("%04d", i)},
				1<<31-1); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(c.Keys(s.journalDir("j"))); n != many {
			t.Fatalf("seed 1: %d records, want %d", n, many)
		}
		if names, err := s.Journals(ending(t, 20*time.Second), ""); err != nil || fmt.Sprint(names) != "[j]" {
			t.Errorf("seed 1: Journals = %q, %v", names, err)
		}
		if _, _, err := s.Append(ending(t, 20*time.Second), "j", driver.Record{Key: "9999"}, keep); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := len(c.Keys(s.journalDir("j"))); n != keep {
			t.Errorf("seed 1: %d records are left, want %d", n, keep)
		}
	})
}

// TestSimulatedExchangeLeavesTheRecord of the place that it gives up, and the new claim stands.
func TestSimulatedExchangeLeavesTheRecord(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := claimed(t, l, "x")
		q, err := l.Exchange(ending(t, 5*time.Second), leaving(p, "j", "k", "v"), reentry("w", "x-2"))
		if err != nil || q.Token <= p.Token {
			t.Fatalf("seed 1: Exchange = %+v, %v", q, err)
		}
		if at := only(t, c, "primacy/x/"); uint64(at.CreateRevision) != q.Token {
			t.Errorf("seed 1: token %d stands, want %d", at.CreateRevision, q.Token)
		}
		mustKeep(t, c, "j/k=v")
	})
}

// TestSimulatedListsLeaveJournalsOut: to list all lines, or to find what an unfinished move of a
// dead session left, no journal is read; and no line is missed.
func TestSimulatedListsLeaveJournalsOut(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		names := []string{"-", "/", "0", "@", "A", "Z", "_", "a", "z", "\xff"}
		for _, name := range names {
			claimed(t, l, name)
		}
		appended(t, s, "j", "k")
		read := 0
		g.set(func() {
			g.before = func(req any) {
				ranges := []*pb.RangeRequest{}
				if r, ok := req.(*pb.RangeRequest); ok {
					ranges = append(ranges, r)
				}
				txn, _ := req.(*pb.TxnRequest)
				for _, op := range txn.GetSuccess() {
					ranges = append(ranges, op.GetRequestRange())
				}
				for _, r := range ranges {
					if key := s.journalDir("j") + "k"; r != nil && len(r.RangeEnd) > 0 && string(r.Key) <= key &&
						key < string(r.RangeEnd) {
						read++
					}
				}
			}
		})
		lines, err := s.Lines(ending(t, 5*time.Second), "")
		var got []string
		for _, ln := range lines {
			got = append(got, ln.Name)
		}
		if err != nil || !slices.Equal(got, names) {
			t.Errorf("seed 1: Lines = %q, %v, want %q", got, err, names)
		}
		// As after a move that stopped halfway: the record is on another lease than the claims.
		rec := only(t, c, l.recordKey)
		moved := &pb.TxnRequest{Success: []*pb.RequestOp{doPut(l.recordKey, rec.Value,
			s.journal.leases.leaseFor(t.Context(), s.journal.leases.shardOf("j")))}}
		if _, _, err := s.wire.Txn(ending(t, 5*time.Second), "test", moved); err != nil {
			t.Fatal(err)
		}
		rec = only(t, c, l.recordKey)
		if done, err := s.sweep(ending(t, 5*time.Second), "test", l.ID(), rec); err != nil || !done {
			t.Errorf("seed 1: sweep = %v, %v", done, err)
		}
		if left := claimsOf(c); left != 0 {
			t.Errorf("seed 1: %d claims are left", left)
		}
		if read > 0 {
			t.Errorf("seed 1: journals were read %d times", read)
		}
		mustKeep(t, c, "j/k=v")
	})
}

// claimsOf returns how many claims stand.
func claimsOf(c *etcdsim.Cluster) (n int) {
	for _, kv := range c.Keys("primacy/") {
		if !strings.HasPrefix(string(kv.Key), "primacy/@") {
			n++
		}
	}
	return n
}

// atOnce calls do for 0 to n-1, each in a goroutine of its own.
func atOnce(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

func oneByOne(n int, do func(i int)) {
	for i := range n {
		do(i)
	}
}

// reads reports whether a request is a Txn with a read from that key on.
func reads(req any, key string) bool {
	txn, ok := req.(*pb.TxnRequest)
	return ok && slices.ContainsFunc(txn.Success, func(op *pb.RequestOp) bool {
		return string(op.GetRequestRange().GetKey()) == key
	})
}

// countRequests counts requests by their type.
func countRequests(g *gate) map[string]int {
	n, mu := map[string]int{}, sync.Mutex{}
	g.set(func() {
		g.before = func(req any) {
			mu.Lock()
			defer mu.Unlock()
			n[strings.TrimPrefix(fmt.Sprintf("%T", req), "*etcdserverpb.")]++
		}
	})
	return n
}

// TestSimulatedRecordsTravelTogether: hundreds of appends at once, and of reads, are a few
// requests. What is to be known of all leases for records is asked once, and none that is not there
// is looked for.
func TestSimulatedRecordsTravelTogether(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		const many = 300
		name := func(i int) string { return fmt.Sprint("j", i) }
		appendAll := func(key string, how func(int, func(int))) map[string]int {
			n := countRequests(g)
			how(many, func(i int) {
				r := driver.Record{Key: key, Value: []byte(name(i))}
				if there, added, err := s.Append(ending(t, 20*time.Second), name(i), r, 9); err != nil || !added ||
					string(there.Value) != name(i) {
					t.Errorf("seed 1: Append = %v, %v, %v, want it added", there, added, err)
				}
			})
			synctest.Wait()
			return n
		}
		n := appendAll("1", oneByOne) // the simulated cluster loses some of many grants at once
		if n["AuthStatusRequest"] != 1 || n["LeaseLeasesRequest"] != 1 || n["LeaseTimeToLiveRequest"] != 1 ||
			n["LeaseGrantRequest"] < shards/2 || n["LeaseGrantRequest"] > shards {
			t.Errorf("seed 1: for the leases of %d journals: %v", many, n)
		}
		if n := appendAll("2", atOnce); len(n) != 1 || n["TxnRequest"] > many/100+3 {
			t.Errorf("seed 1: %d appends were %v", many, n)
		}
		n = countRequests(g)
		atOnce(many, func(i int) {
			all, err := s.Records(ending(t, 20*time.Second), name(i), "2", 32)
			if err != nil || len(all) != 1 || all[0].Key != "1" || string(all[0].Value) != name(i) {
				t.Errorf("seed 1: Records = %v, %v, want the first", all, err)
			}
		})
		if len(n) != 1 || n["TxnRequest"] > many/100+3 {
			t.Errorf("seed 1: %d reads were %v", many, n)
		}
	})
}

// TestSimulatedAppendsWhileEtcdIsFull are all refused by one answer, and kept by a later try.
func TestSimulatedAppendsWhileEtcdIsFull(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		const many = 100
		appendAll := func(key string, full bool) map[string]int {
			n := countRequests(g)
			atOnce(many, func(i int) {
				_, added, err := s.Append(ending(t, 20*time.Second), fmt.Sprint("j", i), driver.Record{Key: key}, 9)
				if (err != nil) != full || added == full {
					t.Errorf("seed 1: Append = %v, %v; etcd is full: %v", added, err, full)
				}
			})
			return n
		}
		appendAll("1", false)
		c.Fill(false, func(txn *pb.TxnRequest) bool { return putsRecord(txn) })
		if n := appendAll("2", true); n["TxnRequest"] > 4 {
			t.Errorf("seed 1: %d appends to a full etcd were %v", many, n)
		}
		c.Fill(false, nil)
		appendAll("3", false)
	})
}

// TestSimulatedAppendBesideOneThatIsRefused is kept, though both travelled together. A read is
// answered likewise.
func TestSimulatedAppendBesideOneThatIsRefused(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		refuse(g, func(req any) bool { return puts(req, s.journalDir("j7")+"k") }, rpctypes.ErrGRPCPermissionDenied)
		atOnce(100, func(i int) {
			_, added, err := s.Append(ending(t, 20*time.Second), fmt.Sprint("j", i), driver.Record{Key: "k"}, 9)
			if i == 7 && !errors.Is(err, driver.ErrRefused) || i != 7 && (err != nil || !added) {
				t.Errorf("seed 1: Append to j%d = %v, %v", i, added, err)
			}
		})
		refuse(g, func(req any) bool { return reads(req, s.journalDir("j7")) }, rpctypes.ErrGRPCPermissionDenied)
		atOnce(100, func(i int) {
			all, err := s.Records(ending(t, 20*time.Second), fmt.Sprint("j", i), "", 9)
			if i == 7 && !errors.Is(err, driver.ErrRefused) || i != 7 && (err != nil || len(all) != 1) {
				t.Errorf("seed 1: Records of j%d = %v, %v", i, all, err)
			}
		})
	})
}
