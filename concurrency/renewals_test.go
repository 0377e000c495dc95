package concurrency

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// answering is a renewer whose answers a test gives.
type answering func() (etcdwire.Proof, error)

func (f answering) renew(context.Context, []v3.LeaseID, string, []etcdwire.Key) (etcdwire.Proof, error) {
	return f()
}

func (answering) close() {}

// idle is a session on lease 7, granted in raft term 5, without claims and without an etcd.
func idle(answer answering) *Session {
	s := &Session{id: 7, clock: boottime.Now, wire: &wire{limit: &etcdwire.OpsLimit{}}}
	s.claims = &claims{s: s, by: map[string]*claim{}, givenUp: map[string]map[int64]bool{}, prefix: "k"}
	s.leases = &leases{s: s, granting: make(chan struct{}, 1), anchor: anchor{id: 7, term: 5}}
	s.removals = &removals{s: s}
	s.renewals = &renewals{s: s, renewer: answer}
	return s
}

// A deposed leader of etcd's acknowledges a renewal by itself, and nothing proves otherwise while
// the session has no claim. So the next claim must not be attached to a lease that was renewed so.
func TestAnUnprovenRenewalIsTrustedWithNoClaim(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		term uint64 // that was proved; 0: none
		want v3.LeaseID
	}{
		{"in the term of the grant", 5, 7},
		{"in a later term", 6, 0},
		{"not at all", 0, 0},
	} {
		s := idle(func() (etcdwire.Proof, error) { return etcdwire.Proof{TTL: []int64{60}, Term: c.term}, nil })
		if err := s.renewals.renew(t.Context()); err != nil {
			t.Errorf("proved %s: %v", c.name, err)
		}
		if at := s.leases.current(); at.id != c.want {
			t.Errorf("proved %s: the next claim would be attached to lease %d, want %d (0: one that is granted then)",
				c.name, at.id, c.want)
		}
	}
}

// A claim that is being put while such a renewal is under way may be attached to that lease
// already.
func TestAnUnprovenRenewalDoesNotCountBesideAClaim(t *testing.T) {
	t.Parallel()
	var s *Session
	s = idle(func() (etcdwire.Proof, error) {
		s.claims.register(&claim{key: "k"})
		return etcdwire.Proof{TTL: []int64{60}}, nil
	})
	if err := s.renewals.renew(t.Context()); !errors.Is(err, errUnproven) {
		t.Errorf("renewal = %v, want that it is not proved", err)
	}
}

// A leader that was just elected may not have carried the grant out. One that says so for a while,
// and again, knows.
func TestALeaseIsGoneOnlyWhereItIsUnknownAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := idle(nil)
	now := time.Hour
	s.clock = func() time.Duration { return now }
	r := s.renewals
	for _, c := range []struct {
		ttl   int64
		after time.Duration
		want  error
	}{
		{0, 0, errVague}, {0, etcdwire.RetryPause, errVague}, {60, 0, nil}, // known again: from the beginning
		{0, 0, errVague}, {0, 0, errVague}, {0, 0, errVague}, {0, etcdwire.RetryPause, errGone},
	} {
		now += c.after
		if err := r.known(c.ttl); !errors.Is(err, c.want) {
			t.Errorf("an answer of ttl %d = %v, want %v", c.ttl, err, c.want)
		}
	}
}

