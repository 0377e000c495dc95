//go:build linux

package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
)

// standClientGo is client-go's LeaderElector in the ratios that Kubernetes uses, 15 s / 10 s / 2 s,
// with the TTL as LeaseDuration, a request limit of half the RenewDeadline but at least 1 s, as its
// NewFromKubeconfig sets it, and ReleaseOnCancel. It leads while OnStartedLeading's context lives
// and IsLeader says yes: a user who asks only one of them acts longer. As the documentation
// demands, the work has ended before the elector is told to release.
//
// client-go has no fencing token. The best a user could have is the lease's leaseTransitions: it
// rises when another holder takes the lease, and when a released one is taken, but not when the
// same identity wins an expired lease of its own again. It begins anew when somebody deletes the
// lease, so the token has the seconds of the lease's creation in front. The identity is that of the
// process, as Kubernetes' components have it.
func standClientGo(ctx context.Context, c *candidate) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	p := &clientGo{candidate: c, client: client, identity: fmt.Sprintf("%s_%d_%d", c.id, os.Getpid(), started)}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            newLock(p.leases(), path.Base(c.name), p.identity),
		LeaseDuration:   c.ttl,
		RenewDeadline:   c.renewDeadline(),
		RetryPeriod:     c.ttl * 2 / 15,
		ReleaseOnCancel: true,
		Name:            c.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { p.work(ctx, leading) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	p.elector = elector
	run, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		p.awaitWork()
		cancel()
	})()
	elector.Run(run)
	p.awaitWork() // Run does not wait for it
	return nil
}

var started = bootTime()

func (c *candidate) renewDeadline() time.Duration { return c.ttl * 10 / 15 }

type clientGo struct {
	*candidate
	client   *clientv3.Client
	identity string
	elector  *leaderelection.LeaderElector
	working  sync.Mutex // held while OnStartedLeading acts
}

func (p *clientGo) leases() *etcdLeases {
	return &etcdLeases{client: p.client, prefix: path.Dir(p.name), limit: max(p.renewDeadline()/2, time.Second)}
}

// work acts until the leadership's context or ctx ends. When IsLeader has said no in between and
// says yes again, the elector has lost and won the lease without a callback: that is taken for a
// new term, and the token is read anew.
func (p *clientGo) work(ctx, leading context.Context) {
	p.working.Lock()
	defer p.working.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(leading, cancel)()
	leads := func() bool { return leading.Err() == nil && p.elector.IsLeader() }
	for ; ctx.Err() == nil; sleep(ctx, actEvery) {
		if !leads() {
			continue
		}
		token, err := p.token(ctx)
		if err != nil {
			log.Printf("token: %v", err)
			sleep(ctx, retryWait)
			continue
		}
		p.rec.lead(ctx, token, leads)
	}
}

func (p *clientGo) awaitWork() {
	p.working.Lock()
	defer p.working.Unlock()
}

// transitionBits of a token are the leaseTransitions.
const transitionBits = 20

// token returns the creation and the leaseTransitions of the lease as one number, if this process
// holds it.
func (p *clientGo) token(ctx context.Context) (uint64, error) {
	lease, err := p.leases().Get(ctx, path.Base(p.name), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder != p.identity ||
		lease.Spec.LeaseTransitions == nil {
		return 0, fmt.Errorf("the lease is not ours")
	}
	return uint64(lease.CreationTimestamp.Unix())<<transitionBits | uint64(*lease.Spec.LeaseTransitions), nil
}
