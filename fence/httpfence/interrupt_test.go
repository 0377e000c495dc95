package httpfence_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/httpfence"
)

// oldLeader serves one request under 7 that is interrupted by a Raise of 9, and gives its
// connection, with what was answered.
type oldLeader struct {
	conn net.Conn
	in   *bufio.Reader
}

func (o *oldLeader) send(t *testing.T, token primacy.Token, length int, body string) {
	t.Helper()
	if _, err := fmt.Fprintf(o.conn, "POST / HTTP/1.1\r\nHost: x\r\nPrimacy-Name: x\r\nPrimacy-Token: %s\r\nContent-Length: %d\r\n\r\n%s", token, length, body); err != nil {
		t.Fatal(err)
	}
}

func (o *oldLeader) answer(t *testing.T) (code int, text string, closes bool) {
	t.Helper()
	_ = o.conn.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(o.in, nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), resp.Close
}

// What a handler has done when the newer leader comes decides what becomes of its connection:
// either it is closed, or the requests that follow on it, the newer leader's through a proxy, are
// served as if nothing had been.
func TestAnInterruptedConnectionIsClosedOrSound(t *testing.T) {
	started := make(chan struct{}, 1)
	wait := func(r *http.Request) { started <- struct{}{}; <-r.Context().Done() }
	for what, c := range map[string]struct {
		sent   string // of 5 bytes
		handle http.HandlerFunc
		closes bool
	}{
		"body read": {"hello", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			wait(r)
			_, _ = io.WriteString(w, "done")
		}, false},
		"body read, header written": {"hello", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			wait(r)
			_, _ = io.WriteString(w, "done")
		}, false},
		"body there, not read": {"hello", func(w http.ResponseWriter, r *http.Request) { wait(r); _, _ = io.WriteString(w, "done") }, true},
		"body there, read afterwards": {"hello", func(w http.ResponseWriter, r *http.Request) {
			wait(r)
			_, _ = io.ReadAll(r.Body)
			_, _ = io.WriteString(w, "done")
		}, true},
		"body there, header written": {"hello", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			wait(r)
			_, _ = io.WriteString(w, "done")
		}, false},
		"half a body": {"he", func(w http.ResponseWriter, r *http.Request) {
			started <- struct{}{}
			if _, err := io.ReadAll(r.Body); err == nil {
				t.Error("half a body was read to its end")
			}
			_, _ = io.WriteString(w, "done")
		}, true},
		"half a body, header written": {"he", func(w http.ResponseWriter, r *http.Request) {
			started <- struct{}{}
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush() // wants the body first
			_, _ = io.WriteString(w, "done")
		}, true},
		"nothing written": {"he", func(_ http.ResponseWriter, r *http.Request) { wait(r) }, true},
		"full duplex": {"he", func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			started <- struct{}{}
			_, _ = io.ReadAll(r.Body)
			_, _ = io.WriteString(w, "done")
		}, true},
	} {
		t.Run(what, func(t *testing.T) {
			srv := httptest.NewServer((&httpfence.Fence{Name: "x", Memory: &memory{}}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if s, _ := httpfence.StampOf(r.Context()); s.Token == 7 {
					c.handle(w, r)
					return
				}
				_, _ = io.ReadAll(r.Body)
				fmt.Fprint(w, context.Cause(r.Context()))
			})))
			defer srv.Close()
			conn, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			o := &oldLeader{conn, bufio.NewReader(conn)}
			o.send(t, 7, 5, c.sent)
			receive(t, "request", started)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := httpfence.Raise(ctx, client(9), srv.URL); err != nil {
				t.Fatal(err)
			}
			if _, _, closes := o.answer(t); closes != c.closes {
				t.Errorf("the interrupted request's connection is closed: %v, want %v", closes, c.closes)
			}
			if c.closes {
				return
			}
			time.Sleep(1100 * time.Millisecond) // the second that its answer had
			for range 3 {
				o.send(t, 9, 4, "next")
				if code, text, _ := o.answer(t); code != 200 || text != "<nil>" {
					t.Errorf("the next request on the connection: %d, its context: %s", code, text)
				}
			}
		})
	}
}

