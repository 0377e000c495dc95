package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/fanout"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/internal/boottime"
)

// campaignBody is what a candidate says of itself. All of it may be left out.
type campaignBody struct {
	ID       string          `json:"id"`
	TTLMS    int64           `json:"ttl_ms"`
	Value    *string         `json:"value"`
	Meta     json.RawMessage `json:"meta"`
	Priority int             `json:"priority"`
	WaitMS   *int64          `json:"wait_ms"`
	RenewMS  int64           `json:"renew_ms"`
	Direct   bool            `json:"direct"` // the other end of the connection is the client: see [direct]
}

// value is what observers see.
func (b campaignBody) value() ([]byte, error) {
	meta := len(b.Meta) > 0 && string(b.Meta) != "null"
	switch {
	case b.Value != nil && meta:
		return nil, errors.New("give value or meta, not both")
	case b.Value != nil:
		return []byte(*b.Value), nil
	case meta && b.Meta[0] != '{':
		return nil, errors.New("meta must be an object")
	}
	if meta {
		return compact(b.Meta), nil
	}
	return nil, nil
}

// contest is one client that stands for a name, or waits for a lock, on a stream.
type contest struct {
	a       *Agent
	name    string
	lock    bool
	session *primacy.Session
	win     func(context.Context) (*primacy.Term, error)
	wait    time.Duration // give up after so long; 0: never
	renew   time.Duration
	direct  bool // as the client says
	s       *stream
	began   time.Duration
}

// campaign answers POST /v1/elections/{name}/campaign.
func (a *Agent) campaign(w http.ResponseWriter, r *http.Request, name string) {
	var b campaignBody
	if !decode(w, r, &b) {
		return
	}
	value, err := b.value()
	if err == nil {
		err = errors.Join(primacy.CheckName(name), checkMS("ttl_ms", b.TTLMS, 0),
			checkMS("renew_ms", b.RenewMS, minRenew), checkWait(b.WaitMS))
	}
	if err == nil && b.Priority < 0 {
		err = errors.New("priority must not be negative")
	}
	if err == nil && len(value) > primacy.MaxValue {
		err = errors.New("the value is larger than 4096 bytes")
	}
	if err != nil {
		health.Invalid.Write(w, "%v", err)
		return
	}
	s, leave, ok := a.join(w, r, b.ID, b.TTLMS)
	if !ok {
		return
	}
	defer leave()
	e, o := s.Election(name), primacy.CampaignOptions{Value: value, Priority: b.Priority, ObeyPauses: true}
	c := &contest{a: a, name: name, session: s, renew: ms(b.RenewMS), direct: b.Direct, s: newStream(w, r)}
	c.win = func(ctx context.Context) (*primacy.Term, error) { return e.Campaign(ctx, &o) }
	if b.WaitMS != nil {
		c.wait = ms(*b.WaitMS)
	}
	c.run(r)
}

// join returns the session of a client, and what it calls when it leaves. It answers where it may
// not come in.
func (a *Agent) join(w http.ResponseWriter, r *http.Request, id string, ttlMS int64) (*primacy.Session, func(), bool) {
	out, ok := a.admit(w, r, clientsPerDoor)
	if !ok {
		return nil, nil, false
	}
	if id == "" {
		id = a.clients.number()
	}
	s, leave, err := a.clients.enter(id, ms(ttlMS))
	if err == nil {
		return s, func() { leave(); out() }, true
	}
	out()
	if errors.Is(err, errOtherTTL) {
		idInUse.Write(w, "%v", err)
		return nil, nil, false
	}
	fail(w, err)
	return nil, nil, false
}

// run stands until it wins, holds what it has won until that is over, and tells of all of it.
func (c *contest) run(r *http.Request) {
	c.began = boottime.Now()
	if !c.send(line{Event: "waiting"}) {
		return
	}
	t, err := c.await(r)
	if err != nil {
		c.lose(err)
		return
	}
	if t == nil {
		return // nobody is there to be told
	}
	h := newHolding(c.lock, c.session.ID(), t, c.renew)
	c.a.held.add(h)
	k := &keeper{a: c.a, h: h, s: c.s, gone: r.Context().Done(), conn: direct(r, c.direct)}
	l := k.line(map[bool]string{false: "elected", true: "acquired"}[c.lock])
	waited := (boottime.Now() - c.began).Milliseconds()
	l.TTLMS, l.WaitedMS = t.TTL().Milliseconds(), &waited
	c.a.log("holds", "election", c.name, "id", h.id, "token", t.Token())
	k.tell(l)
	k.keep()
}

// await waits for the win, and tells who is in the way meanwhile. A win that comes when the client
// has gone is given back: then it returns neither a term nor an error.
func (c *contest) await(r *http.Request) (t *primacy.Term, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	decided := make(chan struct{})
	go func() {
		defer close(decided)
		t, err = c.win(ctx)
	}()
	places := c.a.places.Join(c.name)
	defer places.Close()
	var late <-chan time.Time
	if c.wait > 0 {
		timer := time.NewTimer(c.wait)
		defer timer.Stop()
		late = timer.C
	}
	last := line{Event: "waiting"}
	send := func() bool {
		l, inTheWay := c.place(places.Take())
		if !inTheWay || l == last {
			return true
		}
		last = l
		return c.send(l)
	}
	why := follow(r, c.a.stopped, decided, late, places.Changed(), beatEvery, send,
		func() bool { return c.send(last) })
	cancel(why)
	<-decided
	if t != nil && (why != nil || r.Context().Err() != nil) { // a win in this very moment, or nobody to be told
		resignNow(t)
		t = nil
	}
	switch {
	case errors.Is(why, errGone):
		return nil, nil
	case why != nil:
		return nil, why
	}
	return t, err
}

// place returns which place the client has in the line and who leads, unless nobody is in its way.
func (c *contest) place(n *fanout.News[places]) (line, bool) {
	if n == nil {
		return line{}, false
	}
	l, id := line{Event: "waiting", Leader: n.Value.holder}, c.session.ID()
	l.Position = n.Value.of[id]
	return l, n.Value.held && (c.lock || l.Leader != id) // else it has just won
}

var errTooLate = errors.New("not acquired in the time given")

// lose tells why nothing was won.
func (c *contest) lose(err error) {
	kind := kindOf(err)
	if errors.Is(err, errTooLate) {
		kind = tooLate
	}
	p := kind.Problem("%v", err)
	reason := primacy.Failed
	switch kind {
	case tooLate:
		reason = shown.Timeout
	case stopping:
		reason = shown.Shutdown
	}
	c.send(line{Event: "ended", Reason: reason, Problem: &p})
}

func (c *contest) send(l line) bool {
	l.Name, l.ID = c.name, c.session.ID()
	return c.s.send(l.Event, l)
}

// resignNow gives back what nobody has been told of.
func resignNow(t *primacy.Term) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = t.Resign(ctx)
}
