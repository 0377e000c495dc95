package httpfence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
)

// Memory is where a server keeps the largest token. One process uses it at a time, and in it all
// fences of one Memory and name are one: Memories that compare equal are the same, so use a
// pointer, and do not wrap one place twice. It is asked about one name by one goroutine at a time,
// and its context ends after 10 s: what takes longer is refused (503).
type Memory interface {
	// Load returns the stamp stored last for the election name, the zero Stamp if there is none.
	Load(ctx context.Context, name string) (fence.Stamp, error)
	// Store keeps s for s.Name. It returns nil only when s will be there after a crash. Once it has
	// returned, with an error too, s must not get there any more: it might replace a larger one.
	Store(ctx context.Context, s fence.Stamp) error
}

// Fence guards what its handlers do against leaders of the past. Set the fields, then use it for
// all handlers of one resource:
//
//	ledger := &httpfence.Fence{Name: "ledger", Memory: memory}
//	http.Handle("/accounts/", ledger.Wrap(accounts))
//	http.Handle("/orders/", ledger.Wrap(orders))
//
// Two Fences with one Memory and one Name are the same fence.
type Fence struct {
	Name   string // of the election whose leader may write
	Memory Memory // required; see [Dir]
}

// StampOf returns the stamp of the request that ctx belongs to, for a resource further down that
// has a fence too. It reports false for a request without one.
func StampOf(ctx context.Context) (fence.Stamp, bool) {
	s, ok := ctx.Value(stampKey{}).(fence.Stamp)
	return s, ok
}

type stampKey struct{}

// Wrap returns next behind the fence. Put http.TimeoutHandler around what it returns, never inside:
// it answers while its handler still runs.
func (f *Fence) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, bad := f.stamp(r)
		if bad != nil {
			bad.write(w)
			return
		}
		if s.Token == 0 { // a reader
			next.ServeHTTP(w, r)
			return
		}
		g, err := gateOf(f.Memory, f.Name)
		if err != nil {
			refuse(s, err).write(w)
			return
		}
		ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), stampKey{}, s))
		defer cancel(nil)
		x := newExchange(w, r.WithContext(ctx))
		h := &running{stamp: s, end: func(why error) { cancel(why); x.interrupt() }}
		if err := g.enter(ctx, h); err != nil {
			refuse(s, err).write(w)
			return
		}
		defer g.leave(h) // also when the handler panics
		if r.Method == http.MethodOptions && r.Header.Get(FenceHeader) == "raise" {
			w.Header().Set(FenceHeader, "raised")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(x.writer(), x.request)
		x.returned()
	})
}

// Adopt makes s count, whatever the fence knew, and waits for handlers that run. It is for an
// operator, after the store of the election was restored or replaced, who has made sure that no
// leader of the old store runs.
func (f *Fence) Adopt(ctx context.Context, s fence.Stamp) error {
	if err := f.about(s); err != nil {
		return err
	}
	g, err := gateOf(f.Memory, f.Name)
	if err != nil {
		return err
	}
	return g.adopt(ctx, s)
}

func (f *Fence) about(s fence.Stamp) error {
	if err := s.Valid(); err != nil {
		return err
	}
	if s.Name != f.Name {
		return fmt.Errorf("%w: this resource is fenced by the election %q: the leader of %q has no say here", primacy.ErrInvalid, f.Name, s.Name)
	}
	return nil
}

// stamp reads the request's stamp: the zero Stamp for one that needs none.
func (f *Fence) stamp(r *http.Request) (fence.Stamp, *problem) {
	names, tokens, origins := r.Header.Values(NameHeader), r.Header.Values(TokenHeader), r.Header.Values(OriginHeader)
	if len(names)+len(tokens)+len(origins) == 0 {
		if safe(r.Method) && r.Header.Get(FenceHeader) == "" {
			return fence.Stamp{}, nil
		}
		return fence.Stamp{}, &problem{Type: typeRequired, Status: http.StatusPreconditionRequired, Title: "token required",
			Detail: fmt.Sprintf("%s needs the headers %s and %s of the leader of %q", r.Method, NameHeader, TokenHeader, f.Name)}
	}
	s, err := parse(names, tokens, origins)
	if err == nil {
		err = f.about(s)
	}
	if err != nil {
		return fence.Stamp{}, &problem{Type: typeBad, Status: http.StatusBadRequest, Title: "bad token", Detail: err.Error()}
	}
	return s, nil
}

func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions || method == http.MethodTrace
}

func parse(names, tokens, origins []string) (s fence.Stamp, err error) {
	if len(names) != 1 || len(tokens) != 1 || len(origins) > 1 {
		return s, fmt.Errorf("%w: want one %s and one %s, and at most one %s", primacy.ErrInvalid, NameHeader, TokenHeader, OriginHeader)
	}
	if s.Name, err = url.PathUnescape(names[0]); err != nil {
		return s, fmt.Errorf("%w: %s %q: %w", primacy.ErrInvalid, NameHeader, names[0], err)
	}
	if err := s.Token.UnmarshalText([]byte(tokens[0])); err != nil {
		return s, err
	}
	if len(origins) == 1 {
		s.Origin = origins[0]
	}
	return s, nil
}

// refuse turns an error of the gate into what the client gets.
func refuse(s fence.Stamp, err error) *problem {
	var stale *fence.StaleError
	var other *fence.OriginError
	switch {
	case errors.As(err, &stale):
		return &problem{Type: typeStale, Status: http.StatusPreconditionFailed, Title: "stale token", Detail: err.Error(),
			Name: s.Name, Token: s.Token, Largest: stale.Largest}
	case errors.As(err, &other):
		return &problem{Type: typeOrigin, Status: http.StatusPreconditionFailed, Title: "token of another store", Detail: err.Error(),
			Name: s.Name, Token: s.Token, Largest: other.Largest, Origin: other.Origin, Known: other.Known}
	}
	return &problem{Type: typeNotReady, Status: http.StatusServiceUnavailable, Title: "the fence is not ready",
		Detail: err.Error(), Name: s.Name, Token: s.Token}
}

func (p *problem) write(w http.ResponseWriter) {
	text, err := json.Marshal(p)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	// What the client decides by is in headers: the answer to HEAD has no body.
	w.Header().Set(FenceHeader, "refused")
	w.Header().Set(ProblemHeader, p.Type)
	if p.Largest != 0 {
		w.Header().Set(LargestHeader, p.Largest.String())
	}
	if p.Known != "" {
		w.Header().Set(KnownHeader, p.Known)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(text, '\n')) // a client that is gone needs no answer
}
