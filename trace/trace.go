// Package trace makes OpenTelemetry spans of what a session does: primacy.campaign, from standing in the line until the term is won or the
// campaign given up; primacy.term, the reign, whose status is an error where it was lost; primacy.transfer, from the end of the work
// until another candidate leads. There is none for a renewal.
//
//	tracer := trace.New(session, trace.Options{})
//	defer tracer.Close()
//	...
//	ctx, span := otel.Tracer("billing").Start(ctx, "invoice", oteltrace.WithLinks(tracer.Link(term)))
//
// It needs the API of OpenTelemetry only; without an SDK in the program the spans cost next to nothing. A session is not slowed down by it: spans are made
// from [primacy.Session.Events], on a goroutine of their own.
package trace

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/primacy-go/primacy"
)

// The attributes of spans.
const (
	ElectionName = attribute.Key("primacy.election.name")
	MemberID     = attribute.Key("primacy.member.id")         // of this process
	Token        = attribute.Key("primacy.term.token")        // in decimal: it may be too large for a signed number
	Reason       = attribute.Key("primacy.transition.reason") // why the term ended, as primacy.Reason has it
	AskedBy      = attribute.Key("primacy.transition.by")     // who asked for it
	Text         = attribute.Key("primacy.transition.text")   // why, in words
	Successor    = attribute.Key("primacy.transfer.to")       // the member that the term is handed over to
)

// Options of a tracer. The zero value works.
type Options struct {
	// Provider makes the spans. Default: OpenTelemetry's global one.
	Provider oteltrace.TracerProvider
	// MaxOpen is how many spans may be open at once, so that ten thousand elections do not keep ten thousand of them. What is beyond that has none.
	// Default 1,000.
	MaxOpen int
}

// Tracer follows one session. It is safe for concurrent use.
type Tracer struct {
	s      *primacy.Session
	tracer oteltrace.Tracer
	max    int
	stop   context.CancelFunc
	all    sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	campaigns map[string][]campaign // by name, the oldest first: those of one process wait for each other
	waiting   int                   // how many these are
	terms     map[reign]oteltrace.Span
	transfers map[reign]oteltrace.Span
}

// campaign is the span of a campaign, and when it began.
type campaign struct {
	oteltrace.Span
	at time.Time
}

// reign is one term.
type reign struct {
	name  string
	token primacy.Token
}

// New begins to make spans of what happens to the session from now on. Close ends it, and so does the end of the session.
func New(s *primacy.Session, o Options) *Tracer {
	if o.Provider == nil {
		o.Provider = otel.GetTracerProvider()
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = 1000
	}
	t := &Tracer{s: s, tracer: o.Provider.Tracer("github.com/primacy-go/primacy/trace"), max: o.MaxOpen,
		campaigns: map[string][]campaign{}, terms: map[reign]oteltrace.Span{}, transfers: map[reign]oteltrace.Span{}}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	events := s.Events(ctx)
	t.all.Go(func() {
		for e := range events {
			t.take(e)
		}
		t.endAll()
	})
	return t
}

// Close ends the spans that are open and makes no more.
func (t *Tracer) Close() {
	t.stop()
	t.all.Wait()
}

// Link returns what connects a span of the work, one of a job for example, with the term that it ran under: give it to
// [oteltrace.WithLinks]. It has the token and the election's name, also where the term has no span of its own.
func (t *Tracer) Link(term *primacy.Term) oteltrace.Link {
	r := reign{term.Name(), term.Token()}
	link := oteltrace.Link{Attributes: t.attributes(r)}
	t.mu.Lock()
	defer t.mu.Unlock()
	span := t.terms[r]
	if span == nil && t.room() && slices.Contains(t.s.Terms(), term) { // the event of its beginning is on its way, and that of its end will come: a lock has none
		span = t.begin(r, term.Since())
	}
	if span != nil {
		link.SpanContext = span.SpanContext()
	}
	return link
}

func (t *Tracer) attributes(r reign) []attribute.KeyValue {
	return []attribute.KeyValue{ElectionName.String(r.name), MemberID.String(t.s.ID()), Token.String(r.token.String())}
}

// room says whether one more span may be open. The lock is held, as in what follows.
func (t *Tracer) room() bool { return !t.closed && t.waiting+len(t.terms)+len(t.transfers) < t.max }

// start begins a span, nil if there are too many.
func (t *Tracer) start(name string, at time.Time, o ...oteltrace.SpanStartOption) oteltrace.Span {
	if !t.room() {
		return nil
	}
	_, span := t.tracer.Start(context.Background(), name, append(o, oteltrace.WithTimestamp(at), oteltrace.WithNewRoot())...)
	return span
}

// begin begins the span of a term.
func (t *Tracer) begin(r reign, at time.Time, o ...oteltrace.SpanStartOption) oteltrace.Span {
	span := t.start("primacy.term", at, append(o, oteltrace.WithAttributes(t.attributes(r)...))...)
	if span != nil {
		t.terms[r] = span
	}
	return span
}

