//go:build linux

package peerstest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	orig "k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/leaderelection"
)

// workerEnv makes this binary a worker.
const workerEnv = "ELECTORS_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) == "" {
		os.Exit(m.Run())
	}
	log.SetFlags(log.Lmicroseconds)
	if err := runWorker(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

const actEvery = 5 * time.Millisecond

// What a worker writes down, in files that all workers of an election append to: "boot_ns token id"
// in two of them, every few milliseconds while it leads, with the clock read before it asked; and
// "boot_ns what id token" when something begins or ends.
const (
	byContext = "acts-by-context" // while the context of OnStartedLeading is alive
	asked     = "acts-asked"      // while besides IsLeader says yes
	events    = "events"
)

// Events.
const (
	stands   = "stands"   // it is about to stand, and heeds signals
	started  = "started"  // OnStartedLeading was called
	stopped  = "stopped"  // its context has ended, or its process is to end
	released = "released" // the Lease was released by a write that was sent then
)

// worker stands in one election until it has led or gets SIGTERM, and ends: so Kubernetes' own
// components do.
type worker struct {
	elector, id string
	acts, asked *os.File
	events      *os.File
	stand       interface {
		Run(context.Context)
		IsLeader() bool
	}
	stop    context.Context // the process is to end
	working chan struct{}   // closed when the work has ended
	wins    atomic.Uint64   // leaseTransitions of the record that was written last, and one more
}

func runWorker(args []string) error {
	w := &worker{working: make(chan struct{})}
	f := flag.NewFlagSet("worker", flag.ContinueOnError)
	f.StringVar(&w.elector, "elector", "", "client-go or primacy")
	f.StringVar(&w.id, "id", "", "of this candidate")
	server := f.String("server", "", "URL of the API server")
	ca := f.String("ca", "", "file with its certificate authority")
	name := f.String("name", "", "of the Lease")
	lease := f.Duration("lease", 15*time.Second, "LeaseDuration")
	renew := f.Duration("renew", 10*time.Second, "RenewDeadline")
	retry := f.Duration("retry", 2*time.Second, "RetryPeriod")
	release := f.Bool("release", false, "ReleaseOnCancel")
	limit := f.Duration("limit", 0, "of a request; 0: none")
	dir := f.String("dir", "", "folder of the records")
	if err := f.Parse(args); err != nil {
		return err
	}
	for file, name := range map[**os.File]string{&w.acts: byContext, &w.asked: asked, &w.events: events} {
		var err error
		if *file, err = os.OpenFile(filepath.Join(*dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return err
		}
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: *server, BearerToken: k8stest.UserToken,
		Timeout: *limit, TLSClientConfig: rest.TLSClientConfig{CAFile: *ca},
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}})
	if err != nil {
		return err
	}
	lock := &rl.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: k8stest.Namespace, Name: *name},
		Client: observed{client.CoordinationV1(), w}, LockConfig: rl.ResourceLockConfig{Identity: w.id}}
	callbacks := orig.LeaderCallbacks{OnStartedLeading: w.work, OnStoppedLeading: func() {}}
	switch w.elector {
	case "client-go":
		w.stand, err = orig.NewLeaderElector(orig.LeaderElectionConfig{Lock: lock, LeaseDuration: *lease,
			RenewDeadline: *renew, RetryPeriod: *retry, ReleaseOnCancel: *release, Callbacks: callbacks})
	case "primacy":
		w.stand, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock,
			LeaseDuration: *lease, RenewDeadline: *renew, RetryPeriod: *retry, ReleaseOnCancel: *release,
			Callbacks: callbacks})
	default:
		err = errors.New("-elector: want client-go or primacy")
	}
	if err != nil {
		return err
	}
	w.run()
	return nil
}

func (w *worker) run() {
	asked, got := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer got()
	stop, stopWork := context.WithCancel(context.Background())
	defer stopWork()
	w.stop = stop
	run, cancel := context.WithCancel(context.Background())
	defer cancel()
	context.AfterFunc(asked, func() {
		// client-go's documentation demands that the work has ended before. Ours waits for it.
		if w.elector == "client-go" {
			stopWork()
			if w.wins.Load() > 0 {
				<-w.working
			}
		}
		cancel()
	})
	w.event(stands, int64(boottime.Now()))
	w.stand.Run(run)
	if w.wins.Load() > 0 {
		select {
		case <-w.working: // Run of client-go does not wait for it
		case <-time.After(time.Second): // a Lease was won, and the term was over before it began
		}
	}
}

// work acts until the term is over by its context, and takes note of whether IsLeader says so.
func (w *worker) work(ctx context.Context) {
	defer close(w.working)
	w.event(started, int64(boottime.Now()))
	tick := time.NewTicker(actEvery)
	defer tick.Stop()
	for {
		now := int64(boottime.Now())
		if ctx.Err() != nil || w.stop.Err() != nil {
			w.event(stopped, now)
			return
		}
		if line := fmt.Sprintf("%d %d %s\n", now, w.token(), w.id); w.stand.IsLeader() {
			put(w.acts, line)
			put(w.asked, line)
		} else {
			put(w.acts, line)
		}
		<-tick.C
	}
}

// token is our fencing token, or what is nearest to it in client-go.
func (w *worker) token() uint64 {
	if t, ok := w.stand.(interface{ Token() uint64 }); ok {
		return t.Token()
	}
	return w.wins.Load()
}

func (w *worker) event(what string, at int64) {
	put(w.events, fmt.Sprintf("%d %s %s %d\n", at, what, w.id, w.token()))
}

// put writes the line in one call, so that lines of several processes do not mix.
func put(f *os.File, line string) {
	if _, err := f.WriteString(line); err != nil {
		log.Fatal(err)
	}
}

// observed is a client that tells the worker of its writes.
type observed struct {
	typed.LeasesGetter
	w *worker
}

func (o observed) Leases(namespace string) typed.LeaseInterface {
	return observedLeases{o.LeasesGetter.Leases(namespace), o.w}
}

type observedLeases struct {
	typed.LeaseInterface
	w *worker
}

func (o observedLeases) Create(ctx context.Context, l *coordinationv1.Lease, opts metav1.CreateOptions) (
	*coordinationv1.Lease, error) {
	return o.w.wrote(l, func() (*coordinationv1.Lease, error) { return o.LeaseInterface.Create(ctx, l, opts) })
}

func (o observedLeases) Update(ctx context.Context, l *coordinationv1.Lease, opts metav1.UpdateOptions) (
	*coordinationv1.Lease, error) {
	return o.w.wrote(l, func() (*coordinationv1.Lease, error) { return o.LeaseInterface.Update(ctx, l, opts) })
}

func (w *worker) wrote(l *coordinationv1.Lease, write func() (*coordinationv1.Lease, error)) (
	*coordinationv1.Lease, error) {
	asked := int64(boottime.Now())
	got, err := write()
	if err != nil {
		return got, err
	}
	if h := l.Spec.HolderIdentity; h == nil || *h == "" {
		w.event(released, asked)
	} else {
		w.wins.Store(uint64(*l.Spec.LeaseTransitions) + 1)
	}
	return got, err
}
