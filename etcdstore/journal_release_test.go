package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// leaving returns p with a record to leave.
func leaving(p driver.Place, journal, key, value string) driver.Place {
	p.Journal, p.Record = journal, &driver.Record{Key: key, Value: []byte(value)}
	return p
}

// recordsIn returns the records of all journals, as "journal/key=value".
func recordsIn(c *etcdsim.Cluster) (all []string) {
	const dir = "primacy/" + journals
	for _, kv := range c.Keys(dir) {
		all = append(all, strings.TrimPrefix(string(kv.Key), dir)+"="+string(kv.Value))
	}
	return all
}

func mustKeep(t *testing.T, c *etcdsim.Cluster, want ...string) {
	t.Helper()
	if got := fmt.Sprint(recordsIn(c)); got != fmt.Sprint(want) {
		t.Errorf("seed 1: records %v, want %v", got, want)
	}
}

// putsRecord reports whether a request, or one within it, puts a record.
func putsRecord(req any) bool {
	txn, _ := req.(*pb.TxnRequest)
	for _, op := range txn.GetSuccess() {
		if put := op.GetRequestPut(); put != nil && strings.Contains(string(put.Key), journals) {
			return true
		}
		if in := op.GetRequestTxn(); in != nil && putsRecord(in) {
			return true
		}
	}
	return false
}

// doubtful has the first answer to a new claim on name be lost: so it is given up by a fence.
func doubtful(t *testing.T, c *etcdsim.Cluster, l *lease, name string) driver.Place {
	t.Helper()
	member, err := l.s.wire.Members.Current()
	if err != nil {
		t.Fatal(err)
	}
	m := slices.Index(c.Endpoints(), member.Host())
	c.Hold(0, m, false, true)
	p := claimed(t, l, name)
	c.Hold(0, m, false, false)
	if !l.seats.by[storeutil.SeatAt(p)].doubt {
		t.Fatal("seed 1: the claim is not in doubt")
	}
	return p
}

// TestSimulatedReleaseWithARecordIsRepeated: its answer is lost. Who repeats it hurts no
// successor and changes no record; nor does the first one, where it arrives once more.
func TestSimulatedReleaseWithARecordIsRepeated(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := claimed(t, l, "x")
		next, _ := gatedAt(t, c, 1, 0)
		successor := granted(t, next, "b", time.Minute)
		q := claimed(t, successor, "x")
		s.journal.leases.leaseFor(ending(t, time.Second), s.journal.leases.shardOf("j"))
		sent := g.capture(s.journalDir("j") + "k")
		for m := range c.Endpoints() {
			c.Hold(0, m, false, true)
		}
		err := l.Release(ending(t, 3*time.Second), leaving(p, "j", "k", "first"))
		if err == nil || driver.IsFinal(err) {
			t.Fatalf("seed 1: Release = %v, want an unknown etcdwire.Outcome", err)
		}
		for m := range c.Endpoints() {
			c.Hold(0, m, false, false)
		}
		mustKeep(t, c, "j/k=first")
		if err := l.Release(ending(t, 5*time.Second), leaving(p, "j", "k", "second")); err != nil {
			t.Fatal(err)
		}
		mustKeep(t, c, "j/k=first")
		if err := c.Delete(ending(t, 5*time.Second), s.journalDir("j")+"k", only(t, c,
			"primacy/"+journals).CreateRevision); err != nil {
			t.Fatal(err)
		}
		sent.arrive(t, c)
		mustKeep(t, c)
		if at := only(t, c, "primacy/x/"); uint64(at.CreateRevision) != q.Token {
			t.Errorf("seed 1: token %d stands, want the successor's, %d", at.CreateRevision, q.Token)
		}
	})
}

