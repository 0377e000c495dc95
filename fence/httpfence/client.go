package httpfence

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
)

// The headers.
const (
	NameHeader    = "Primacy-Name"
	TokenHeader   = "Primacy-Token"
	OriginHeader  = "Primacy-Origin"
	FenceHeader   = "Primacy-Fence"
	ProblemHeader = "Primacy-Problem" // of a refusal: its type
	LargestHeader = "Primacy-Largest" // of a refusal: the largest token known
	KnownHeader   = "Primacy-Known"   // of a refusal: the origin known
)

// The types of problems.
const (
	typeStale    = "urn:primacy:stale-token"
	typeOrigin   = "urn:primacy:other-origin"
	typeRequired = "urn:primacy:token-required"
	typeBad      = "urn:primacy:bad-token"
	typeNotReady = "urn:primacy:not-ready"
)

// problem is the body of a refusal.
type problem struct {
	Type    string        `json:"type"`
	Title   string        `json:"title"`
	Status  int           `json:"status"`
	Detail  string        `json:"detail"`
	Name    string        `json:"name,omitempty"`
	Token   primacy.Token `json:"token,omitempty"`
	Largest primacy.Token `json:"largest,omitempty"`
	Origin  string        `json:"origin,omitempty"`
	Known   string        `json:"known,omitempty"`
}

// Transport sends a term's stamp with every request. Make one for each term. It is safe for
// concurrent use if Base is.
type Transport struct {
	Stamp fence.Stamp
	Check func() error      // the term's; asked before each request. Nil: never asked, where only the token is known
	Base  http.RoundTripper // http.DefaultTransport if nil
}

// Client returns a client whose requests carry the term's stamp, without an origin. Where the fence
// knows an origin, use [ClientFrom].
func Client(t fence.Term) *http.Client { return ClientFrom(t, nil) }

// ClientFrom is [Client] with the origin of the term's token, if store can tell it, see
// [fence.Stamp.From]. Either all leaders of an election send one, or none does: once the fence
// knows an origin, a stamp without one is a *fence.OriginError.
func ClientFrom(t fence.Term, store any) *http.Client {
	return &http.Client{Transport: &Transport{Stamp: fence.Of(t).From(store), Check: t.Check}}
}

// RoundTrip implements http.RoundTripper. Where Check says no, nothing is sent and its error is
// returned. A refusal of the fence is a *fence.StaleError or a *fence.OriginError instead of a
// response, so that a caller who looks at no status cannot take it for success; http.Client wraps
// both, errors.Is and errors.As find them. Every other response is returned as it is.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	err := t.Stamp.Valid()
	if err == nil && t.Check != nil {
		err = t.Check()
	}
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set(NameHeader, url.PathEscape(t.Stamp.Name))
	r.Header.Set(TokenHeader, t.Stamp.Token.String())
	r.Header.Del(OriginHeader)
	if t.Stamp.Origin != "" {
		r.Header.Set(OriginHeader, t.Stamp.Origin)
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	resp, err := base.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if refusal := t.refusal(resp); refusal != nil {
		return nil, refusal
	}
	return resp, nil
}

// refusal returns the error in a 412 of a fence, and closes the body; nil for any other response,
// which is not touched. It looks at headers only: the answer to HEAD has no body.
func (t *Transport) refusal(resp *http.Response) error {
	h := resp.Header
	if resp.StatusCode != http.StatusPreconditionFailed || h.Get(FenceHeader) != "refused" {
		return nil
	}
	resp.Body.Close()
	var largest primacy.Token
	err := largest.UnmarshalText([]byte(h.Get(LargestHeader)))
	switch kind := h.Get(ProblemHeader); {
	case kind == typeStale && err == nil:
		return &fence.StaleError{Name: t.Stamp.Name, Token: t.Stamp.Token, Largest: largest}
	case kind == typeOrigin && err == nil:
		return &fence.OriginError{Name: t.Stamp.Name, Token: t.Stamp.Token, Origin: t.Stamp.Origin, Largest: largest,
			Known: h.Get(KnownHeader)}
	}
	return fmt.Errorf("fence %q: token %d is refused, but why cannot be read: %s %q, %s %q", t.Stamp.Name,
		t.Stamp.Token, ProblemHeader, h.Get(ProblemHeader), LargestHeader, h.Get(LargestHeader))
}

// Raise makes the fence at rawURL refuse tokens smaller than the client's from now on, and returns
// when no handler runs under one. Call it before the first read of what will be written. The client
// is one with a [Transport]. Errors are those of the transport; one that says so if no fence
// answers at that address.
func Raise(ctx context.Context, client *http.Client, rawURL string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodOptions, rawURL, nil)
	if err != nil {
		return err
	}
	req.Header.Set(FenceHeader, "raise")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent && resp.Header.Get(FenceHeader) == "raised" {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	var p problem
	if json.Unmarshal(text, &p) == nil && p.Detail != "" {
		return fmt.Errorf("raise the fence at %s: %s: %s", req.URL.Redacted(), resp.Status, p.Detail)
	}
	return fmt.Errorf("raise the fence at %s: %s: no fence answers there: wrap the server's handler with httpfence",
		req.URL.Redacted(), resp.Status)
}
