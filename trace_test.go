package primacy_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
	"github.com/primacy-go/primacy/trace"
)

// traced follows a session with spans that are kept in memory.
func traced(t *testing.T, s *primacy.Session, o trace.Options) (*trace.Tracer, *sdk.TracerProvider,
	func(name string) tracetest.SpanStubs) {
	kept := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(kept))
	o.Provider = provider
	tracer := trace.New(s, o)
	t.Cleanup(tracer.Close)
	return tracer, provider, func(name string) tracetest.SpanStubs {
		synctest.Wait()
		return slices.DeleteFunc(kept.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
	}
}

// attribute returns what a span says under a key.
func attribute(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.AsString()
		}
	}
	return ""
}

func TestTraceOfACampaignATermAndAJob(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a, b := open("a", store, metrics.Options{}), open("b", store, metrics.Options{})
		_, _, spansOfA := traced(t, a.Session, trace.Options{})
		tracer, provider, spans := traced(t, b.Session, trace.Options{})
		first := a.lead("n")
		won := make(chan *primacy.Term, 1)
		go func() { won <- b.lead("n") }()
		time.Sleep(25 * time.Second) // renewals have no spans
		if got := spansOfA("primacy.term"); len(got) != 0 {
			t.Errorf("a term that goes on has ended as %+v", got)
		}
		a.resign(first)
		term := <-won
		link := tracer.Link(term) // maybe before the tracer has heard of the term
		_, task := provider.Tracer("test").Start(t.Context(), "task", oteltrace.WithLinks(link))
		task.End()
		time.Sleep(5 * time.Second)
		b.resign(term)

		campaign := spans("primacy.campaign")
		if len(campaign) != 1 || campaign[0].EndTime.Sub(campaign[0].StartTime) != 25*time.Second ||
			attribute(campaign[0], "primacy.term.token") != term.Token().String() ||
			campaign[0].Status.Code == codes.Error {
			t.Errorf("the campaign: %+v", campaign)
		}
		span := spans("primacy.term")
		if len(span) != 1 {
			t.Fatalf("the term: %+v", span)
		}
		for key, want := range map[string]string{"primacy.election.name": "n", "primacy.member.id": "b",
			"primacy.term.token":        term.Token().String(),
			"primacy.transition.reason": "resigned"} {
			if got := attribute(span[0], key); got != want {
				t.Errorf("the term's %s is %q, want %q", key, got, want)
			}
		}
		if got := span[0].EndTime.Sub(span[0].StartTime); got != 5*time.Second ||
			span[0].Status.Code == codes.Error {
			t.Errorf("the term lasted %v, status %v", got, span[0].Status)
		}
		if tasks := spans("task"); tasks[0].Links[0].SpanContext.SpanID() != span[0].SpanContext.SpanID() {
			t.Errorf("the task links to %v, the term is %v", tasks[0].Links[0].SpanContext, span[0].SpanContext)
		}
		if got := len(spans("primacy.campaign")) + len(spans("primacy.term")) + len(spansOfA("primacy.campaign")) +
			len(spansOfA("primacy.term")); got != 4 {
			t.Errorf("%d spans, want those of two campaigns and two terms", got)
		}
		if late := tracer.Link(term); late.SpanContext.IsValid() || len(late.Attributes) != 3 {
			t.Errorf("a link to a term whose span has ended: %+v", late)
		}
	})
}

func TestTraceOfATermThatIsLostAndOfACampaignThatIsGivenUp(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		bad := &silent{Store: store}
		a := open("a", bad, metrics.Options{})
		_, _, spans := traced(t, a.Session, trace.Options{})
		a.lead("n")
		bad.mute.Store(true)
		time.Sleep(20 * time.Second)
		span := spans("primacy.term")
		if len(span) != 1 || span[0].Status.Code != codes.Error ||
			attribute(span[0], "primacy.transition.reason") != "expired" {
			t.Errorf("a term that was lost: %+v", span)
		}
		ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Second, errors.New("no patience"))
		defer cancel()
		if _, err := a.Election("n").Campaign(ctx, nil); err == nil {
			t.Fatal("a store that grants nothing let a campaign win")
		}
		campaigns := spans("primacy.campaign")
		if len(campaigns) != 2 || campaigns[1].Status.Code != codes.Error {
			t.Errorf("a campaign that was given up: %+v", campaigns)
		}
	})
}

