package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	tickMs     = 20  // see the package comment; an idle host takes 0.5 % of a core with this, and 1.5 % with half of it
	electionMs = 100 // the least lease is 1.5 times this, rounded up to whole seconds

	keepRevisions = 10_000    // what a watcher that was away can still be told; etcd compacts every 5 min
	maxData       = 512 << 20 // bytes; never reached by claims, which are small and compacted
	defragMiB     = 16        // a data file with more unused space than this is rewritten at start
	// raft entries, which a start must read again; above 5,000 etcd calls itself overloaded then
	snapshotAfter = 2_000
	segmentBytes  = 4 << 20 // of etcd's log
)

// smallSegments makes etcd's log grow in small steps. It allocates two segments ahead, of 64 MB
// each: 128 MB of a home directory for a handful of locks. The size is a variable of etcd's
// package, so it is set once, before the first start.
var smallSegments = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// errDirty marks a start that left goroutines and open files behind: trying again in this process
// would wait for itself.
var errDirty = errors.New("see etcd.log")

// host is etcd, running in this process.
type host struct {
	etcd   *embed.Etcd
	broken *breakage
	leases *renewals
	grpc   *grpc.Server
	log    *logFile
	failed chan error // one error, when etcd stopped by itself
	served chan struct{}
}

// startHost starts etcd on the data in d and returns once it answers on the socket. The caller
// holds the lock.
func startHost(ctx context.Context, d *dir, quota int64) (*host, error) {
	out, err := openLog(d.path(logName))
	if err != nil {
		return nil, d.unusable(err)
	}
	broken := newBreak()
	h := &host{broken: broken, log: out, failed: make(chan error, 1), served: make(chan struct{})}
	if h.etcd, err = start(ctx, d, quota, newLogger(out, broken), broken); err != nil {
		if !errors.Is(err, errDirty) {
			out.Close() // else etcd's goroutines may still write there
		}
		return nil, err
	}
	if h.leases, err = openRenewals(ctx, d, h.etcd.Server); err == nil {
		err = h.serve(d)
	}
	if err != nil {
		_ = h.stop()
		return nil, d.unusable(err)
	}
	return h, nil
}

// start makes the data where there is none, checks it, and starts etcd on it.
func start(ctx context.Context, d *dir, quota int64, lg *zap.Logger, broken *breakage) (*embed.Etcd, error) {
	if err := create(ctx, d, quota, lg, broken); err != nil {
		return nil, d.unstartable(err)
	}
	if err := checkData(ctx, d.path(dataName)); err != nil {
		return nil, fmt.Errorf("embedded store %s: %w", d.name, err)
	}
	etcd, err := launch(ctx, config(d, dataName, quota, lg), broken)
	if err != nil {
		return nil, d.unstartable(err)
	}
	return etcd, nil
}

// create makes the data of a store that has none, under another name until it is whole. An etcd
// that is killed before it has written its first entry leaves a log that names no member, and from
// that none ever starts again.
func create(ctx context.Context, d *dir, quota int64, lg *zap.Logger, broken *breakage) error {
	whole, unborn := d.path(dataName), d.path(newName)
	if _, err := os.Stat(filepath.Join(whole, "member")); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(unborn); err != nil { // nobody was ever answered from it
		return err
	}
	etcd, err := launch(ctx, config(d, newName, quota, lg), broken)
	if err != nil {
		return err
	}
	etcd.Close()
	if err := os.Rename(unborn, whole); err != nil {
		return err
	}
	f, err := os.Open(d.name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// unstartable turns etcd's words into a line that says what to do.
func (d *dir) unstartable(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errSilent) {
		return fmt.Errorf("embedded store %s: etcd was not ready in time: %w; is the disk very slow? See %s",
			d.name, err, d.path(logName))
	}
	for _, of := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, fs.ErrPermission} {
		if errors.Is(err, of) {
			return d.unusable(fmt.Errorf("etcd did not start: %w", err))
		}
	}
	return fmt.Errorf("embedded store %s: etcd did not start: %w: the data may be damaged or made by another version; "+
		"nothing was deleted: put %s back from a backup, or move it away to begin anew (tokens then start afresh)",
		d.name, err, d.path(dataName))
}

// config is etcd as the single member of its own cluster: no peers, and no listeners of its own.
// Not even loopback, where every user of the machine could reach it.
func config(d *dir, data string, quota int64, lg *zap.Logger) *embed.Config {
	c := embed.NewConfig()
	c.Name = "primacy"
	c.Dir = d.path(data)
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2380"}} // a name; nothing listens there
	c.AdvertiseClientUrls = []url.URL{{Scheme: "unix", Path: d.path(socketName)}}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	// Each new directory is another cluster. With a constant token all would have one ID, and a
	// token of a removed store could not be told from one of its successor.
	c.InitialClusterToken = rand.Text()
	c.TickMs, c.ElectionMs = tickMs, electionMs
	c.SnapshotCount = snapshotAfter
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModeRevision, fmt.Sprint(keepRevisions)
	c.BootstrapDefragThresholdMegabytes = defragMiB
	c.QuotaBackendBytes = quota
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(lg)
	return c
}