// take makes of one event what it says.
func (t *Tracer) take(e primacy.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Missed > 0 {
		t.lose(e.At)
	}
	r := reign{e.Name, e.Token}
	switch e.Kind {
	case primacy.CampaignBegun:
		if span := t.start("primacy.campaign", e.At, oteltrace.WithAttributes(ElectionName.String(e.Name), MemberID.String(t.s.ID()))); span != nil {
			t.campaigns[e.Name] = append(t.campaigns[e.Name], campaign{span, e.At})
			t.waiting++
		}
	case primacy.CampaignEnded:
		i := t.begunAt(e.Name, e.At.Add(-e.Took))
		t.over(e, i, func(span oteltrace.Span) { span.SetStatus(codes.Error, told(e.Cause)) })
	case primacy.Elected:
		won := t.over(e, t.begunAt(e.Name, e.At.Add(-e.Took)), func(span oteltrace.Span) { span.SetAttributes(Token.String(e.Token.String())) })
		if span := t.terms[r]; span != nil { // begun by Link
			span.AddLink(oteltrace.Link{SpanContext: won})
		} else {
			t.begin(r, e.At, oteltrace.WithLinks(oteltrace.Link{SpanContext: won}))
		}
	case primacy.Stopping:
		if span := t.terms[r]; span != nil {
			span.AddEvent("stopping", oteltrace.WithTimestamp(e.At), oteltrace.WithAttributes(Reason.String(string(e.Reason))))
		}
	case primacy.Ended:
		t.ended(r, e)
	case primacy.HandedOver, primacy.NotHandedOver:
		if span := t.transfers[r]; span != nil && e.Cause != nil {
			span.SetStatus(codes.Error, told(e.Cause))
		}
		end(t.transfers, r, e.At)
	case primacy.LeaseLost:
		for r, span := range t.transfers {
			span.SetStatus(codes.Error, told(e.Cause))
			end(t.transfers, r, e.At)
		}
	}
}

// begunAt returns which of the campaigns for a name began at about that time: any of them may be
// given up, and an older one that its health holds back does not win first.
func (t *Tracer) begunAt(name string, at time.Time) (nearest int) {
	waits := t.campaigns[name]
	for i, c := range waits {
		if c.at.Sub(at).Abs() < waits[nearest].at.Sub(at).Abs() {
			nearest = i
		}
	}
	return nearest
}

// over ends the span of the i-th campaign for the name of e, and returns what links to it.
func (t *Tracer) over(e primacy.Event, i int, say func(oteltrace.Span)) oteltrace.SpanContext {
	waits := t.campaigns[e.Name]
	if len(waits) == 0 {
		return oteltrace.SpanContext{}
	}
	span := waits[i].Span
	say(span)
	span.End(oteltrace.WithTimestamp(e.At))
	t.waiting--
	if t.campaigns[e.Name] = slices.Delete(waits, i, i+1); len(waits) == 1 {
		delete(t.campaigns, e.Name)
	}
	return span.SpanContext()
}

// ended ends the span of a term, and begins that of its hand-over, which lasts until the store has it.
func (t *Tracer) ended(r reign, e primacy.Event) {
	about := []attribute.KeyValue{Reason.String(string(e.Reason))}
	for key, value := range map[attribute.Key]string{AskedBy: e.By, Text: e.Text, Successor: e.To} {
		if value != "" {
			about = append(about, key.String(value))
		}
	}
	if span := t.terms[r]; span != nil {
		span.SetAttributes(about...)
		switch e.Reason {
		case primacy.Expired, primacy.Deposed, primacy.Failed:
			span.SetStatus(codes.Error, told(e.Cause))
		}
	}
	end(t.terms, r, e.At)
	if e.Reason != primacy.Transferred {
		return
	}
	if span := t.start("primacy.transfer", e.At.Add(-e.Took), oteltrace.WithAttributes(append(t.attributes(r), about...)...)); span != nil {
		t.transfers[r] = span
	}
}

// end ends a span, if there is one.
func end(spans map[reign]oteltrace.Span, r reign, at time.Time) {
	if span := spans[r]; span != nil {
		span.End(oteltrace.WithTimestamp(at))
		delete(spans, r)
	}
}

// lose ends spans whose end may have been among lost events.
func (t *Tracer) lose(at time.Time) {
	leads := map[reign]bool{}
	for _, term := range t.s.Terms() {
		leads[reign{term.Name(), term.Token()}] = true
	}
	for r := range t.terms {
		if !leads[r] {
			end(t.terms, r, at)
		}
	}
	for r := range t.transfers {
		end(t.transfers, r, at)
	}
	for _, waits := range t.campaigns {
		for _, span := range waits {
			span.End(oteltrace.WithTimestamp(at))
		}
	}
	clear(t.campaigns)
	t.waiting = 0
}

// endAll ends what is open when nothing more is heard of the session.
func (t *Tracer) endAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.lose(time.Now())
	for r := range t.terms {
		end(t.terms, r, time.Now())
	}
}

func told(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
