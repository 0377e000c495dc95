package etcdstore

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Raw reads and writes keys of other programs in the same etcd. Claims and leases of the store can
// guard such keys, and end them. Do not name keys below the store's prefix: nothing keeps Raw from
// writing over the store's own.
type Raw struct {
	layout // of the store: for the leases that keys may end with
	wire   *etcdwire.Wire
}

// Get returns the value at a key, and its version. The version 0 says that there is none. The read
// is linearizable.
func (r *Raw) Get(ctx context.Context, key string) (value []byte, version uint64, err error) {
	resp, err := r.wire.Get(ctx, verb("read the key", key), &pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(resp.Kvs) == 0 {
		return nil, 0, err
	}
	return resp.Kvs[0].Value, uint64(resp.Kvs[0].ModRevision), nil
}

// Put writes a value without a lease if the present one has that version; 0: if there is none. It
// returns the new version. ok is false where another version stands: then nothing was written, or
// somebody has written over it since.
// After an error the value may have been written, or may yet be, but only over that version.
func (r *Raw) Put(ctx context.Context, key string, value []byte, version uint64) (next uint64, ok bool, err error) {
	return writeOver(ctx, r.wire, verb("write the key", key), key, value, version, "", 0)
}
