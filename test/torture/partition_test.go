//go:build linux

package torture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const linkTTL = 5 * time.Second

// link is the way of a leader to etcd: its replies can be held apart from its requests, also those
// of new connections.
type link struct {
	replies  *etcdtest.Proxy // next to the client
	requests *etcdtest.Proxy // next to the server
	endpoint string
}

func newLink(t testing.TB, etcd *etcdtest.Server) *link {
	requests := etcdtest.NewProxy(t, etcd.Addr())
	replies := etcdtest.NewProxy(t, requests.Addr())
	return &link{replies, requests, "http://" + replies.Addr()}
}

// contender is one of two: a way to win, and to ask whether it leads. win blocks.
type contender struct {
	win   func(ctx context.Context) error
	leads func() bool           // false before it has won
	lease func() (int64, error) // its lease in etcd, once it has won
	end   func()
}

// primacySide is a contender by this library.
func primacySide(endpoints []string, name string, o primacy.Options) (*contender, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: endpoints})
	if err != nil {
		return nil, err
	}
	return contend(store, name, linkTTL, o)
}

// contend is a contender on a store that is open. It closes the store.
func contend(store driver.Store, name string, ttl time.Duration, o primacy.Options) (*contender, error) {
	o.TTL = ttl
	s, err := primacy.NewSession(store, &o)
	if err != nil {
		return nil, err
	}
	var won atomic.Pointer[primacy.Term]
	c := &contender{end: func() { store.Close() }}
	c.win = func(ctx context.Context) error {
		t, err := s.Election(name).Campaign(ctx, nil)
		won.Store(t)
		return err
	}
	c.leads = func() bool {
		t := won.Load()
		return t != nil && t.Check() == nil
	}
	c.lease = func() (int64, error) {
		l, err := s.Election(name).Leader(context.Background())
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(l.Lease, 16, 64)
	}
	return c, nil
}

// peerSide is a contender by etcd's own package, which counts the lease from after the reply.
func peerSide(endpoints []string, name string, _ primacy.Options) (*contender, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second,
		Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	s, err := concurrency.NewSession(client, concurrency.WithTTL(int(linkTTL/time.Second)))
	if err != nil {
		return nil, err
	}
	won := make(chan struct{})
	c := &contender{end: func() { client.Close() }}
	c.win = func(ctx context.Context) error {
		err := concurrency.NewElection(s, name).Campaign(ctx, "")
		if err == nil {
			close(won)
		}
		return err
	}
	c.leads = func() bool {
		select {
		case <-won:
		default:
			return false
		}
		select {
		case <-s.Done():
			return false
		default:
			return true
		}
	}
	c.lease = func() (int64, error) { return int64(s.Lease()), nil }
	return c, nil
}

type side func(endpoints []string, name string, o primacy.Options) (*contender, error)

// sample asks the younger and then the older every millisecond until the context ends, and returns
// what it saw. In this order, two that say yes led at one instant: the one in which the first was
// asked.
func sample(ctx context.Context, older, younger *contender) (s samples) {
	for ctx.Err() == nil {
		now := boottime.Now()
		young := younger.leads()
		old := older.leads()
		s.asked++
		if s.before != 0 {
			s.widest = max(s.widest, now-s.before)
		}
		s.before = now
		if old {
			s.oldLast = now
		}
		if young && s.youngFirst == 0 {
			s.youngFirst = now
		}
		if young && old {
			s.both++
		}
		time.Sleep(time.Millisecond)
	}
	return s
}

type samples struct {
	asked, both         int
	oldLast, youngFirst time.Duration
	before, widest      time.Duration // between two samples
}

// duel has one contender lead by way of their endpoints and another wait by way of ours, does harm,
// and samples both until some time after the second has won.
func duel(theirs, ours []string, name string, by side, o primacy.Options,
	harm func(leader *contender) error) (s samples, err error) {
	older, err := by(theirs, name, o)
	if err != nil {
		return s, err
	}
	defer older.end()
	younger, err := by(ours, name, primacy.Options{})
	if err != nil {
		return s, err
	}
	defer younger.end()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := older.win(ctx); err != nil {
		return s, err
	}
	over := make(chan error, 1)
	sampling, stop := context.WithCancel(ctx)
	go func() {
		defer stop()
		over <- younger.win(ctx)
		select {
		case <-time.After(4 * time.Second): // as long as the older one might still believe in itself
		case <-ctx.Done():
		}
	}()
	harmed := make(chan error, 1)
	go func() { harmed <- harm(older) }()
	s = sample(sampling, older, younger)
	return s, errors.Join(<-harmed, <-over)
}

