package leaderelection

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Managed has a controller-runtime manager lead under a term of this package. The manager stays as
// it is, with its runnables, caches and webhooks; only three of its options and its start change:
//
//	lead, err := leaderelection.NewManaged(config, namespace, name)
//	...
//	mgr, err := ctrl.NewManager(config, ctrl.Options{
//		LeaderElection:                      true,
//		LeaderElectionResourceLockInterface: lead.Lock(),
//		BaseContext:                         lead.Context,
//	})
//	...
//	err = lead.Run(ctx, mgr.Start) // was mgr.Start(ctx)
//
// The election stands on the Lease of that name, as before. Managers with and without it stand in
// one election.
//
// It serves whatever else runs client-go's elector by itself and takes a lock for it.
type Managed struct {
	// Config is what Run stands with: Kubernetes' 15 s, 10 s and 2 s, and ReleaseOnCancel. It may
	// be changed before Run. Of its Callbacks only OnNewLeader is called.
	Config LeaderElectionConfig

	began       atomic.Bool
	elector     atomic.Pointer[LeaderElector] // from Run on
	context     context.Context               // ends when the term is lost, and when Run has returned
	end         context.CancelFunc
	isUsed      onceChan // the manager has made an elector with the lock
	isReady     onceChan // the manager wants to lead
	isElected   onceChan
	ending      chan struct{} // nil: whoever waits for it does until the process ends
	exit        func()
	makeElector func(LeaderElectionConfig) (*LeaderElector, error)
}

// NewManaged returns an election on the Lease of that name, of which nothing is asked before Run.
// Without a namespace it is that of the pod. The identity is the name of the host with a UUID. The
// error says that the namespace is not known, or that config cannot be.
//
// The election has connections of its own, by HTTP/1.1: there a call that is not answered in time
// takes its connection with it, and the next renewal goes over a new one.
func NewManaged(config *rest.Config, namespace, name string) (*Managed, error) {
	if namespace == "" {
		b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
		if err != nil {
			return nil, fmt.Errorf("leaderelection: name the Lease's namespace, for this is no pod: %w", err)
		}
		namespace = strings.TrimSpace(string(b))
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("leaderelection: %w", err)
	}
	own := rest.AddUserAgent(rest.CopyConfig(config), "leader-election") // it changes what it is given
	own.NextProtos = []string{"http/1.1"}
	own.RateLimiter, own.QPS, own.Burst = nil, 0, 0 // the manager's calls would use it up
	own.Timeout = 0                                 // it would end watches; each call has a limit of its own
	client, err := coordinationv1client.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("leaderelection: %w", err)
	}
	lock := &rl.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Client: client,
		LockConfig: rl.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}}
	return newManaged(LeaderElectionConfig{Lock: lock, Name: name, LeaseDuration: 15 * time.Second,
		RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true}), nil
}

func newManaged(lec LeaderElectionConfig) *Managed {
	m := &Managed{Config: lec, exit: exitProcess, makeElector: NewLeaderElector,
		isUsed: newOnceChan(), isReady: newOnceChan(), isElected: newOnceChan()}
	m.context, m.end = context.WithCancel(context.Background())
	return m
}

// Lock returns what the manager's LeaderElectionResourceLockInterface must be. Whoever waits for it
// waits until this process leads.
func (m *Managed) Lock() rl.Interface { return managedLock{m} }

// Context is for the manager's BaseContext. The context of every runnable is then made from it, and
// ends when the term is lost. Without it a manager ends the contexts of what leads only after what
// runs everywhere has returned.
func (m *Managed) Context() context.Context { return m.context }

// IsLeader is [LeaderElector.IsLeader]: ask it before each act that nobody else may do.
func (m *Managed) IsLeader() bool {
	le := m.elector.Load()
	return le != nil && le.IsLeader()
}

// Token is [LeaderElector.Token].
func (m *Managed) Token() uint64 {
	if le := m.elector.Load(); le != nil {
		return le.Token()
	}
	return 0
}

