package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

var _ driver.Journal = (*Store)(nil)

// journal keeps a store's journals, and the records that releases leave.
type journal struct {
	layout
	wire    *etcdwire.Wire
	leases  *journalLeases
	appends *batcher
	reads   *batcher // apart from the others: one append in a Txn of many reads would put all of them into etcd's log

	mu    sync.Mutex      // guards what follows
	trims map[string]bool // journals that this process trims just now
	off   time.Time       // until then releases leave no records
}

func newJournal(k layout, w *etcdwire.Wire) *journal {
	j := &journal{layout: k, wire: w, trims: map[string]bool{},
		leases: &journalLeases{layout: k, wire: w, now: time.Now, known: map[recordShard]leaseState{}}}
	j.appends = &batcher{w: w, j: j, ofJournal: true}
	j.reads = &batcher{w: w, j: j, ofJournal: true, ofReads: true}
	return j
}

// page is how many keys are read or removed at once.
const page = 500

// Append implements [driver.Journal]. If an attempt of this call got no answer, and then the same
// record is there, the outcome is unknown: this call may have put it, or another one.
func (j *journal) Append(ctx context.Context, name string, r driver.Record, keep int,
) (there driver.Record, added bool, err error) {
	const doing = "append to journal"
	what := verb(doing, name)
	if err := driver.CheckRecord(name, r); err != nil {
		return there, false, fmt.Errorf("etcd: %s: %w", what, err)
	}
	if keep < 1 {
		return there, false, refused(what, fmt.Sprintf("keep at least 1 record, not %d", keep))
	}
	resp, doubt, err := j.append(ctx, doing, name, r)
	if err != nil {
		return there, false, j.rights(err)
	}
	if resp.Succeeded {
		if n := resp.Responses[1].GetResponseRange().GetCount(); n > int64(keep+slack(keep)) {
			j.trimLater(name, keep)
		}
		return r, true, nil
	}
	kv := kvAt(resp, 0)
	if kv == nil {
		// its lease has ended, or it was trimmed
		return there, false, fmt.Errorf("etcd: %s: the record %q was removed meanwhile", what, r.Key)
	}
	if there = (driver.Record{Key: r.Key, Value: kv.Value}); doubt && string(kv.Value) == string(r.Value) {
		return driver.Record{}, false,
			fmt.Errorf("etcd: %s: the answer was lost, and the record %q is there: this call may have kept it", what,
				r.Key)
	}
	return there, false, nil
}

// append is the Txn of Append. Where etcd refuses it because of the record's lease, it puts the
// record without one.
func (j *journal) append(ctx context.Context, what, name string, r driver.Record,
) (resp *pb.TxnResponse, doubt bool, err error) {
	dir := j.journalDir(name)
	shard := j.leases.shardOf(name)
	value := slices.Clone(r.Value) // a Txn may be made of it when the caller has given up
	for bare, tries := false, 0; ; tries++ {
		lease := int64(0)
		if !bare {
			lease = j.leases.leaseFor(ctx, shard)
		}
		var unsure bool
		count := prefixRange(dir)
		count.CountOnly = true
		resp, unsure, err = j.appends.send(ctx, what, name, &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(dir+r.Key, 0)},
			Success: []*pb.RequestOp{doPut(dir+r.Key, value, lease), doRange(count)},
			Failure: []*pb.RequestOp{doGet(dir + r.Key)},
		}, nil)
		doubt = doubt || unsure
		switch {
		case bare && err == nil:
			j.leases.useNoLease(shard)
			return resp, doubt, nil
		case isGone(err) && tries < 2:
			j.leases.forget(shard)
		case errors.Is(err, driver.ErrRefused) && lease != 0:
			bare = true // etcd refuses a put on a lease that has a key which the user may not write
		default:
			return resp, doubt, notGone(err)
		}
	}
}

// rights adds to an error for want of a right which right that is.
func (j *journal) rights(err error) error {
	if !forbidden(err) {
		return err
	}
	return fmt.Errorf("%w (records are kept below %q: the user needs the right to read and write there)", err,
		j.journalsDir())
}

