package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/primacy-go/primacy/internal/k8stest"
	dropin "github.com/primacy-go/primacy/leaderelection"
)

// client-go's elector, and ours in its place: one elector for each election, on one client for a
// process, whose own limit of requests a second is off. The ratios are Kubernetes' own, 15 s, 10 s
// and 2 s.
func init() {
	klog.SetLogger(klog.Logger{}) // it tells each try that somebody else was faster
	contenders = append(contenders,
		&Contender{Name: "client-go", Store: "kubernetes", Dial: dialElectors(newTheirs)},
		&Contender{Name: "our leaderelection", Store: "kubernetes", Dial: dialElectors(newDropIn)})
}

// elector is what both have.
type elector interface {
	Run(ctx context.Context)
	IsLeader() bool
}

type newElector func(lock rl.Interface, ttl time.Duration, c leaderelection.LeaderCallbacks) (elector, error)

func newTheirs(lock rl.Interface, ttl time.Duration, c leaderelection.LeaderCallbacks) (elector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock, LeaseDuration: ttl,
		RenewDeadline: ttl * 10 / 15, RetryPeriod: ttl * 2 / 15, ReleaseOnCancel: true, Callbacks: c})
}

func newDropIn(lock rl.Interface, ttl time.Duration, c leaderelection.LeaderCallbacks) (elector, error) {
	return dropin.NewLeaderElector(dropin.LeaderElectionConfig{Lock: lock, LeaseDuration: ttl,
		RenewDeadline: ttl * 10 / 15, RetryPeriod: ttl * 2 / 15, ReleaseOnCancel: true, Callbacks: c})
}

type electorProcess struct {
	client   *kubernetes.Clientset
	make     newElector
	sessions atomic.Int64
}

func dialElectors(build newElector) func(context.Context, []string) (Process, error) {
	return func(_ context.Context, endpoints []string) (Process, error) {
		url, ca, err := apiServer(endpoints)
		if err != nil {
			return nil, err
		}
		client, err := kubernetes.NewForConfig(&rest.Config{Host: url, BearerToken: k8stest.UserToken, QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
		return &electorProcess{client: client, make: build}, err
	}
}

func (p *electorProcess) Close() {}

func (p *electorProcess) MinTTL() time.Duration { return 2 * time.Second }

func (p *electorProcess) Session(_ context.Context, ttl time.Duration) (Session, error) {
	id := fmt.Sprintf("%d-%p-%d", os.Getpid(), p, p.sessions.Add(1))
	return &electorSession{p: p, ttl: ttl, id: id}, nil
}

type electorSession struct {
	p   *electorProcess
	ttl time.Duration
	id  string

	mu  sync.Mutex
	all []*electorHeld
}

func (s *electorSession) Lock(name string, _ LockOptions) Lock { return electorLock{s, name} }

type electorLock struct {
	s    *electorSession
	name string
}

func (l electorLock) Lock(ctx context.Context) (Held, error) { return l.s.Campaign(ctx, l.name) }

// Campaign runs an elector until it has won, and on until it is released.
func (s *electorSession) Campaign(ctx context.Context, name string) (Held, error) {
	h := &electorHeld{gone: make(chan struct{})}
	won := make(chan struct{})
	var err error
	lock := &rl.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: k8stest.Namespace, Name: name},
		Client: s.p.client.CoordinationV1(), LockConfig: rl.ResourceLockConfig{Identity: s.id}}
	h.elector, err = s.p.make(lock, s.ttl, leaderelection.LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) { close(won); <-ctx.Done() }, OnStoppedLeading: func() {}})
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop = stop
	go func() { defer close(h.gone); h.elector.Run(run) }()
	select {
	case <-won:
	case <-h.gone:
		stop()
		return nil, errors.New("the elector ended before it won")
	case <-ctx.Done():
		stop()
		<-h.gone
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, h)
	return h, nil
}

// Close releases what is still led.
func (s *electorSession) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.all {
		h.stop()
	}
	for _, h := range s.all {
		if err := h.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *electorSession) Revoke(context.Context) error {
	return errors.New("a process of electors has no lease for all of them that could be ended")
}

// electorHeld is an elector that has won.
type electorHeld struct {
	elector elector
	stop    context.CancelFunc
	gone    chan struct{}
}

func (h *electorHeld) Check() error {
	if !h.elector.IsLeader() {
		return errors.New("it was lost")
	}
	return nil
}

// Token is 0: client-go has none, and guard asks none to grow that has them only at times.
func (h *electorHeld) Token() uint64 { return 0 }

func (h *electorHeld) Release(ctx context.Context) error {
	h.stop()
	select {
	case <-h.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