// For how long Run waits for the manager to ask for the lock. A manager does so as it starts.
const usedLimit = 30 * time.Second

// Run starts the manager, by its Start, and returns when that has returned and the Lease is
// released. It can be called once. The manager's caches and webhooks, and what needs no leader, run
// from the start; what needs one begins in the term, and its context ends
//
//   - when ctx ends: the Lease is renewed for as long as the manager stops;
//   - RenewDeadline after the last renewal, or at once when the Lease turns out to be another's.
//     Then Run returns an error. If the manager has not returned when nine tenths of LeaseDuration
//     are over since that renewal, this process exits with status 122: another may lead then.
//
// The Lease is released when all that the manager started has returned. Where it gives up waiting,
// after its GracefulShutdownTimeout, Run returns its error, and the Lease is renewed until this
// process ends: let it end. So it does for an error of a runnable that wraps DeadlineExceeded,
// which cannot be told from that. A GracefulShutdownTimeout of zero cannot be told from one that
// was kept: then the Lease would be released beside what still runs.
//
// It writes to the logger of ctx, or else to klog's.
//
// An error that the manager returns is returned as it is. One of Run's own says that Config cannot
// be, that the manager does not use the lock, or that leadership was lost. In all these cases let
// the process end, as a manager cannot be started again.
func (m *Managed) Run(ctx context.Context, start func(context.Context) error) error {
	if m.began.Swap(true) {
		return errors.New("leaderelection: this Managed has run before: make a new one, and a new manager")
	}
	defer m.end()
	r := &managedRun{m: m, returned: make(chan struct{})}
	running, stop := context.WithCancel(ctx)
	defer stop()
	standing, resign := context.WithCancel(context.WithoutCancel(ctx))
	r.stop, r.resign = stop, resign
	lec := m.Config
	lec.Callbacks.OnStartedLeading, lec.Callbacks.OnStoppedLeading = r.lead, r.stopped
	le, err := m.makeElector(lec)
	if err != nil {
		resign()
		return fmt.Errorf("leaderelection: %w", err)
	}
	if lec.WatchDog != nil {
		lec.WatchDog.SetLeaderElection(le)
	}
	m.elector.Store(le)
	go func() {
		defer close(r.returned)
		r.err = start(running)
	}()
	if wants, err := r.awaitManager(); !wants {
		resign()
		return err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for standing.Err() == nil && r.phase.Load() == standsBy { // a term may be over before its work begins
			le.Run(standing)
		}
	}()
	defer context.AfterFunc(ctx, r.withdraw)()
	<-r.returned
	r.withdraw()
	if r.mayRun() {
		return fmt.Errorf("leaderelection: what the manager started may still run, so the Lease is kept until this "+
			"process ends: %w", r.err)
	}
	<-over
	switch {
	case !r.lost.Load():
		return r.err
	case r.err == nil || errors.Is(r.err, context.Canceled):
		return fmt.Errorf("leaderelection: leadership of %s is lost", lec.Lock.Describe())
	}
	return fmt.Errorf("leaderelection: leadership of %s is lost: %w", lec.Lock.Describe(), r.err)
}

// managedRun is a call of Run.
type managedRun struct {
	m            *Managed
	stop, resign context.CancelFunc // end the manager's context, and the elector's
	phase        atomic.Int32
	lost         atomic.Bool   // the term ended before the manager had returned
	done         atomic.Bool   // the work of the term is over, and nothing of it is left
	returned     chan struct{} // closed when the manager has returned, with err
	err          error
}

const (
	standsBy  = iota
	leads     // or has led
	withdrawn // will not lead
)

// awaitManager waits until the manager wants to lead. The error is why it does not: its own, or
// that it does not use the lock.
func (r *managedRun) awaitManager() (wants bool, err error) {
	limit := time.NewTimer(usedLimit)
	defer limit.Stop()
	select {
	case <-r.m.isUsed.c:
	case <-r.m.isReady.c:
	case <-r.returned:
	case <-limit.C:
		return false, errors.New("leaderelection: the manager does not use this election, and may have started " +
			"everything: in its Options set LeaderElection to true, and LeaderElectionResourceLockInterface to Lock()")
	}
	select {
	case <-r.m.isReady.c:
		return true, nil
	case <-r.returned:
		return false, r.err
	}
}