// Records implements [driver.Journal].
func (j *journal) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	if limit < 1 || name == "" {
		return nil, nil
	}
	dir := j.journalDir(name)
	r := prefixRange(dir)
	if before != "" {
		r = keyRange(dir, dir+before)
	}
	r.Limit, r.SortOrder, r.SortTarget = int64(limit), pb.RangeRequest_DESCEND, pb.RangeRequest_KEY
	resp, _, err := j.reads.send(ctx, "read journal", name, &pb.TxnRequest{Success: []*pb.RequestOp{doRange(r)}}, nil)
	if err != nil {
		return nil, j.rights(err)
	}
	var all []driver.Record
	for _, kv := range kvsAt(resp, 0) {
		all = append(all, driver.Record{Key: string(kv.Key[len(dir):]), Value: kv.Value})
	}
	return all, nil
}

// Journals implements [driver.Journal]. After each page it goes on behind the journal of the last
// key: the rest of that journal has no new name.
func (j *journal) Journals(ctx context.Context, prefix string) (names []string, err error) {
	base := j.journalsDir()
	from, end := base+escape(prefix), etcdwire.PrefixEnd(base+escape(prefix))
	for {
		resp, err := j.wire.Get(ctx, verb("list journals", prefix), keysOnly(keyRange(from, end), page))
		if err != nil {
			return nil, j.rights(err)
		}
		for _, kv := range resp.Kvs {
			dir, _, _ := strings.Cut(string(kv.Key[len(base):]), "/")
			if name, ok := unescape(dir); ok && name != "" && (len(names) == 0 || names[len(names)-1] != name) {
				names = append(names, name)
			}
		}
		if !resp.More {
			break
		}
		from = pastJournal(base, resp.Kvs[len(resp.Kvs)-1])
	}
	slices.Sort(names) // an escaped name has another place in the order
	return names, nil
}

// pastJournal returns a key behind all those of the journal that has that record.
func pastJournal(base string, last *mvccpb.KeyValue) string {
	key := string(last.Key)
	if i := strings.IndexByte(key[len(base):], '/'); i >= 0 {
		return etcdwire.PrefixEnd(key[:len(base)+i+1])
	}
	return key + "\x00" // no record of ours
}

// slack is how many records more than keep a journal may have before some are removed.
func slack(keep int) int { return 8 + keep/8 }

// trimLater removes records beyond keep in the background, unless this process does so already.
func (j *journal) trimLater(name string, keep int) {
	if !j.beginTrim(name) {
		return
	}
	j.wire.Background(func(ctx context.Context) {
		defer j.endTrim(name)
		for more := true; more; {
			more = j.trim(ctx, name, keep)
		}
	})
}

// trim removes at most page of the records beyond keep. More says that there may be others. What
// fails is left to the next Append.
func (j *journal) trim(ctx context.Context, name string, keep int) (more bool) {
	what, dir := verb("trim journal", name), j.journalDir(name)
	resp, err := j.wire.Get(ctx, what, keysOnly(prefixRange(dir), page+1))
	if err != nil {
		return false
	}
	beyond := int(min(resp.Count-int64(keep), page))
	if beyond <= 0 || beyond >= len(resp.Kvs) {
		return false
	}
	// It deletes all keys below the first that stays; one that enters there meanwhile is beyond
	// keep too.
	stays := string(resp.Kvs[beyond].Key)
	_, _, err = j.wire.Txn(ctx, what, &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(stays, resp.Kvs[beyond].CreateRevision)},
		Success: []*pb.RequestOp{doDeleteRange(dir, stays)},
	})
	return err == nil && beyond == page
}

// The record that a place leaves is a put in the Txn that deletes the claim: it is there if that
// Txn removed the claim, and not otherwise, however often the Txn is repeated. But etcd has more
// reasons to refuse a put: it is full, the user may not write there, the record's lease has ended,
// it is too large. The claim must go all the same, so the Txn is then sent without the record. Both
// Txns compare the claim's key, so the one that etcd carries out second does nothing.

