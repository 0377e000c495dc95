package redlockstore

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// server is one of the N. A call on one that does not answer fails at once, so that a silent
// minority costs one time-out and not one a call; a probe finds out when it answers again.
type server struct {
	s    *Store
	at   int
	addr string
	rdb  *redis.Client

	mu       sync.Mutex
	down     error         // why it gets no calls; nil while it answers
	probing  bool          // a probe runs
	runID    string        // of the process that answered last
	counts   time.Duration // by the boot clock, from when its answers count
	heardAt  time.Duration // by the boot clock, before the call that told
	heardMs  int64         // the server's own clock
	removals []*removal    // keys to be deleted
	removing bool          // somebody does so
}

// errNotReached is why a server is down that no answer has come from yet, good or bad.
var errNotReached = errors.New("has not answered yet")

func newServer(s *Store, at int) *server {
	v := &server{s: s, at: at, addr: s.cfg.Addrs[at]}
	v.down = &serverError{v.addr, errNotReached.Error(), errNotReached}
	o := v.options()
	o.OnConnect = v.onConnect
	v.rdb = redis.NewClient(o)
	return v
}

func (v *server) options() *redis.Options {
	c := v.s.cfg
	return &redis.Options{
		Addr: v.addr, Username: c.Username, Password: c.Password, DB: c.DB, Dialer: v.dial,
		Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true, PoolSize: 64, PoolTimeout: maxLimit, DialTimeout: maxLimit,
		MaxRetries: -1, DialerRetries: 1, // what a call may have done is accounted for call by call
	}
}

// dial connects. A failure is told by the first use of the connection: go-redis would write it to
// stderr.
func (v *server) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := (&net.Dialer{}).DialContext
	if v.s.cfg.TLS != nil {
		dial = (&tls.Dialer{Config: v.s.cfg.TLS}).DialContext
	}
	conn, err := dial(ctx, network, addr)
	if err != nil {
		idle, _ := net.Pipe()
		return &deadConn{idle, err}, nil
	}
	return conn, nil
}

// onConnect looks at the process that a new connection leads to. A restart ends all connections, so
// no answer of another process is taken for this one's.
func (v *server) onConnect(ctx context.Context, c *redis.Conn) error {
	info, err := c.Info(ctx, "server").Result()
	if err != nil && v.s.cfg.Guard < 0 && isReply(err) {
		return nil // nobody needs to know how long it has run
	}
	if err != nil {
		return err
	}
	f := fields(info)
	uptime, err := strconv.Atoi(f["uptime_in_seconds"])
	if f["run_id"] == "" || err != nil {
		return refusal("it does not tell in INFO since when it runs (run_id, uptime_in_seconds)")
	}
	if major, _, _ := strings.Cut(f["redis_version"], "."); atoi(major) < 6 {
		return refusal("it is Redis " + f["redis_version"] + ": 6.0 or newer is needed")
	}
	if f["redis_mode"] == "cluster" {
		return refusal("it is part of a Redis Cluster: name independent servers, or use redis:// with cluster=true")
	}
	if old := v.s.sameProcess(v, f["run_id"]); old != "" {
		return refusal("it is the same server as " + old + ", and would vote twice")
	}
	v.learnProcess(f["run_id"], time.Duration(uptime)*time.Second, boottime.Now())
	return nil
}

// learnProcess keeps from when on the process counts. What was restarted under our eyes is young
// whatever it says; uptimes are whole seconds, by a clock that may have been between two.
func (v *server) learnProcess(runID string, uptime, now time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if runID == v.runID {
		return
	}
	left := v.s.cfg.Guard + time.Second - uptime
	if v.runID != "" {
		left = v.s.cfg.Guard
	}
	if v.s.cfg.Guard < 0 {
		left = 0
	}
	v.runID, v.counts = runID, now+max(0, left)
}

// guarded is for how long the server's answers do not count yet. It is 0 or less where they do.
func (v *server) guarded(now time.Duration) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.counts - now
}

// state is nil while the server gets calls, else why not.
func (v *server) state() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.down
}

// unsent wraps the error of a call that was not made, or that the server refused before it began.
type unsent struct{ error }

func (e unsent) Unwrap() error { return e.error }

