package redisstore

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/driver"
)

// reply is a script's answer.
type reply []any

// str, num and list return an element of the answer, the zero value where it has none.
func (r reply) str(i int) string {
	if i >= len(r) {
		return ""
	}
	switch v := r[i].(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	}
	return ""
}

func (r reply) num(i int) int64 {
	if i >= len(r) {
		return 0
	}
	switch v := r[i].(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

func (r reply) list(i int) reply {
	if i >= len(r) {
		return nil
	}
	v, _ := r[i].([]any)
	return v
}

// ms returns a number of milliseconds as a duration.
func (r reply) ms(i int) time.Duration { return time.Duration(r.num(i)) * time.Millisecond }

// server is where the store's scripts run.
type server struct {
	base     string // "{prefix}:"
	cluster  bool
	keys     []string // the keys that scripts name; see cluster.go
	replicas int
	names    string // the servers, for errors
	calls    *link  // all that is not a renewal
	renewals *link  // nothing may hold these up
	listener *listener
	publish  string // the command that pushes: SPUBLISH where channels belong to slots

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
}

func newServer(base, names string, cluster bool, replicas int, dial clientMaker) *server {
	s := &server{
		base: base, cluster: cluster, keys: keysOf(base, cluster), replicas: replicas, names: names,
		calls: newLink(dial, 0), renewals: newLink(dial, 3),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.listener = newListener(s)
	return s
}

// spawn runs do in a goroutine that close waits for, unless the store is closed already.
func (s *server) spawn(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(do)
	}
}

func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.calls.close()
	s.renewals.close()
	s.work.Wait()
}

// run runs a script on the server and returns its answer. A durable one counts only when the
// replicas have it too (Config.Replicas). When ctx ends it returns at once: the script may still
// run.
func (s *server) run(ctx context.Context, via *link, sc *script, durable bool, args ...any) (reply, error) {
	if s.ctx.Err() != nil {
		return nil, errClosed
	}
	var last error
	for range 2 {
		got, err := s.once(ctx, via, sc, durable, args)
		if err == nil {
			return got, nil
		}
		last = err
		// The first call after a restart of the server finds its connection closed: that is worth
		// another try.
		if movedAway(err) && ctx.Err() == nil {
			continue // the script has not begun, and the next client goes to the slot's server
		}
		closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
		if sc.once || ctx.Err() != nil || !closed {
			break
		}
	}
	return nil, s.wrap(ctx, sc.name, last)
}

// once is one try of run. It leaves the client if the call was given up or met the wrong server.
func (s *server) once(ctx context.Context, via *link, sc *script, durable bool, args []any) (reply, error) {
	client, begun := via.get(), time.Now()
	got, err := s.send(ctx, via, client, sc, durable, args)
	if err == nil {
		return got, nil
	}
	if s.ctx.Err() != nil {
		return nil, errClosed
	}
	if (ctx.Err() != nil || timeout(err)) && time.Since(begun) > tooSoon {
		via.leave(client)
	}
	if readOnly(err) || movedAway(err) {
		s.leave(via, client)
	}
	return got, err
}

// send sends a script and waits for its answer, or for the end of ctx or of the store.
func (s *server) send(
	ctx context.Context, via *link, client *redis.Client, sc *script, durable bool, args []any,
) (reply, error) {
	if d := s.direct(via, durable); d != nil {
		got, broken, err := d.eval(ctx, sc, s.keys, s.publish, args)
		via.give(d, broken)
		return got, err
	}
	type result struct {
		got reply
		err error
	}
	done := make(chan result, 1)
	go func() {
		got, err := s.eval(ctx, client, sc, durable, append([]any{s.publish}, args...))
		done <- result{got, err}
	}()
	select {
	case r := <-done:
		return r.got, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ctx.Done():
		return nil, errClosed
	}
}

// direct returns a connection for this call alone, or nil. Renewals do not need one, and WAIT needs
// a pipeline.
func (s *server) direct(via *link, durable bool) *direct {
	if via != s.calls || durable && s.replicas > 0 {
		return nil
	}
	return via.take(s.ctx, s.spawn)
}

// readOnly says whether the server is no primary any more: the next connection may find the new
// one.
func readOnly(err error) bool {
	return err != nil && (errors.Is(err, errReplica) || strings.Contains(err.Error(), "READONLY") ||
		strings.HasPrefix(err.Error(), "MASTERDOWN"))
}

var errReplica = errors.New("the server has become a replica")

// eval sends a script by its hash or, if the server does not know it yet, as text.
func (s *server) eval(
	ctx context.Context, client *redis.Client, sc *script, durable bool, args []any,
) (reply, error) {
	if durable && s.replicas > 0 {
		return s.evalWait(ctx, client, sc, args)
	}
	got, err := client.EvalSha(ctx, sc.sha(), s.keys, args...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		got, err = client.Eval(ctx, sc.text(), s.keys, args...).Result()
	}
	return parsed(got, err)
}

// evalWait sends a script and waits until the replicas have what it wrote. WAIT counts what its own
// connection wrote.
func (s *server) evalWait(ctx context.Context, client *redis.Client, sc *script, args []any) (reply, error) {
	limit := callLimit / 2
	if end, ok := ctx.Deadline(); ok {
		limit = max(min(limit, time.Until(end)*3/4), time.Millisecond)
	}
	for _, full := range []bool{false, true} {
		pipe := client.Pipeline()
		var eval *redis.Cmd
		if full {
			eval = pipe.Eval(ctx, sc.text(), s.keys, args...)
		} else {
			eval = pipe.EvalSha(ctx, sc.sha(), s.keys, args...)
		}
		acks := pipe.Do(ctx, "WAIT", s.replicas, limit.Milliseconds()+1)
		_, _ = pipe.Exec(ctx) // each command has its own error
		if !full && redis.HasErrorPrefix(eval.Err(), "NOSCRIPT") {
			continue
		}
		got, err := parsed(eval.Result())
		if err != nil || got.str(0) != "OK" {
			return got, err
		}
		n, err := acks.Int64()
		if err != nil {
			return nil, err
		}
		if n < int64(s.replicas) {
			return nil, fmt.Errorf("%d of %d replicas have acknowledged it: it does not count", n, s.replicas)
		}
		return got, nil
	}
	return nil, errors.New("the server forgets a script at once")
}

func parsed(got any, err error) (reply, error) {
	if err != nil {
		return nil, err
	}
	all, ok := got.([]any)
	if !ok {
		return nil, fmt.Errorf("an answer that no script of ours gives: %T", got)
	}
	if reply(all).str(0) == "REPLICA" {
		return nil, errReplica
	}
	return all, nil
}

// final returns [driver.ErrRefused] for an error of Redis that a repeated call would get again, and
// nil where the outcome is unknown.
func final(err error) error {
	if errors.Is(err, driver.ErrRefused) {
		return driver.ErrRefused
	}
	text := err.Error()
	for _, mark := range []string{"WRONGPASS", "NOAUTH", "NOPERM", "The user executing the script can't",
		"ACL failure in script", "invalid password", "invalid username-password",
		"AUTH <password> called without", "cluster support disabled", "DB index is out of range"} {
		if strings.Contains(text, mark) {
			return driver.ErrRefused
		}
	}
	return nil
}

// wrap returns the error of a call in one line, for people: which servers, which verb, what is
// wrong. It returns a context error only for the caller's own context: the caller would take the
// limit of one try for its own.
func (s *server) wrap(ctx context.Context, verb string, err error) error {
	if errors.Is(err, errClosed) {
		return err
	}
	if f := final(err); f != nil {
		return fmt.Errorf("redis %s: %s: %w: %s", s.names, verb, f, clean(err))
	}
	if ctx.Err() != nil {
		return fmt.Errorf("redis %s: %s: %w", s.names, verb, ctx.Err())
	}
	if errors.Is(err, context.DeadlineExceeded) || timeout(err) {
		return fmt.Errorf("redis %s: %s: no answer in time", s.names, verb)
	}
	return fmt.Errorf("redis %s: %s: %s", s.names, verb, clean(err))
}

// unexpected is the error for an answer that the caller does not know.
func (s *server) unexpected(verb string, got reply) error {
	if got.str(0) == "NOID" {
		return fmt.Errorf("redis %s: %s: %w: INFO replication tells no master_replid, "+
			"without which a failover cannot be noticed", s.names, verb, driver.ErrRefused)
	}
	return fmt.Errorf("redis %s: %s: the script answered %q", s.names, verb, got.str(0))
}

// clean returns an error's words in one line.
func clean(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// certificate says whether err is about certificates: then another try fails too.
func certificate(err error) bool {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var host x509.HostnameError
	return errors.As(err, &unknown) || errors.As(err, &invalid) || errors.As(err, &host) ||
		strings.Contains(err.Error(), "tls: ")
}