// A handler that took over its connection, and waits for a client that says nothing, is interrupted
// as well.
func TestAHijackedConnectionDoesNotKeepTheNextLeaderOut(t *testing.T) {
	reading, ended := make(chan struct{}, 1), make(chan error, 1)
	srv := httptest.NewServer((&httpfence.Fence{Name: "x", Memory: &memory{}}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, in, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		reading <- struct{}{}
		_, err = in.ReadByte()
		ended <- err
	})))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	(&oldLeader{conn: conn}).send(t, 7, 0, "")
	receive(t, "request", reading)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := httpfence.Raise(ctx, client(9), srv.URL); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "end of the older handler", ended); err == nil {
		t.Error("the older handler read something")
	}
}

// A leader that knocks again and again does not give the handler it waits for another second each
// time.
func TestKnockingDoesNotExtendTheOldAnswer(t *testing.T) {
	started := make(chan struct{}, 1)
	srv := httptest.NewServer((&httpfence.Fence{Name: "x", Memory: &memory{}}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		started <- struct{}{}
		for range 200 { // more than the sockets hold
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})))
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	(&oldLeader{conn: conn}).send(t, 7, 2, "hi") // and never reads
	receive(t, "request", started)
	for end := time.Now().Add(15 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := httpfence.Raise(ctx, client(9), srv.URL)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still kept out after 15 s: %v", err)
		}
	}
}

// The answer to HEAD has no body; what was refused is told all the same.
func TestRefusalsOfHEAD(t *testing.T) {
	f := &httpfence.Fence{Name: "x", Memory: &memory{last: fence.Stamp{Name: "x", Token: 100, Origin: "etcd/a"}}}
	srv := httptest.NewServer(f.Wrap(http.NotFoundHandler()))
	defer srv.Close()
	head := func(s fence.Stamp) error {
		_, err := (&http.Client{Transport: &httpfence.Transport{Stamp: s}}).Head(srv.URL)
		return err
	}
	var other *fence.OriginError
	err := head(fence.Stamp{Name: "x", Token: 200, Origin: "etcd/b"})
	if !errors.As(err, &other) || *other != (fence.OriginError{Name: "x", Token: 200, Origin: "etcd/b", Largest: 100, Known: "etcd/a"}) || errors.Is(err, fence.ErrStale) {
		t.Errorf("another origin: %v", err)
	}
	var stale *fence.StaleError
	if err := head(fence.Stamp{Name: "x", Token: 50, Origin: "etcd/a"}); !errors.As(err, &stale) || *stale != (fence.StaleError{Name: "x", Token: 50, Largest: 100}) {
		t.Errorf("stale: %v", err)
	}
}

// A refusal whose reason cannot be read says nothing about newer leaders.
func TestARefusalThatCannotBeRead(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(httpfence.FenceHeader, "refused")
		w.Header().Set(httpfence.ProblemHeader, "urn:primacy:stale-token")
		w.WriteHeader(http.StatusPreconditionFailed)
	}))
	defer srv.Close()
	_, err := client(7).Post(srv.URL, "", strings.NewReader("x"))
	if err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("err = %v", err)
	}
}

type origin struct{}

func (origin) Origin() string { return "etcd/1" }

func TestAClientWithAnOrigin(t *testing.T) {
	var got fence.Stamp
	srv := httptest.NewServer((&httpfence.Fence{Name: term{}.Name(), Memory: &memory{}}).Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got, _ = httpfence.StampOf(r.Context())
	})))
	defer srv.Close()
	for _, c := range []struct {
		client *http.Client
		origin string
		want   error
	}{{httpfence.ClientFrom(term{}, nil), "", nil}, {httpfence.ClientFrom(term{}, origin{}), "etcd/1", nil}, {httpfence.Client(term{}), "etcd/1", fence.ErrOrigin}} {
		resp, err := c.client.Post(srv.URL, "", nil)
		if err == nil {
			resp.Body.Close()
		}
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || got.Origin != c.origin {
			t.Errorf("origin %q: %v, the handler saw %+v", c.origin, err, got)
		}
	}
}
