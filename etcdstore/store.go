package etcdstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// The store's limits. Below minLease etcd ends no lease in time: a session has a heartbeat instead
// (see heartbeat). Above maxTTL etcd's lease checkpoints count: a checkpoint that is applied after
// a renewal can set the lease back to the time left before that renewal.
const (
	minTTL   = 300 * time.Millisecond
	minLease = 2 * time.Second
	maxTTL   = 300 * time.Second
)

// Store is a [driver.Store] on etcd. It is a [driver.Asker], [driver.Journal], [driver.LeaseViewer]
// and [driver.Admin] too.
type Store struct {
	layout     // where its keys lie
	*journal   // the methods of driver.Journal
	caps       driver.Caps
	wire       *etcdwire.Wire
	owners     owners // of sessions, remembered for Line
	lastList   lastList
	liveness   *livenessWatches
	heartbeats bool             // every session gets a heartbeat
	owned      *clientv3.Client // made by Open, nil if the caller's

	lineReads chan struct{} // a semaphore: has a value for each read under way (see startLineRead)

	unverified bool // tests only: takes etcd's keepalive at its word, to show what that costs
}

// Options is how a Store uses a client. The zero value works.
type Options struct {
	Prefix    string // what all keys begin with; "primacy/" if empty, ends in "/"
	RefuseOld bool   // refuse servers whose linearizable reads can be stale after a pause, instead of a warning in Caps

	// Heartbeat keeps the ttl of every session by a heartbeat key, as is done anyhow below 2 s. The
	// next in line, if it uses this package, takes over 1.12 × ttl after the last renewal before a
	// crash. That is about 1.02 × ttl after the crash, for the renewal was a while ago: 0.31 s at
	// 300 ms, where etcd takes up to a second longer. Who tries at least once in 2 × ttl takes over
	// as soon. Where nobody waits or tries, a crashed session stands until its etcd lease ends,
	// after 10 s or 4 × ttl, whichever is longer. The largest ttl is 75 s.
	//
	// It costs a write each renewal, and a change of etcd's leader ends terms whose ttl is about a
	// second or less. A write takes some 100 bytes of etcd's database until history is compacted,
	// 145 MB a day at 300 ms: set etcd's --auto-compaction-retention. While etcd is full (NOSPACE)
	// sessions with heartbeats end. Others live on until etcd's leader changes: each must then get
	// a new etcd lease, which a full etcd does not grant. Make space before you restart the leader.
	//
	// With passwords use 600 ms or more: when users or roles change all clients log in anew, which
	// takes etcd about 0.1 s of a processor.
	//
	// The clock of a process that waits may run at most 1.12 ÷ (1 − drift) times as fast as the
	// holder's. With the default drift, 0.10, that is 1.24 times.
	Heartbeat bool
}

// Config is how Open reaches etcd. Endpoints are required.
type Config struct {
	Endpoints   []string      // "host:port" or URLs
	Username    string        // with Password, for clusters with authentication
	Password    string        //
	TLS         *tls.Config   // nil: plain, or the system's roots where an endpoint says https
	DialTimeout time.Duration // for one try to log in, 2 s if zero
	Options
}