// launch starts etcd in a goroutine of its own, because etcd gives up on damaged data by ending the
// process; our logger ends the goroutine instead, and it may be any of etcd's.
func launch(ctx context.Context, c *embed.Config, broken *breakage) (*embed.Etcd, error) {
	smallSegments()
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	done := make(chan result, 1)
	go func() {
		r := result{err: errDirty}
		defer func() {
			if p := recover(); p != nil {
				r = result{err: fmt.Errorf("%v (%w)", p, errDirty)}
			}
			done <- r
		}()
		debug.SetPanicOnFault(true) // data cut short under the memory map
		r.etcd, r.err = embed.StartEtcd(c)
	}()
	var r result
	select {
	case r = <-done:
	case <-broken.happened:
	case <-ctx.Done():
		// A start cannot be interrupted, and takes a tenth of a second. To return now would let the
		// next host, which gets the lock, meet an etcd that is just beginning.
		select {
		case r = <-done:
		case <-broken.happened:
		case <-time.After(stopLimit):
			return nil, fmt.Errorf("%w, and etcd has not come up to be stopped (%w)", context.Cause(ctx), errDirty)
		}
	}
	if err := broken.err(); err != nil {
		return nil, fmt.Errorf("%w (%w)", err, errDirty)
	}
	if r.err != nil {
		return nil, r.err
	}
	select {
	case <-r.etcd.Server.ReadyNotify():
		return r.etcd, nil
	case <-broken.happened:
		return nil, fmt.Errorf("%w (%w)", broken.err(), errDirty)
	case <-ctx.Done():
		r.etcd.Close()
		return nil, context.Cause(ctx)
	}
}

// serve listens on the socket. The listener is ours and not etcd's, which would also speak HTTP
// there, give the socket the process's umask, and wait up to 7 s for open watches when it stops.
func (h *host) serve(d *dir) error {
	// A host that was killed leaves its socket. Nobody else listens: we hold the lock.
	if err := os.Remove(d.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: d.socket()})
	if err != nil {
		return err
	}
	// If the directory was replaced, another store's socket has the name by the time we close ours.
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(d.socket(), 0o600); err != nil {
		listener.Close()
		return err
	}
	pings := keepalive.EnforcementPolicy{
		// etcd's own limit of 5 s would cut off a client that pings often, as one with a short TTL
		// must.
		MinTime: 100 * time.Millisecond, PermitWithoutStream: true,
	}
	h.grpc = v3rpc.Server(h.etcd.Server, nil, h.leases.granted, grpc.KeepaliveEnforcementPolicy(pings),
		grpc.ChainStreamInterceptor(h.leases.renewed))
	go func() {
		defer close(h.served)
		_ = h.grpc.Serve(listener) // until h.stop
	}()
	go h.watch()
	go keepSmall(h.etcd.Server)
	return nil
}

// watch reports the end of etcd.
func (h *host) watch() {
	select {
	case <-h.broken.happened:
		h.failed <- h.broken.err()
	case <-h.etcd.Server.StopNotify():
		err := h.broken.err()
		if err == nil {
			err = errors.New("it ended without a reason")
		}
		h.failed <- err
	}
}

// stop ends etcd, within stopLimit. After an error it may still run, and has its files open.
func (h *host) stop() error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if h.grpc != nil {
			h.grpc.Stop() // at once: watches never end by themselves
			<-h.served
		}
		h.etcd.Close()
		if h.leases != nil {
			h.leases.close()
		}
		h.log.Close()
	}()
	wait := stopLimit
	if h.broken.err() != nil {
		wait = brokenLimit
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-done:
		return nil
	case <-limit.C:
		return fmt.Errorf("etcd did not stop within %v: its data is free for others when this process ends", wait)
	}
}

// healEvery is how often a host looks whether its data is full.
const healEvery = 2 * time.Second

// keepSmall drops old revisions at once: etcd does so every 5 min, which a host that never lives
// that long does not see, and the data of a thousand short runs would only ever grow. Then it heals
// the store whenever it is full, until etcd stops.
func keepSmall(s *etcdserver.EtcdServer) {
	compact(s, keepRevisions)
	tick := time.NewTicker(healEvery)
	defer tick.Stop()
	for {
		// etcd raises the alarm at the first write after the one that filled it, so once at the
		// start is not enough.
		if len(s.Alarms()) > 0 {
			heal(s)
		}
		select {
		case <-tick.C:
		case <-s.StoppingNotify():
			return
		}
	}
}

// compact forgets all but the last keep revisions. It returns when they are gone from the data.
func compact(s *etcdserver.EtcdServer, keep int64) {
	ctx, cancel := context.WithTimeout(context.Background(), s.Cfg.ReqTimeout())
	defer cancel()
	if rev := s.KV().Rev() - keep; rev > 1 {
		// An error: compacted before, or stopping.
		_, _ = s.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: true})
	}
}

// heal frees all the space that can be freed, and lets writes in again. etcd refuses them for ever,
// also after a restart, and from outside nobody would come to help: its usual tools know nothing of
// this socket.
func heal(s *etcdserver.EtcdServer) {
	compact(s, 0)
	if s.Backend().Defrag() != nil || s.Backend().Size() > s.Cfg.QuotaBackendBytes {
		return // what is left is in use
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Cfg.ReqTimeout())
	defer cancel()
	for _, a := range s.Alarms() {
		if a.Alarm == pb.AlarmType_NOSPACE {
			off := pb.AlarmRequest_DEACTIVATE
			_, _ = s.Alarm(ctx, &pb.AlarmRequest{Action: off, MemberID: a.MemberID, Alarm: a.Alarm})
		}
	}
}