// call runs a script within limit. Its error names the server; only a reply of the server's
// (isReply) means that nothing more happens, unless it is unsent.
func (v *server) call(script *redis.Script, limit time.Duration, keys []string, args ...any) ([]any, error) {
	if err := v.state(); err != nil {
		return nil, unsent{err}
	}
	ctx, cancel := context.WithTimeout(v.s.ctx, limit)
	defer cancel()
	sent := boottime.Now()
	got, err := script.Run(ctx, v.rdb, keys, args...).Slice()
	if err == nil && len(got) == 0 {
		err = errors.New("answered with nothing")
	}
	if err == nil {
		ms, _ := got[0].(int64)
		v.heard(sent, ms)
		return got[1:], nil
	}
	if isRefusedAtOnce(err) {
		return nil, unsent{v.wrap(err)}
	}
	if err = v.wrap(err); !isReply(err) {
		v.fail(err)
	}
	return nil, err
}

// heard keeps what the server's clock showed. An answer that took long (a machine that slept
// between) would set latest too far ahead.
func (v *server) heard(sent time.Duration, ms int64) {
	if boottime.Now()-sent > maxLimit+maxLimit/4 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heardAt, v.heardMs = sent, ms
}

// latest is the moment, on the server's own clock, after which a call that is sent now with this
// limit must not do anything any more. Should that clock have moved on, the call does nothing
// either, and the next one goes by what it answered.
func (v *server) latest(limit time.Duration) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.heardMs + (boottime.Now() - v.heardAt + straying(limit)).Milliseconds()
}

// straying is for how long a call that was given up after limit may still be under way and do
// something.
func straying(limit time.Duration) time.Duration { return limit + 500*time.Millisecond }

// fail takes the server out until a probe has answered.
func (v *server) fail(err error) {
	v.mu.Lock()
	fresh := v.down == nil
	if fresh {
		v.down = err
	}
	v.mu.Unlock()
	if fresh {
		v.probe()
	}
}

// probe asks the server in the background until it answers.
func (v *server) probe() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.probing {
		return
	}
	v.probing = true
	v.s.run(func() {
		for pause := 20 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
			err := v.ask()
			v.mu.Lock()
			v.down, v.probing = err, err != nil
			v.mu.Unlock()
			v.s.wake()
			if err == nil {
				v.startRemoving()
				return
			}
			if storeutil.Sleep(v.s.ctx, pause) != nil {
				return
			}
		}
	})
}

// ask is one probe.
func (v *server) ask() error {
	ctx, cancel := context.WithTimeout(v.s.ctx, maxLimit)
	defer cancel()
	sent := boottime.Now()
	t, err := v.rdb.Time(ctx).Result()
	if err != nil {
		return v.wrap(err)
	}
	v.heard(sent, t.UnixMilli())
	return nil
}

// wrap names the server, and says which errors are final.
func (v *server) wrap(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		return &serverError{v.addr, "does not answer", err}
	}
	if isRefusedAtOnce(err) ||
		hasPrefix(err, "ERR The user executing the script can't", "ERR ACL failure in script") {
		if unfit := refusal(""); errors.As(err, &unfit) {
			return &serverError{v.addr, string(unfit), unfit}
		}
		return &serverError{v.addr, rootOf(err).Error(), driver.ErrRefused}
	}
	return &serverError{v.addr, err.Error(), err}
}

// isRefusedAtOnce says whether err refuses a user, a server or a call of which nothing was done.
func isRefusedAtOnce(err error) bool {
	return errors.Is(err, driver.ErrRefused) ||
		hasPrefix(err, "WRONGPASS", "NOAUTH", "NOPERM", "ERR invalid password", "ERR AUTH", "ERR DB index")
}

func hasPrefix(err error, prefixes ...string) bool {
	text := rootOf(err).Error()
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(text, p) })
}

// refusal is a driver.ErrRefused that wraps nothing: go-redis unwraps what a new connection meets
// with.
type refusal string

func (r refusal) Error() string { return string(r) }

func (r refusal) Is(target error) bool { return target == driver.ErrRefused }

// serverError is what one server said.
type serverError struct {
	addr, text string
	cause      error
}

func (e *serverError) Error() string { return e.addr + ": " + e.text }

func (e *serverError) Unwrap() error { return e.cause }

func rootOf(err error) error {
	for {
		in := errors.Unwrap(err)
		if in == nil {
			return err
		}
		err = in
	}
}

// isReply says whether the server has answered, with an error: the call is over there.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) || errors.Is(err, driver.ErrRefused)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// fields reads what INFO answers.
func fields(info string) map[string]string {
	f := map[string]string{}
	for line := range strings.SplitSeq(info, "\n") {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			f[k] = v
		}
	}
	return f
}

// deadConn is a connection that could not be made.
type deadConn struct {
	net.Conn // for all that does no I/O
	err      error
}

func (c *deadConn) Read([]byte) (int, error)  { return 0, c.err }
func (c *deadConn) Write([]byte) (int, error) { return 0, c.err }