// New returns a store on a client, which stays the caller's: close it after the store. Only the
// client's endpoints, credentials and dial options are used, so a namespace wrapper has no effect.
// Do not give it grpc.WithBlock: with client 3.6 and older every call would wait for a dial, past
// its context.
//
// New asks a member for its version. An error names the endpoints. It is [driver.ErrRefused] for a
// wrong password or certificate, and with RefuseOld for an old server. When ctx ends, New returns
// its error and leaves nothing running.
func New(ctx context.Context, client *clientv3.Client, o Options) (*Store, error) {
	if o.Prefix == "" {
		o.Prefix = "primacy/"
	}
	if !strings.HasSuffix(o.Prefix, "/") {
		return nil, fmt.Errorf("etcd: prefix %q must end in \"/\": %w", o.Prefix, driver.ErrRefused)
	}
	if client == nil || len(client.Endpoints()) == 0 {
		return nil, fmt.Errorf("etcd: no endpoints: %w", driver.ErrRefused)
	}
	s := build(client, o)
	version, err := s.wire.Open(ctx)
	if err == nil {
		s.caps, err = capsOf(version, o.RefuseOld)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func build(client *clientv3.Client, o Options) *Store {
	k, w := layout{o.Prefix}, etcdwire.New(client, o.Prefix)
	s := &Store{layout: k, wire: w, journal: newJournal(k, w), heartbeats: o.Heartbeat,
		lineReads: make(chan struct{}, maxLineReads)}
	s.liveness = &livenessWatches{s: s, by: map[string]*livenessWatch{}}
	return s
}

// Open makes a client of its own and returns a store on it; Close ends both. It returns what New
// returns.
func Open(ctx context.Context, c Config) (*Store, error) {
	if len(c.Endpoints) == 0 {
		return nil, fmt.Errorf("etcd: no endpoints: %w", driver.ErrRefused)
	}
	client, err := login(ctx, c)
	if err != nil {
		return nil, err
	}
	s, err := New(ctx, client, c.Options)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.owned = client
	return s, nil
}

// login makes a client. With a password the client logs in at once, at a member that may be frozen.
// So login tries once for each endpoint and once more, each try with a limit.
func login(ctx context.Context, c Config) (*clientv3.Client, error) {
	if c.DialTimeout == 0 {
		c.DialTimeout = 2 * time.Second
	}
	if c.Username != "" {
		err := handshake(ctx, c)
		// etcd may refuse a handshake because it bears no user; the login then shows more.
		needsUser := errors.Is(err, driver.ErrRefused) && !errors.Is(err, etcdwire.ErrTLS)
		if err != nil && !needsUser {
			return nil, err
		}
	}
	var last error
	for range len(c.Endpoints) + 1 {
		client, err := dial(ctx, c)
		if err == nil {
			return client, nil
		}
		if last = err; ctx.Err() != nil || etcdwire.Final(err) != nil {
			break
		}
	}
	return nil, etcdwire.Wrap(ctx, strings.Join(c.Endpoints, ", "), "log in", last)
}

// handshake asks for a version without logging in. The client would retry a login until its time is
// over, and a certificate that is never accepted would look like silence.
func handshake(ctx context.Context, c Config) error {
	c.Username, c.Password = "", ""
	client, err := dial(ctx, c)
	if err != nil {
		return etcdwire.Wrap(ctx, strings.Join(c.Endpoints, ", "), "dial", err)
	}
	defer client.Close()
	w := etcdwire.New(client, c.Prefix)
	defer w.Close()
	_, err = w.Open(ctx)
	return err
}

// dial is one try of login. The client's context must outlive ctx, so ctx cancels it only while
// dial runs.
func dial(ctx context.Context, c Config) (*clientv3.Client, error) {
	base, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	opts := []grpc.DialOption{grpc.WithChainUnaryInterceptor(logins)}
	if c.TLS != nil && c.TLS.ServerName != "" {
		// The client names each member by its address, and that name wins over the configuration's.
		opts = append(opts, grpc.WithAuthority(c.TLS.ServerName))
	}
	client, err := clientv3.New(clientv3.Config{
		Context: base, Endpoints: c.Endpoints, Username: c.Username, Password: c.Password, TLS: c.TLS,
		DialTimeout: c.DialTimeout, Logger: zap.NewNop(),
		// Finds dead connections that carry a stream. Servers close connections that ask more
		// often than each 5 s.
		DialKeepAliveTime: 6 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: opts,
	})
	if !stop() && err == nil {
		client.Close()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
	}
	return client, err
}

// logins gives a request for an auth token several tries. The client asks for a token for each new
// stream, at any member. With one member of three frozen, every third renewal stream would hang in
// that request.
func logins(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, do grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if method != "/etcdserverpb.Auth/Authenticate" {
		return do(ctx, method, req, reply, cc, opts...)
	}
	for limit := 500 * time.Millisecond; ; limit *= 2 {
		tctx, cancel := context.WithTimeout(ctx, limit)
		err := do(tctx, method, req, reply, cc, opts...)
		late := tctx.Err() != nil && ctx.Err() == nil
		cancel()
		if !late || err == nil || limit > etcdwire.CallLimit {
			return err
		}
	}
}

// Caps implements [driver.Store].
func (s *Store) Caps() driver.Caps { return s.caps }

func capsOf(version string, refuseOld bool) (driver.Caps, error) {
	c := driver.Caps{
		Store: "etcd " + version, FIFO: true, Token: driver.TokenDurable, Push: true, ExpiryPush: true,
		SharedRenewal: true, Shared: true, Gathers: true, Linearizable: true, MinTTL: minTTL, MaxTTL: maxTTL,
	}
	why := etcdwire.Warning(version)
	switch {
	case why == "":
		return c, nil
	case refuseOld:
		return c, fmt.Errorf("%w: %s", driver.ErrRefused, why)
	}
	c.Warnings = append(c.Warnings, why)
	return c, nil
}

// Close ends the store's streams and connections, and the client if Open made it. Leases stay
// until they end.
func (s *Store) Close() error {
	s.wire.Close()
	s.lastList.forget()
	if s.owned == nil {
		return nil
	}
	// The client reports its own cancelled context, which is no fault.
	if err := s.owned.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("etcd: close: %w", err)
	}
	return nil
}

// startLineRead waits until one more read of a waiter's line, or of a record by News, may begin.
// The caller calls done after its read.
func (s *Store) startLineRead(ctx context.Context) (done func(), err error) {
	select {
	case s.lineReads <- struct{}{}:
		return func() { <-s.lineReads }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.wire.Context().Done():
		return nil, etcdwire.ErrClosed
	}
}