// duels runs n of them side by side.
func duels(t *testing.T, etcd *etcdtest.Server, n int, by side, o primacy.Options,
	harm func(*link, *contender) error) []samples {
	t.Helper()
	type result struct {
		s   samples
		err error
	}
	results := make(chan result)
	for i := range n {
		l := newLink(t, etcd)
		go func() {
			s, err := duel([]string{l.endpoint}, []string{etcd.Endpoint()}, fmt.Sprintf("%s/%d", t.Name(), i), by, o,
				func(leader *contender) error { return harm(l, leader) })
			results <- result{s, err}
		}()
	}
	var all []samples
	for range n {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
			continue
		}
		t.Logf("%5d samples (widest %v), both led in %d; between them nobody for %v", r.s.asked,
			r.s.widest.Round(10*time.Microsecond), r.s.both,
			(r.s.youngFirst - r.s.oldLast).Round(time.Millisecond))
		all = append(all, r.s)
	}
	return all
}

func wantOneLeader(t *testing.T, all []samples) {
	t.Helper()
	for _, s := range all {
		if s.both != 0 {
			t.Errorf("both led in %d of %d samples", s.both, s.asked)
		}
		if s.oldLast == 0 || s.youngFirst == 0 {
			t.Errorf("one of them never led: %+v", s)
		}
	}
}

func TestSilentLink(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	etcd := etcdtest.Start(t, etcdtest.Options{})
	wantOneLeader(t, duels(t, etcd, rounds(t, 2), primacySide, primacy.Options{}, func(l *link, _ *contender) error {
		l.replies.Hold()
		return nil
	}))
}

// TestLateReply holds the reply to a renewal back, lets it arrive, and has silence follow. A lease
// that is counted from the reply is believed in for as much longer than the store keeps it.
func TestLateReply(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	etcd := etcdtest.Start(t, etcdtest.Options{})
	t.Run("given up", func(t *testing.T) {
		wantOneLeader(t, duels(t, etcd, rounds(t, 2), primacySide, primacy.Options{}, lateReply))
	})
	// 1.05 s late in three steps, the answers to the keepalive, the read and the requests through
	// the log, with a time limit that allows it on a busy machine, too.
	patient := primacy.Options{RenewEvery: 250 * time.Millisecond, RenewAttempt: 1600 * time.Millisecond,
		Grace: time.Second}
	t.Run("accepted", func(t *testing.T) {
		wantOneLeader(t, duels(t, etcd, rounds(t, 2), primacySide, patient, slowReply))
	})
	t.Run("positive control", func(t *testing.T) {
		both := 0
		for _, s := range duels(t, etcd, 2, peerSide, primacy.Options{}, lateReply) {
			both += s.both
		}
		if both == 0 {
			t.Error("etcd's own package came through: the fault is too weak to prove anything")
		}
	})
}

// lateReply delivers a keepalive's reply 2.6 s late.
func lateReply(l *link, leader *contender) error {
	id, err := leader.lease()
	if err != nil {
		return err
	}
	reply := binary.AppendUvarint([]byte{0x10}, uint64(id)) // the field ID of a LeaseKeepAliveResponse
	l.replies.Hold(etcdtest.Down)
	if !within(2*linkTTL, func() bool { return l.replies.Holds(etcdtest.Down, reply) }) {
		return errors.New("no keepalive was answered")
	}
	l.requests.Hold(etcdtest.Up) // the last one that the server heard
	time.Sleep(2600 * time.Millisecond)
	l.replies.Heal()
	return nil
}

// slowReply makes every reply late, and silences the link when the term has lived on such renewals
// for a while.
func slowReply(l *link, leader *contender) error {
	l.replies.Delay(350*time.Millisecond, etcdtest.Down)
	time.Sleep(linkTTL) // nothing to wait for: several renewals that are slow
	if !leader.leads() {
		return errors.New("the term did not live through slow renewals")
	}
	l.requests.Hold(etcdtest.Up)
	return nil
}