// TestSimulatedReleaseThatNeverArrivedLeavesItsRecord: etcd was silent, which is no fault of the
// record. It is left by the repetition.
func TestSimulatedReleaseThatNeverArrivedLeavesItsRecord(t *testing.T) {
	for _, silence := range []error{status.Error(codes.Unavailable, "down"), rpctypes.ErrGRPCTimeout,
		rpctypes.ErrGRPCRequestTooManyRequests} {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			s, g := gatedAt(t, c, 0, 0)
			l := granted(t, s, "a", time.Minute)
			p := leaving(claimed(t, l, "x"), "j", "k", "v")
			refuse(g, putsRecord, silence)
			if err := l.Release(ending(t, 5*time.Second), p); err == nil || driver.IsFinal(err) {
				t.Errorf("seed 1: Release = %v, want an unknown etcdwire.Outcome", err)
			}
			g.set(func() { g.instead = nil })
			if err := l.Release(ending(t, 5*time.Second), p); err != nil {
				t.Fatal(err)
			}
			mustKeep(t, c, "j/k=v")
		})
	}
}

// refusals are the answers that a record may be to blame for.
var refusals = []error{rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCLeaseNotFound,
	rpctypes.ErrGRPCRequestTooLarge,
	rpctypes.ErrGRPCTooManyOps, rpctypes.ErrGRPCDuplicateKey, status.Error(codes.InvalidArgument,
		"of a kind not known"), status.Error(codes.Internal, "odd")}

// TestSimulatedReleaseWhoseRecordIsRefused: the place is given up without it, held, in doubt, or
// handed over; and the session lives on.
func TestSimulatedReleaseWhoseRecordIsRefused(t *testing.T) {
	for _, refusal := range refusals {
		t.Run(refusal.Error(), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				s, g := gatedAt(t, c, 0, 0)
				l := granted(t, s, "a", 5*time.Minute)
				p, q, r := claimed(t, l, "x"), doubtful(t, c, l, "y"), doubtful(t, c, l, "z")
				other, _ := gatedAt(t, c, 1, 0)
				successor := granted(t, other, "b", 5*time.Minute)
				next := claimed(t, successor, "z")
				refuse(g, putsRecord, refusal)
				for _, p := range []driver.Place{p, q} {
					if err := l.Release(ending(t, 20*time.Second), leaving(p, "j", "k", "v")); err != nil {
						t.Errorf("seed 1: Release of %s = %v", p.Name, err)
					}
					if keys := c.Keys("primacy/" + p.Name + "/"); len(keys) > 0 {
						t.Errorf("seed 1: %s stands after its release", keys[0].Key)
					}
					time.Sleep(2 * recordsOff)
				}
				if err := l.Transfer(ending(t, 20*time.Second), leaving(r, "j", "k", "v"), next.Token); err != nil {
					t.Errorf("seed 1: Transfer = %v", err)
				}
				if at := only(t, c, "primacy/z/"); uint64(at.CreateRevision) != next.Token {
					t.Errorf("seed 1: token %d stands, want the successor's, %d", at.CreateRevision, next.Token)
				}
				mustKeep(t, c)
				g.set(func() { g.instead = nil })
				time.Sleep(2 * recordsOff)
				if err := l.Release(ending(t, 5*time.Second), leaving(claimed(t, l, "w"), "j", "k", "v")); err != nil {
					t.Errorf("seed 1: Release of a new claim = %v", err)
				}
				mustKeep(t, c, "j/k=v")
			})
		})
	}
}

