package primacy_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
	"github.com/primacy-go/primacy/trace"
)

// A hand-over that nobody confirms has a span too, and that ends: by what the store says, or with the lease.
func TestTraceOfATransferThatNobodyConfirms(t *testing.T) {
	for what, then := range map[string]func(store *memstore.Store, net drivertest.FaultyStore, term *primacy.Term){
		"the claim is gone": func(store *memstore.Store, net drivertest.FaultyStore, term *primacy.Term) {
			store.Remove("n", uint64(term.Token()))
			net.Hang(false)
		},
		"the lease is over": func(*memstore.Store, drivertest.FaultyStore, *primacy.Term) { time.Sleep(20 * time.Second) },
	} {
		fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
			net := drivertest.Faulty(store, drivertest.Faults{})
			a, b := open("a", net, metrics.Options{}), open("b", store, metrics.Options{})
			_, _, spans := traced(t, a.Session, trace.Options{})
			term := a.lead("n")
			go func() { _, _ = b.Election("n").Campaign(t.Context(), nil) }()
			synctest.Wait()
			if _, err := b.Election("n").Ask(t.Context(), primacy.Request{To: "b"}); err != nil {
				t.Fatal(err)
			}
			<-term.Context().Done()
			net.Hang(true)
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = term.Resign(ctx)
			then(store, net, term)
			time.Sleep(2 * time.Second)
			if moved := spans("primacy.transfer"); len(moved) != 1 || moved[0].Status.Code != codes.Error {
				t.Errorf("%s: %+v", what, moved)
			}
			net.Hang(false)
		})
	}
}

// Of what the session tells no end, no span begins: it would stay open.
func TestTraceLinksToLocksWithoutASpan(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a, b := open("a", store, metrics.Options{}), open("b", store, metrics.Options{})
		tracer, _, spans := traced(t, a.Session, trace.Options{})
		lock, err := a.Mutex("l", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if link := tracer.Link(lock); link.SpanContext.IsValid() || len(link.Attributes) != 3 {
			t.Errorf("a link to a lock: %+v", link)
		}
		if link := tracer.Link(b.lead("of another session")); link.SpanContext.IsValid() {
			t.Errorf("a link to a term of another session: %+v", link)
		}
		_ = lock.Resign(t.Context())
		tracer.Close()
		if open := spans("primacy.term"); len(open) != 0 {
			t.Errorf("left open until Close: %+v", open)
		}
	})
}

// Campaigns that wait for each other under one name count one by one.
func TestTraceBoundsCampaignsOfOneName(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a := open("a", store, metrics.Options{})
		tracer, _, spans := traced(t, a.Session, trace.Options{MaxOpen: 3})
		a.lead("n")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for range 20 {
			go func() { _, _ = a.Election("n").Campaign(ctx, nil) }()
		}
		synctest.Wait()
		before := len(spans("primacy.campaign"))
		tracer.Close()
		if n := len(spans("primacy.campaign")) - before; n == 0 || n > 3 {
			t.Errorf("%d spans of campaigns were open, want 1 to 3", n)
		}
	})
}
