//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// etcdLeases stands in for the Kubernetes API server: it keeps Lease objects in etcd as the API
// server does, with the key's mod revision as their resourceVersion, and an update is refused as a
// conflict when that has changed. Reads are linearizable.
//
// Not as the API server: no HTTP, authentication, admission or rate limit in between, JSON instead
// of protobuf, and of the interface only what [resourcelock.LeaseLock] uses (Get, Create, Update);
// the rest is nil.
type etcdLeases struct {
	typed.LeaseInterface
	client *clientv3.Client
	prefix string
	limit  time.Duration // of one request
	seen   string        // the resourceVersion of the last Get; one elector asks one thing at a time
}

var (
	_ typed.LeasesGetter     = (*etcdLeases)(nil)
	_ resourcelock.Interface = (*lock)(nil)
)

func (e *etcdLeases) Leases(namespace string) typed.LeaseInterface { return e }

var leaseResource = coordinationv1.Resource("leases")

func (e *etcdLeases) key(name string) string { return e.prefix + "/" + name }

func (e *etcdLeases) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	got, err := e.client.Get(ctx, e.key(name))
	if err != nil {
		return nil, err
	}
	if len(got.Kvs) == 0 {
		return nil, apierrors.NewNotFound(leaseResource, name)
	}
	lease := &coordinationv1.Lease{}
	if err := json.Unmarshal(got.Kvs[0].Value, lease); err != nil {
		return nil, fmt.Errorf("%s: %w", e.key(name), err)
	}
	lease.ResourceVersion = strconv.FormatInt(got.Kvs[0].ModRevision, 10)
	e.seen = lease.ResourceVersion
	return lease, nil
}

func (e *etcdLeases) Create(ctx context.Context, lease *coordinationv1.Lease,
	_ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()
	lease.CreationTimestamp = metav1.Now()
	stored, ok, err := e.put(ctx, lease, 0)
	if err == nil && !ok {
		err = apierrors.NewAlreadyExists(leaseResource, lease.Name)
	}
	return stored, err
}

func (e *etcdLeases) Update(ctx context.Context, lease *coordinationv1.Lease,
	_ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	revision, err := strconv.ParseInt(lease.ResourceVersion, 10, 64)
	if err != nil || revision <= 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("resourceVersion %q: want that of the lease that was read",
			lease.ResourceVersion))
	}
	stored, ok, err := e.put(ctx, lease, revision)
	if err == nil && !ok {
		err = apierrors.NewConflict(leaseResource, lease.Name,
			fmt.Errorf("resourceVersion %d is not the newest", revision))
	}
	return stored, err
}

// put stores the lease if its key's mod revision is the one given, 0 for a key that is absent, and
// says whether it is.
func (e *etcdLeases) put(ctx context.Context, lease *coordinationv1.Lease, revision int64) (*coordinationv1.Lease,
	bool, error) {
	ctx, cancel := context.WithTimeout(ctx, e.limit)
	defer cancel()
	stored := lease.DeepCopy()
	stored.ResourceVersion = "" // it is the key's mod revision, not part of the value
	text, err := json.Marshal(stored)
	if err != nil {
		return nil, false, err
	}
	key := e.key(lease.Name)
	got, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=",
		revision)).Then(clientv3.OpPut(key, string(text))).Commit()
	if err != nil || !got.Succeeded {
		return nil, false, err
	}
	stored.ResourceVersion = strconv.FormatInt(got.Header.Revision, 10)
	return stored, true, nil
}

// lock is client-go's own LeaseLock, but for one thing that is better here: a standby recognises a
// renewal by the bytes that Get returns, in which times are whole seconds, so it would miss
// renewals within a second and count the rest of the lease from too early. With the usual 15 s that
// is little, with a short TTL it is much: here the bytes hold the resourceVersion.
type lock struct {
	*resourcelock.LeaseLock
	leases *etcdLeases
}

func newLock(leases *etcdLeases, name, identity string) *lock {
	return &lock{&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: name, Namespace: "torture"},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}, leases}
}

// Get returns the record, and bytes that change with every renewal.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err != nil {
		return nil, nil, err
	}
	return record, append(raw, l.leases.seen...), nil
}