// TestSimulatedReleaseAsEtcdFillsUp: etcd carries the Txn out and answers that there is no space.
// The place is given up, and the record may be there.
func TestSimulatedReleaseAsEtcdFillsUp(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", 5*time.Minute)
		places := []driver.Place{claimed(t, l, "x"), doubtful(t, c, l, "y"), claimed(t, l, "z")}
		other, _ := gatedAt(t, c, 1, 0)
		next := claimed(t, granted(t, other, "b", 5*time.Minute), "z")
		c.Fill(true, func(txn *pb.TxnRequest) bool { return putsRecord(txn) })
		for _, p := range places[:2] {
			if err := l.Release(ending(t, 20*time.Second), leaving(p, "j", p.Name, "v")); err != nil {
				t.Errorf("seed 1: Release of %s = %v", p.Name, err)
			}
			if keys := c.Keys("primacy/" + p.Name + "/"); len(keys) > 0 {
				t.Errorf("seed 1: %s stands after its release", keys[0].Key)
			}
			time.Sleep(2 * recordsOff)
		}
		if err := l.Transfer(ending(t, 20*time.Second), leaving(places[2], "j", "z", "v"), next.Token); err != nil {
			t.Errorf("seed 1: Transfer = %v", err)
		}
		if at := only(t, c, "primacy/z/"); uint64(at.CreateRevision) != next.Token {
			t.Errorf("seed 1: token %d stands, want the successor's, %d", at.CreateRevision, next.Token)
		}
		// As long as it is known to be full, a release is one request, and leaves no record.
		c.Fill(false, nil)
		p, before := claimed(t, l, "w"), g.calls.Load()
		if err := l.Release(ending(t, 5*time.Second), leaving(p, "j", "w", "v")); err != nil {
			t.Fatal(err)
		}
		if n := g.calls.Load() - before; n != 1 {
			t.Errorf("seed 1: a release took %d requests, want 1", n)
		}
		mustKeep(t, c, "j/x=v", "j/y=v", "j/z=v")
	})
}

// TestSimulatedReleaseWhoseShelfHasEnded: the lease of the records was revoked. That etcd does
// not know it says nothing of the session's own lease: the place goes, and the next record is
// kept, under a lease granted anew.
func TestSimulatedReleaseWhoseShelfHasEnded(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		shard := s.journal.leases.shardOf("j")
		end := func() {
			if err := c.Revoke(ending(t, 5*time.Second), s.journal.leases.leaseID(shard, 0)); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range []driver.Place{claimed(t, l, "x"), doubtful(t, c, l, "y")} {
			leases := s.journal.leases
			if id := leases.leaseFor(ending(t, time.Second), shard); id != leases.leaseID(shard, 0) {
				t.Fatalf("seed 1: the lease for records is %x", id)
			}
			end()
			if err := l.Release(ending(t, 5*time.Second), leaving(p, "j", "k", "v")); err != nil {
				t.Errorf("seed 1: Release = %v", err)
			}
			if keys := c.Keys("primacy/" + p.Name + "/"); len(keys) > 0 {
				t.Errorf("seed 1: %s stands after its release", keys[0].Key)
			}
		}
		if err := l.Release(ending(t, 5*time.Second), leaving(claimed(t, l, "z"), "j", "k", "v")); err != nil {
			t.Fatal(err)
		}
		if kv := only(t, c, "primacy/"+journals); kv.Lease != s.journal.leases.leaseID(shard, 0) {
			t.Errorf("seed 1: the record hangs on lease %x, want %x", kv.Lease, s.journal.leases.leaseID(shard, 0))
		}
		end()
		there, added, err := s.Append(ending(t, 5*time.Second), "j", driver.Record{Key: "l", Value: []byte("v")}, 9)
		if err != nil || !added || there.Key != "l" {
			t.Errorf("seed 1: Append after the end of the lease = %v, %v, %v", there, added, err)
		}
		mustKeep(t, c, "j/l=v")
	})
}

// TestSimulatedReleasesWithoutRecords are one request each, without anything of journals.
func TestSimulatedReleasesWithoutRecords(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := claimed(t, l, "x")
		var sent []any
		g.set(func() { g.before = func(req any) { sent = append(sent, req) } })
		if err := l.Release(ending(t, 5*time.Second), p); err != nil {
			t.Fatal(err)
		}
		key := s.lineDir("x") + l.ID()
		want := &pb.TxnRequest{Compare: []*pb.Compare{ifCreate(key, int64(p.Token))},
			Success: []*pb.RequestOp{doDelete(key)}}
		if len(sent) != 1 || fmt.Sprint(sent[0]) != fmt.Sprint(want) {
			t.Errorf("seed 1: Release sent %v, want %v", sent, want)
		}
	})
}

// jammedReleases claims names, has their releases wait, and returns what lets them go, with their
// results.
func jammedReleases(t *testing.T, l *lease, g *gate, places []driver.Place, instead func(ctx context.Context,
	req any, do func(context.Context) error) error,
) (errs func() error) {
	open := jam(t, l, g, instead)
	done := make(chan error, len(places))
	for _, p := range places {
		go func() { done <- l.Release(ending(t, 60*time.Second), p) }()
		synctest.Wait()
	}
	return func() (err error) {
		open()
		for range places {
			err = errors.Join(err, <-done)
		}
		return err
	}
}