// journalRecord is a record that goes with the Txn that gives a place up. Nil: there is none.
type journalRecord struct {
	shard recordShard
	key   string
	put   *pb.RequestOp
}

const (
	// recordWait is how long a release waits for a lease for its record. After that its record goes
	// without a lease, and for a while other releases do not wait.
	recordWait = time.Second
	// recordsOff is for how long releases leave no records after etcd has refused them.
	recordsOff = 10 * time.Second
)

// journalRecordOf returns the record that p leaves, nil if it has none or one that cannot be kept.
func (j *journal) journalRecordOf(ctx context.Context, p driver.Place) *journalRecord {
	if p.Record == nil || driver.CheckRecord(p.Journal, *p.Record) != nil || j.isOff() {
		return nil
	}
	limit := j.leases.waitLimit()
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	jr := &journalRecord{shard: j.leases.shardOf(p.Journal), key: j.journalDir(p.Journal) + p.Record.Key}
	jr.put = doPut(jr.key, slices.Clone(p.Record.Value), j.leases.leaseFor(wait, jr.shard))
	if limit >= etcdwire.BlameAfter && wait.Err() != nil && ctx.Err() == nil {
		j.leases.skipWaits()
	}
	return jr
}

// with returns req with the record as its last operation: the answers to the others stay where they
// are.
func (jr *journalRecord) with(req *pb.TxnRequest) *pb.TxnRequest {
	if jr == nil {
		return req
	}
	all := append(slices.Clone(req.Success), jr.put)
	return &pb.TxnRequest{Compare: req.Compare, Success: all, Failure: req.Failure}
}

// sendWithRecord sends a request with its record. If etcd refuses it, perhaps because of the
// record, it sends the request without. jr is nil where there is no record.
func (j *journal) sendWithRecord(ctx context.Context, req *pb.TxnRequest, jr *journalRecord,
) (*pb.TxnResponse, etcdwire.Outcome) {
	if jr == nil || j.isOff() {
		return j.wire.Send(ctx, req)
	}
	resp, first := j.wire.Send(ctx, jr.with(req))
	if !mayBlameRecord(first.Err) {
		return resp, first
	}
	resp, out := j.wire.Send(ctx, req)
	if out.Doubt = out.Doubt || first.Doubt; out.Err == nil {
		j.blame(jr, first.Err)
	}
	return resp, out
}

// mayBlameRecord reports whether a record may be why etcd refused a Txn: etcd has answered, and not
// that it is busy or that the user must log in anew.
func mayBlameRecord(err error) bool {
	st, answered := status.FromError(err)
	if err == nil || !answered {
		return false
	}
	switch known := rpctypes.Error(err); {
	case errors.Is(known, rpctypes.ErrInvalidAuthToken), errors.Is(known,
		rpctypes.ErrAuthOldRevision), errors.Is(known, rpctypes.ErrTooManyRequests):
		return false
	}
	return st.Code() != codes.Unavailable && st.Code() != codes.DeadlineExceeded && st.Code() != codes.Canceled
}

// blame notes why a record was refused. The request without it has succeeded.
func (j *journal) blame(jr *journalRecord, err error) {
	switch known := rpctypes.Error(err); {
	case isGone(etcdwire.Final(err)):
		j.leases.forget(jr.shard)
	case errors.Is(known, rpctypes.ErrPermissionDenied), etcdwire.NoSpace(err):
		j.turnOff()
	}
}

// turnOff has releases leave no records for a while: each would cost a second request, and those of
// a batch would go one by one.
func (j *journal) turnOff() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.off = time.Now().Add(recordsOff)
}

func (j *journal) isOff() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return time.Now().Before(j.off)
}

// beginTrim notes that the caller trims that journal. It reports false if another one does so
// already.
func (j *journal) beginTrim(journal string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.trims[journal] {
		return false
	}
	j.trims[journal] = true
	return true
}

func (j *journal) endTrim(journal string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.trims, journal)
}