// Of two campaigns of one process for a name the younger is given up: its span ends, and the older
// one's goes on until it wins.
func TestTraceOfACampaignThatIsGivenUpBehindAnother(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a, b := open("a", store, metrics.Options{}), open("b", store, metrics.Options{})
		_, _, spans := traced(t, b.Session, trace.Options{})
		first := a.lead("n")
		won := make(chan *primacy.Term, 1)
		go func() { won <- b.lead("n") }()
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := b.Election("n").Campaign(ctx, nil); err == nil {
			t.Error("two lead")
		}
		time.Sleep(time.Second)
		a.resign(first)
		b.resign(<-won)
		all := spans("primacy.campaign")
		if len(all) != 2 ||
			all[0].Status.Code != codes.Error || all[0].EndTime.Sub(all[0].StartTime) != 5*time.Second ||
			all[1].Status.Code == codes.Error || all[1].EndTime.Sub(all[1].StartTime) != 11*time.Second {
			t.Errorf("want one that was given up after 5s and one that won after 11s: %+v", all)
		}
	})
}

func TestTraceOfATransfer(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a, b := open("a", store, metrics.Options{}), open("b", store, metrics.Options{})
		_, _, spans := traced(t, a.Session, trace.Options{})
		term := a.lead("n")
		won := make(chan *primacy.Term, 1)
		go func() { won <- b.lead("n") }()
		synctest.Wait()
		if _, err := b.Election("n").Ask(t.Context(),
			primacy.Request{To: "b", Reason: "rack 4 goes down"}); err != nil {
			t.Fatal(err)
		}
		<-term.Context().Done()
		time.Sleep(2 * time.Second) // the work stops
		a.resign(term)
		b.resign(<-won)
		moved := spans("primacy.transfer")
		if len(moved) != 1 || moved[0].EndTime.Sub(moved[0].StartTime) != 2*time.Second ||
			moved[0].Status.Code == codes.Error ||
			attribute(moved[0], "primacy.transfer.to") != "b" ||
			attribute(moved[0], "primacy.transition.text") != "rack 4 goes down" ||
			attribute(moved[0], "primacy.transition.by") != "b" {
			t.Errorf("the transfer: %+v", moved)
		}
		if span := spans("primacy.term"); len(span) != 1 || len(span[0].Links) != 1 ||
			span[0].Status.Code == codes.Error ||
			attribute(span[0], "primacy.transition.reason") != "transferred" {
			t.Errorf("the term: %+v", span)
		}

		gone := open("gone", store, metrics.Options{}) // a successor that stands no more when it comes to it
		term = a.lead("n")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { _, _ = gone.Election("n").Campaign(ctx, nil) }()
		synctest.Wait()
		if _, err := a.Election("n").Ask(t.Context(), primacy.Request{To: "gone"}); err != nil {
			t.Fatal(err)
		}
		<-term.Context().Done()
		cancel()
		synctest.Wait()
		a.resign(term)
		if moved = spans("primacy.transfer"); len(moved) != 2 || moved[1].Status.Code != codes.Error {
			t.Errorf("the transfer to nobody: %+v", moved)
		}
	})
}

// However much happens, the spans that are open have a bound, and none is left open by Close.
func TestTraceKeepsABoundedNumberOfSpansOpen(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a := open("a", driver.Store(store), metrics.Options{})
		tracer, _, spans := traced(t, a.Session, trace.Options{MaxOpen: 3})
		terms := []*primacy.Term{a.lead("x"), a.lead("y"), a.lead("z"), a.lead("w")}
		synctest.Wait()
		if link := tracer.Link(terms[3]); link.SpanContext.IsValid() {
			t.Error("the fourth term has a span")
		}
		if got := spans("primacy.term"); len(got) != 0 {
			t.Errorf("they go on, and %+v ended", got)
		}
		tracer.Close()
		if got := len(spans("primacy.term")); got == 0 || got > 3 {
			t.Errorf("Close left %d spans of terms, want 1 to 3", got)
		}
		if link := tracer.Link(terms[0]); link.SpanContext.IsValid() {
			t.Error("a closed tracer makes spans")
		}
	})
}

// A hand-over that nobody confirms has a span too, and that ends: by what the store says, or with
// the lease.
func TestTraceOfATransferThatNobodyConfirms(t *testing.T) {
	for what, then := range map[string]func(store *memstore.Store, net drivertest.FaultyStore, term *primacy.Term){
		"the claim is gone": func(store *memstore.Store, net drivertest.FaultyStore, term *primacy.Term) {
			store.Remove("n", uint64(term.Token()))
			net.Hang(false)
		},
		"the lease is over": func(*memstore.Store, drivertest.FaultyStore, *primacy.Term) {
			time.Sleep(20 * time.Second)
		},
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