// TestSimulatedBatchOfReleasesWithRecords: releases that travel together each leave their record,
// within the server's limit, also two in one place of a journal, which etcd would not take in one
// Txn.
func TestSimulatedBatchOfReleasesWithRecords(t *testing.T) {
	for ops, most := range map[int]int64{8: 46, 128: 12} {
		underLimit(t, ops, func(t *testing.T, c *etcdsim.Cluster, s *Store, g *gate, l *lease) {
			const many = 60
			var places []driver.Place
			var want []string
			for i := range many {
				places = append(places, leaving(claimed(t, l, fmt.Sprintf("r%02d", i)), "j", fmt.Sprintf("%02d", i),
					"v"))
				want = append(want, fmt.Sprintf("j/%02d=v", i))
			}
			places = append(places, leaving(claimed(t, l, "y"), "j", "00", "v"),
				leaving(claimed(t, l, "z"), "j", "00", "v"))
			s.journal.leases.leaseFor(ending(t, time.Second), s.journal.leases.shardOf("j"))
			refused := 0
			all := jammedReleases(t, l, g, places, func(ctx context.Context, req any,
				do func(context.Context) error) error {
				err := do(ctx)
				if err != nil && !etcdwire.TooMany(err) {
					refused++
				}
				return err
			})
			before := g.calls.Load()
			if err := all(); err != nil {
				t.Fatal(err)
			}
			if n := g.calls.Load() - before; n > most || refused > 0 {
				t.Errorf("seed 1: %d releases went in %d requests, of which %d were refused", len(places), n, refused)
			}
			mustKeep(t, c, want...)
			if keys := append(c.Keys("primacy/r"), append(c.Keys("primacy/y/"),
				c.Keys("primacy/z/")...)...); len(keys) > 0 {
				t.Errorf("seed 1: %s stands after its release", keys[0].Key)
			}
		})
	}
}

// TestSimulatedBatchWhoseRecordsAreRefused: all places are given up, in few requests, and those
// records are kept that may be.
func TestSimulatedBatchWhoseRecordsAreRefused(t *testing.T) {
	for _, refusal := range refusals {
		t.Run(refusal.Error(), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				s, g := gatedAt(t, c, 0, 0)
				l := granted(t, s, "a", time.Minute)
				const many = 100
				var places []driver.Place
				for i := range many {
					places = append(places, leaving(claimed(t, l, fmt.Sprintf("r%02d", i)), "j", fmt.Sprintf("%02d",
						i), "v"))
				}
				// of one as of the others
				all := etcdwire.NoSpace(refusal) || errors.Is(rpctypes.Error(refusal), rpctypes.ErrPermissionDenied)
				bad := func(req any) bool { return all && putsRecord(req) || puts(req, s.journalDir("j")+"50") }
				released := jammedReleases(t, l, g, places, func(ctx context.Context, req any,
					do func(context.Context) error) error {
					if bad(req) {
						return refusal
					}
					return do(ctx)
				})
				before := g.calls.Load()
				if err := released(); err != nil {
					t.Errorf("seed 1: Release = %v", err)
				}
				if n := g.calls.Load() - before; n > many*2/3 && !etcdwire.TooMany(refusal) {
					t.Errorf("seed 1: %d releases took %d requests", many, n)
				}
				if keys := c.Keys("primacy/r"); len(keys) > 0 {
					t.Errorf("seed 1: %d claims stand after their release", len(keys))
				}
				if n := len(recordsIn(c)); !all && n != many-1 {
					t.Errorf("seed 1: %d records are kept, want all but the one that was refused", n)
				}
			})
		})
	}
}

// refuse has those calls be answered with err that match. They do not reach etcd.
func refuse(g *gate, matches func(req any) bool, err error) {
	g.set(func() {
		g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
			if matches(req) {
				return err
			}
			return do(ctx)
		}
	})
}