// withdraw has this process not lead if it does not yet.
func (r *managedRun) withdraw() {
	if r.phase.CompareAndSwap(standsBy, withdrawn) {
		r.resign()
	}
}

// lead is the work of the term: it returns when nothing that the manager started is left.
func (r *managedRun) lead(term context.Context) {
	if !r.phase.CompareAndSwap(standsBy, leads) {
		return
	}
	// Nobody but this function ends the elector's context from now on.
	end := context.AfterFunc(term, func() {
		r.lost.Store(true)
		r.m.end()
		r.stop()
	})
	r.m.isElected.close()
	<-r.returned
	end()
	if r.mayRun() {
		<-r.m.ending
	}
	r.done.Store(true)
	r.resign()
}

// What controller-runtime's manager says when the elector in it gave up. Then it waits for nothing.
const managerLost = "leader election lost"

// mayRun says, once the manager has returned, whether something may be left that runs in the term.
// A manager that gave up waiting says so by an error that wraps DeadlineExceeded. The elector in it
// gives up where the process stood still for its RenewDeadline in the midst of a renewal.
func (r *managedRun) mayRun() bool {
	return r.phase.Load() == leads && r.err != nil &&
		(errors.Is(r.err, context.DeadlineExceeded) || strings.Contains(r.err.Error(), managerLost))
}

// stopped is called when others may lead.
func (r *managedRun) stopped() {
	if r.phase.Load() == leads && !r.done.Load() {
		r.m.exit()
	}
}

// exitProcess ends the process, with the status that work has which outlives its right.
func exitProcess() {
	time.AfterFunc(100*time.Millisecond, func() { os.Exit(122) }) // stderr may block
	fmt.Fprintln(os.Stderr,
		"leaderelection: the manager still runs although leadership is over: this process ends itself")
	os.Exit(122)
}

// managedLock is what client-go's elector in the manager gets. It hears nothing until this process
// leads, and from then on that it does. The manager hears the end of the term by its contexts: the
// elector would notice it late, and then the manager would wait for nothing.
type managedLock struct{ m *Managed }

// Get waits until this process leads. Where ctx ends before, the Lease is another's. A leader that
// hears so by chance, as ctx has ended too, would wait for nothing.
func (l managedLock) Get(ctx context.Context) (*rl.LeaderElectionRecord, []byte, error) {
	l.m.isReady.close()
	r := rl.LeaderElectionRecord{HolderIdentity: l.Identity(), LeaseDurationSeconds: 1}
	select {
	case <-l.m.isElected.c:
	case <-ctx.Done():
		select {
		case <-l.m.isElected.c: // it comes first
		default:
			r.HolderIdentity = "another"
		}
	}
	raw, err := json.Marshal(r)
	return &r, raw, err
}

// Create succeeds: it is not called before Get has returned.
func (l managedLock) Create(context.Context, rl.LeaderElectionRecord) error { return nil }

// Update succeeds, also a release: Run releases the Lease when the manager has returned.
func (l managedLock) Update(context.Context, rl.LeaderElectionRecord) error { return nil }

// RecordEvent does nothing: the elector of this package records events.
func (l managedLock) RecordEvent(string) {}

// Identity is that of the Lease's lock.
func (l managedLock) Identity() string {
	if l.m.began.Load() { // before, it is no manager that asks
		l.m.isUsed.close()
	}
	return l.m.Config.Lock.Identity()
}

// Describe is that of the Lease's lock.
func (l managedLock) Describe() string { return l.m.Config.Lock.Describe() }

// onceChan is a channel that may be closed more than once.
type onceChan struct {
	c    chan struct{}
	once *sync.Once
}

func newOnceChan() onceChan { return onceChan{make(chan struct{}), new(sync.Once)} }

func (o onceChan) close() { o.once.Do(func() { close(o.c) }) }