// Above 300 s a checkpoint of etcd's may set a lease back that was renewed since.
func TestALongLeaseIsTrustedForFiveMinutes(t *testing.T) {
	t.Parallel()
	before := boottime.Now()
	s, err := newSession(sharedClient(t), boottime.Now, []SessionOption{WithTTL(900)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, most := time.Duration(s.deadline.Load())-before, 300*time.Second+boottime.Now()-before
	if d > most || s.granted != 900*time.Second {
		t.Errorf("a lease of %v is trusted for %v, want 300 s at most", s.granted, d)
	}
}

// The guard that the claims are attached to is not known to etcd any more, though they stand yet:
// it is about to be revoked, and they with it.
func TestClaimsLeaveAGuardThatIsUnknown(t *testing.T) {
	t.Parallel()
	client := sharedClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lease, err := client.Grant(ctx, 240)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSession(client, boottime.Now, []SessionOption{WithLease(lease.ID)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := NewMutex(s, "guarded")
	if err := m.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	at := s.leases.current()
	if err := s.leases.anchorAll(ctx, at, at.term, true); err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(ctx, m.Key())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("the lock's key: %v, %v", resp, err)
	}
	if on, now := v3.LeaseID(resp.Kvs[0].Lease), s.leases.current().id; on == at.id || on != now {
		t.Errorf("the claim is attached to lease %x, want %x in place of the guard %x", on, now, at.id)
	}
}

func sharedClient(t *testing.T) *v3.Client {
	t.Helper()
	c, err := v3.New(v3.Config{Endpoints: []string{SharedServer(t).Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// balanced is the KV of a client that was made of parts: each request may go to another member.
type balanced struct {
	v3.KV
	answers []member // to one Txn after the other
}

type member struct{ id, term uint64 }

func (b *balanced) Get(context.Context, string, ...v3.OpOption) (*v3.GetResponse, error) {
	return &v3.GetResponse{Header: &pb.ResponseHeader{}}, nil
}

func (b *balanced) Txn(context.Context) v3.Txn { return balancedTxn{b} }

type balancedTxn struct{ b *balanced }

func (t balancedTxn) If(...v3.Cmp) v3.Txn  { return t }
func (t balancedTxn) Then(...v3.Op) v3.Txn { return t }
func (t balancedTxn) Else(...v3.Op) v3.Txn { return t }

func (t balancedTxn) Commit() (*v3.TxnResponse, error) {
	if len(t.b.answers) == 0 {
		return nil, errors.New("no more answers")
	}
	by := t.b.answers[0]
	t.b.answers = t.b.answers[1:]
	return &v3.TxnResponse{Header: &pb.ResponseHeader{MemberId: by.id, RaftTerm: by.term}}, nil
}

// Two answers prove the raft term only where they are of one member, and then the larger term
// counts: see etcdwire.Wire.Prove.
func TestTheProofThroughABalancerIsOfOneMember(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		answers []member
		term    uint64 // 0: none is proved
	}{
		{"one member", []member{{1, 4}, {1, 4}}, 4},
		{"its first answer was of before", []member{{1, 4}, {1, 5}}, 5},
		{"its answers come in another order", []member{{1, 5}, {1, 4}}, 5},
		{"another one between", []member{{1, 4}, {2, 9}, {1, 4}}, 4},
		{"two members", []member{{1, 4}, {2, 4}}, 0},
	} {
		a, p := asker{&wire{kv: &balanced{answers: c.answers}}}, etcdwire.Proof{}
		if err := a.prove(t.Context(), "k", nil, &p); p.Term != c.term || (err == nil) != (c.term != 0) {
			t.Errorf("%s: term %d, %v, want %d", c.name, p.Term, err, c.term)
		}
	}
}

// shown is a KV that shows one key, and counts what is changed.
type shown struct {
	balanced
	kv      mvccpb.KeyValue
	changes int
}

func (k *shown) Get(context.Context, string, ...v3.OpOption) (*v3.GetResponse, error) {
	return &v3.GetResponse{Header: &pb.ResponseHeader{}, Kvs: []*mvccpb.KeyValue{&k.kv}}, nil
}

func (k *shown) Txn(ctx context.Context) v3.Txn {
	k.changes++
	return k.balanced.Txn(ctx)
}

// A put whose outcome was unknown is looked for and removed. What stands there under another lease
// is a later session's, which has taken this one's lease over.
func TestOnlyAPutOfThisSessionIsCleanedUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		lease   int64
		created int64
		removed bool
	}{
		{"made by the put", 7, 12, true},
		{"of another session", 99, 12, false},
		{"that stood before", 7, 10, false},
	} {
		s := idle(nil)
		kv := &shown{kv: mvccpb.KeyValue{Lease: c.lease, CreateRevision: c.created, ModRevision: c.created},
			balanced: balanced{answers: []member{{1, 1}}}}
		s.wire.kv, s.lines = kv, newLines(s)
		if err := s.removals.clean(t.Context(), "k", 10); err != nil || kv.changes > 0 != c.removed {
			t.Errorf("a key %s: %d changes, %v, want it removed: %v", c.name, kv.changes, err, c.removed)
		}
	}
}
