//go:build linux

package interop

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// service is a caller of the server's lock or election service: it keeps a lease of its own, for
// one turn. Under the lease of a call that was given up no other may be made: what the server does
// late to clean up behind the first would take the second one's claim out.
type service struct {
	w     *world
	c     *clientv3.Client
	lease clientv3.LeaseID
	stop  context.CancelFunc // of the renewals
}

func (w *world) newService(c *clientv3.Client, id string) (*service, error) {
	lease, err := c.Grant(context.Background(), int64(w.ttl))
	if err != nil {
		return nil, err
	}
	w.trace.owns(lease.ID, id)
	ctx, cancel := context.WithCancel(context.Background())
	renewals, err := c.KeepAlive(ctx, lease.ID)
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		for range renewals { // or the client's log is full of warnings
		}
	}()
	return &service{w, c, lease.ID, cancel}, nil
}

// end ends the lease, unless the turn's participant died, and returns how the turn ended.
func (s *service) end(err error) error {
	s.stop()
	if errors.Is(err, errDied) {
		return err
	}
	if _, rerr := s.c.Revoke(context.Background(), s.lease); rerr != nil && !isGone(rerr) {
		return errors.Join(err, rerr)
	}
	return err
}

// inService is a participant that calls a service of the server.
func inService(call func(s *service, tn *turn) error) func(w *world, id string) stander {
	return func(w *world, id string) stander {
		c := w.newClient()
		return func(tn *turn) error {
			s, err := w.newService(c, id)
			if err != nil {
				return err
			}
			return s.end(call(s, tn))
		}
	}
}

// gaveUpCall turns a call that was cancelled into a turn given up.
func (tn *turn) gaveUpCall(err error) error {
	if status.Code(err) == codes.Canceled {
		err = context.Canceled
	}
	return tn.gaveUp(err)
}

var (
	lockService     = kind{name: "v3lock", dies: leased, join: inService((*service).lock)}
	electionService = kind{name: "v3election", dies: leased, join: inService((*service).campaign)}
)

func (s *service) lock(tn *turn) error {
	locks := v3lockpb.NewLockClient(s.c.ActiveConnection())
	got, err := locks.Lock(tn.ctx, &v3lockpb.LockRequest{Name: []byte(linePrefix), Lease: int64(s.lease)})
	if err != nil {
		return tn.gaveUpCall(err)
	}
	rev, err := s.w.create(context.Background(), string(got.Key))
	if err != nil {
		return err
	}
	if err := s.w.holds(tn, scale(rev), always); err != nil {
		return err
	}
	_, err = locks.Unlock(context.Background(), &v3lockpb.UnlockRequest{Key: got.Key})
	return err
}

func (s *service) campaign(tn *turn) error {
	elections := v3electionpb.NewElectionClient(s.c.ActiveConnection())
	got, err := elections.Campaign(tn.ctx, &v3electionpb.CampaignRequest{Name: []byte(linePrefix),
		Lease: int64(s.lease), Value: []byte(tn.id)})
	if err != nil {
		return tn.gaveUpCall(err)
	}
	if err := s.w.holds(tn, scale(uint64(got.Leader.Rev)), always); err != nil {
		return err
	}
	_, err = elections.Resign(context.Background(), &v3electionpb.ResignRequest{Leader: got.Leader})
	return err
}
