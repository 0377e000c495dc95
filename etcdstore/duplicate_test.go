package etcdstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// Two processes under one ID, on a real etcd: the one that waits tells of the one that leads, by
// its lease and its value.
func TestAnotherProcessOfTheSameIDIsTold(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	session := func() *primacy.Session {
		st, err := etcdstore.Open(soon(t), etcdstore.Config{Endpoints: []string{srv.Endpoint()}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := primacy.NewSession(st, &primacy.Options{ID: "worker-1", TTL: 2 * time.Second,
			Overrun: primacy.OverrunWait})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = s.Close(ctx)
			_ = st.Close()
		})
		return s
	}
	ctx := within(t, time.Minute)
	first, second := session(), session()
	go func() {
		_ = first.Candidate("n", &primacy.CampaignOptions{Value: []byte("web-1")}).Run(ctx,
			func(ctx context.Context, _ *primacy.Term) error { <-ctx.Done(); return nil })
	}()
	var leader primacy.Entry
	for leader.ID == "" {
		leader, _ = second.Election("n").Leader(ctx)
		if ctx.Err() != nil {
			t.Fatal("nobody leads")
		}
	}
	events := second.Events(ctx)
	go func() { _, _ = second.Election("n").Campaign(ctx, nil) }()
	for ev := range events {
		if ev.Kind == primacy.DuplicateID {
			if ev.Name != "n" || ev.Text != "web-1" || ev.Lease == "" || ev.Lock {
				t.Errorf("told %+v, of the leader %+v", ev, leader)
			}
			return
		}
	}
	t.Error("nothing was told")
}
