//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy"
)

// TestTransfersOnEtcdLeaveNoMomentWithoutAClaim looks at each revision that a real etcd goes
// through while a name is handed about: the line is never empty, and it is led by those alone who
// were named, one after the other.
func TestTransfersOnEtcdLeaveNoMomentWithoutAClaim(t *testing.T) {
	w := newWorld(t)
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{w.server.Addr()}, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	before, err := cli.Get(ctx, w.prefix+"n/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	events := cli.Watch(ctx, w.prefix+"n/", clientv3.WithPrefix(), clientv3.WithRev(before.Header.Revision+1))

	won, ids := make(chan *primacy.Term), []string{"a", "b", "c", "d", "e"}
	for _, id := range ids {
		s := w.session(id)
		go func() {
			for ctx.Err() == nil {
				term, err := s.Election("n").Campaign(ctx, nil)
				if err != nil {
					return
				}
				won <- term
				<-term.Context().Done()
			}
		}()
	}
	looks := w.session("looks").Election("n")
	term := <-won
	want := []int64{int64(term.Token())}
	for len(want) < 30 {
		to := ids[rand.IntN(len(ids))]
		err := term.Transfer(ctx, to)
		if errors.Is(err, primacy.ErrNotStanding) || errors.Is(err, primacy.ErrInvalid) {
			time.Sleep(5 * time.Millisecond) // it stands again in a moment, or leads
			continue
		}
		if err != nil {
			t.Fatalf("transfer to %s: %v", to, err)
		}
		next := <-won
		if st, err := looks.State(ctx); err != nil || st.Leader == nil || st.Leader.ID != to ||
			st.Leader.Token != next.Token() || next.Check() != nil {
			t.Fatalf("handed over to %s: the state is %+v, %v; token %v won, check %v", to, st.Leader, err,
				next.Token(), next.Check())
		}
		term = next
		want = append(want, int64(term.Token()))
	}
	if got := holdersSeen(t, events, want[len(want)-1]); !slices.Equal(got, want) {
		t.Errorf("the line was led by the claims %v, want %v", got, want)
	}
}

// holdersSeen plays the events of a line, revision by revision, and returns which claims led, until
// the last of them does.
func holdersSeen(t *testing.T, events clientv3.WatchChan, last int64) (seen []int64) {
	line := map[string]int64{} // create revisions
	for resp := range events {
		for i, e := range resp.Events {
			if e.Type == mvccpb.DELETE {
				delete(line, string(e.Kv.Key))
			} else {
				line[string(e.Kv.Key)] = e.Kv.CreateRevision
			}
			if i+1 < len(resp.Events) && resp.Events[i+1].Kv.ModRevision == e.Kv.ModRevision {
				continue // of one Txn: nobody sees what is between
			}
			if len(line) == 0 {
				t.Errorf("at revision %d nobody stands", e.Kv.ModRevision)
				continue
			}
			first := int64(1<<63 - 1)
			for _, at := range line {
				first = min(first, at)
			}
			if len(seen) == 0 || seen[len(seen)-1] != first {
				seen = append(seen, first)
			}
		}
		if len(seen) > 0 && seen[len(seen)-1] == last {
			break
		}
	}
	return seen
}
