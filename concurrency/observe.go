package concurrency

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// reader is the KV below the original's Observe: a read that ends only with its context or an
// answer that will not change.
type reader struct {
	v3.KV // nothing else is called
	w     *wire
	life  context.Context // the client's
}

func (r *reader) Get(ctx context.Context, key string, opts ...v3.OpOption) (*v3.GetResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	for {
		resp, err := r.w.get(ctx, key, opts...)
		if err == nil || ctx.Err() != nil || final(err) {
			return resp, blame(ctx, err)
		}
		_ = storeutil.Sleep(ctx, etcdwire.RetryPause)
	}
}

// follower is the Watcher below the original's Observe. Events are made from linearizable reads,
// which a watch of ours only prompts: so neither a compaction nor a member that was cut off or
// froze ends it or makes it stale.
type follower struct {
	v3.Watcher
	w    *wire
	life context.Context // the client's
}

func (f *follower) Close() error { return nil }

// Watch follows a key from a revision on until it is deleted; or waits for the first key of a
// prefix.
func (f *follower) Watch(ctx context.Context, key string, opts ...v3.OpOption) v3.WatchChan {
	out := make(chan v3.WatchResponse)
	op := v3.OpGet(key, opts...)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(out)
		defer cancel()
		defer context.AfterFunc(f.life, cancel)()
		changed, notify := etcdwire.Signal()
		end := string(op.RangeBytes())
		stop, _ := f.w.watch(key, end, true, notify)
		defer stop()
		since := op.Rev()
		for ctx.Err() == nil {
			var done bool
			var err error
			if end != "" {
				done, err = f.first(ctx, key, out)
			} else {
				done, since, err = f.next(ctx, key, since, out)
			}
			if done || final(err) {
				return
			}
			pause := etcdwire.Poll()
			if err != nil {
				pause = etcdwire.RetryPause
			}
			_ = storeutil.WaitFor(ctx, pause, changed)
		}
	}()
	return out
}

// first sends the leader, if there is one.
func (f *follower) first(ctx context.Context, prefix string, out chan<- v3.WatchResponse) (done bool, err error) {
	resp, err := f.w.get(ctx, prefix, v3.WithFirstCreate()...)
	if err != nil || len(resp.Kvs) == 0 {
		return false, err
	}
	sendEvent(ctx, out, resp.Header, v3.EventTypePut, resp.Kvs[0])
	return true, nil
}

// next sends what has happened to a key since a revision, and returns from which on it goes on.
// Done: the key was deleted.
func (f *follower) next(ctx context.Context, key string, since int64, out chan<- v3.WatchResponse,
) (done bool, now int64, err error) {
	resp, err := f.w.get(ctx, key)
	if err != nil {
		return false, since, err
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision >= since {
		sendEvent(ctx, out, resp.Header, v3.EventTypeDelete, &mvccpb.KeyValue{Key: []byte(key),
			ModRevision: resp.Header.Revision})
		return true, since, nil
	}
	for _, kv := range f.history(ctx, resp.Kvs[0], since) {
		sendEvent(ctx, out, resp.Header, v3.EventTypePut, kv)
	}
	return false, max(since, resp.Kvs[0].ModRevision+1), nil
}

// maxHistory is how many values proclaimed in quick succession are shown; of more, the last ones.
const maxHistory = 100

// history returns the versions of a key since a revision, oldest first, up to kv. Those that etcd
// has compacted away are left out.
func (f *follower) history(ctx context.Context, kv *mvccpb.KeyValue, since int64) []*mvccpb.KeyValue {
	var back []*mvccpb.KeyValue
	for kv.ModRevision >= since && len(back) < maxHistory {
		back = append(back, kv)
		if kv.ModRevision-1 < since {
			break
		}
		resp, err := f.w.get(ctx, string(kv.Key), v3.WithRev(kv.ModRevision-1))
		if err != nil || len(resp.Kvs) == 0 {
			break
		}
		kv = resp.Kvs[0]
	}
	slices.Reverse(back)
	return back
}

func sendEvent(ctx context.Context, out chan<- v3.WatchResponse, h *pb.ResponseHeader, what mvccpb.Event_EventType,
	kv *mvccpb.KeyValue,
) {
	r := v3.WatchResponse{Events: []*v3.Event{{Type: what, Kv: kv}}}
	head(&r.Header, h, kv.ModRevision)
	select {
	case out <- r:
	case <-ctx.Done():
	}
}

// head fills a header, which client 3.6 has as a value and 3.7 as a pointer.
func head(at any, h *pb.ResponseHeader, rev int64) {
	switch at := at.(type) {
	case **pb.ResponseHeader:
		*at = &pb.ResponseHeader{ClusterId: h.ClusterId, MemberId: h.MemberId, Revision: rev, RaftTerm: h.RaftTerm}
	case *pb.ResponseHeader:
		at.ClusterId, at.MemberId, at.Revision, at.RaftTerm = h.ClusterId, h.MemberId, rev, h.RaftTerm
	}
}
