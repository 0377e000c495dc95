package etcdstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Line implements [driver.Store]. The revision is etcd's, which grows with every write to the
// cluster.
func (s *Store) Line(ctx context.Context, name string) (driver.Line, error) {
	what := verb("line", name)
	resp, err := s.readLine(ctx, what, name)
	if err != nil {
		return driver.Line{}, err
	}
	return s.line(ctx, what, name, resp)
}

// readLine reads all claims on name, oldest first.
func (s *Store) readLine(ctx context.Context, what, name string) (*pb.RangeResponse, error) {
	return s.wire.Get(ctx, what, oldestFirst(prefixRange(s.lineDir(name))))
}

func (s *Store) line(ctx context.Context, what, name string, resp *pb.RangeResponse) (driver.Line, error) {
	owners, err := s.ownersOf(ctx, what, resp.Kvs, resp.Header.Revision)
	if err != nil {
		return driver.Line{}, err
	}
	return s.lineOf(name, resp.Kvs, resp.Header.Revision, owners), nil
}

// lineOf makes a Line of claims, oldest first, whoever wrote them.
func (s *Store) lineOf(name string, kvs []*mvccpb.KeyValue, rev int64, owners map[string]owner) driver.Line {
	line := driver.Line{Name: name, Revision: uint64(rev)}
	slots, held := ranks(s.lineDir(name), kvs)
	for i, kv := range kvs {
		e := entryOf(sessionOf(kv), kv, owners[sessionOf(kv)])
		e.Slots, e.Held = slots[i], held[i]
		if i == 0 {
			line.Holder = &e
		} else {
			line.Waiters = append(line.Waiters, e)
		}
	}
	return line
}

// ranks returns how many slots each claim of a line has, oldest first, and whether it holds.
func ranks(dir string, kvs []*mvccpb.KeyValue) (slots []int, held []bool) {
	exclusive := false // one stands before
	for i, kv := range kvs {
		n, _ := parseClaim(dir, string(kv.Key))
		slots = append(slots, n)
		switch n {
		case 0:
			held = append(held, i == 0)
			exclusive = true
		case driver.Unlimited:
			held = append(held, !exclusive)
		default:
			held = append(held, !exclusive && i < n)
		}
	}
	return slots, held
}

// entryOf describes one claim, whose key has that session ID.
func entryOf(id string, kv *mvccpb.KeyValue, who owner) driver.Entry {
	e := driver.Entry{Token: uint64(kv.CreateRevision), Value: kv.Value}
	switch {
	case kv.Lease == 0:
		e.Note = "has no lease: it never expires: somebody has to delete it"
	case who.known && id != "":
		e.Owner, e.Note, e.Lease = who.name, who.note, id
	default:
		e.Lease, e.Note = hex(kv.Lease), who.note
		if id != e.Lease {
			e.Note = "its key does not end in its lease: another program wrote it"
		}
	}
	return e
}

// Next implements [driver.Store]. It reads the line after each signal of a watch, and now and then
// without one.
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	what := verb("next", name)
	dir := s.lineDir(name)
	changed, notify := etcdwire.Signal()
	sub := s.wire.Hub.Watch(etcdwire.Span{Key: dir, End: etcdwire.PrefixEnd(dir), Puts: true}, notify)
	defer sub.Stop()
	base := &baseline{rev: int64(after), count: -1}
	for {
		resp, err := s.readLine(ctx, what, name)
		newer := false
		if err == nil {
			newer, err = s.differs(ctx, what, dir, resp, base)
		}
		if err == nil && newer {
			return s.line(ctx, what, name, resp)
		}
		if errors.Is(err, driver.ErrRefused) {
			return driver.Line{}, err
		}
		pause := etcdwire.Poll()
		if err != nil {
			pause = etcdwire.RetryPause
		}
		if err := s.wire.Pause(ctx, changed, pause); err != nil {
			return driver.Line{}, fmt.Errorf("etcd: %s: %w", what, err)
		}
	}
}

// baseline is a revision at which the line was as the caller of Next knows it.
type baseline struct {
	rev   int64
	count int64 // how many claims stood; -1: not known yet
}

// differs reports whether the line as read differs from the one at base. If not, base moves up to
// the revision of the read. A claim that came or changed has a mod revision above base. If there is
// none, the line differs only if there are fewer claims.
func (s *Store) differs(ctx context.Context, what, dir string, now *pb.RangeResponse, base *baseline) (bool, error) {
	rev, count := now.Header.Revision, int64(len(now.Kvs))
	if rev < base.rev {
		return false, nil // an older line, perhaps of a cluster that was restored from a backup, is not told
	}
	if rev == base.rev {
		base.count = count
		return false, nil
	}
	for _, kv := range now.Kvs {
		if kv.ModRevision > base.rev {
			return true, nil
		}
	}
	if base.rev == 0 {
		return true, nil
	}
	if base.count < 0 {
		then := prefixRange(dir)
		then.Revision, then.CountOnly = base.rev, true
		old, err := s.wire.Get(ctx, what, then)
		if errors.Is(err, rpctypes.ErrCompacted) {
			return true, nil // nobody can tell any more; to show the line once too often is harmless
		}
		if err != nil {
			return false, err
		}
		base.count = old.Count
	}
	if count != base.count {
		return true, nil
	}
	base.rev = rev
	return false, nil
}

// Lines implements [driver.Store]. If the same was asked for a moment ago, it first asks whether
// anything has changed since.
func (s *Store) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	what := verb("lines", prefix)
	from := s.prefix + escape(prefix)
	if last := s.lastList.of(prefix); last != nil {
		answers, at, err := readRanges(ctx, s.wire, what, last.changes(s.lineRanges(from)))
		if err != nil {
			return nil, err
		}
		if last.stands(answers, at) {
			s.lastList.keep(prefix, &list{last.lines, at, last.counts})
			return last.linesAt(at.rev), nil
		}
	}
	read, err := s.readLines(ctx, what, from)
	if err != nil {
		return nil, err
	}
	if s.lastList.keep(prefix, read) {
		return read.linesAt(read.at.rev), nil
	}
	return read.lines, nil
}

// readLines reads the lines of all names whose keys begin with from.
func (s *Store) readLines(ctx context.Context, what, from string) (*list, error) {
	ranges := s.lineRanges(from)
	for _, r := range ranges {
		oldestFirst(r)
	}
	answers, at, err := readRanges(ctx, s.wire, what, ranges)
	if err != nil {
		return nil, err
	}
	read := &list{at: at}
	byName := map[string][]*mvccpb.KeyValue{}
	var all []*mvccpb.KeyValue
	for _, a := range answers {
		read.counts = append(read.counts, int64(len(a.Kvs)))
		for _, kv := range a.Kvs {
			dir, _, inDir := bytes.Cut(kv.Key[len(s.prefix):], []byte("/"))
			name, ok := unescape(string(dir))
			if !inDir || !ok {
				continue // a key of no line
			}
			byName[name] = append(byName[name], kv)
			all = append(all, kv)
		}
	}
	owners, err := s.ownersOf(ctx, what, all, at.rev)
	if err != nil {
		return nil, err
	}
	read.lines = make([]driver.Line, 0, len(byName))
	for name, kvs := range byName {
		read.lines = append(read.lines, s.lineOf(name, kvs, at.rev, owners))
	}
	slices.SortFunc(read.lines, func(a, b driver.Line) int { return cmp.Compare(a.Name, b.Name) })
	return read, nil
}

// lineRanges returns the ranges of all keys of lines that begin with from. Keys of no line are in
// none of them: journals may be long.
func (l layout) lineRanges(from string) []*pb.RangeRequest {
	if from != l.prefix {
		return []*pb.RangeRequest{prefixRange(from)}
	}
	return []*pb.RangeRequest{keyRange(from, from+nonLine), keyRange(from+nonLineEnd, etcdwire.PrefixEnd(from))}
}

// readRanges reads ranges at one revision.
func readRanges(ctx context.Context, w *etcdwire.Wire, what string, ranges []*pb.RangeRequest,
) (answers []*pb.RangeResponse, at readAt, err error) {
	if len(ranges) == 1 {
		resp, err := w.Get(ctx, what, ranges[0])
		if err != nil {
			return nil, at, err
		}
		return []*pb.RangeResponse{resp}, atOf(resp.Header), nil
	}
	req := &pb.TxnRequest{}
	for _, r := range ranges {
		req.Success = append(req.Success, doRange(r))
	}
	resp, _, err := w.Txn(ctx, what, req)
	if err != nil {
		return nil, at, err
	}
	for _, r := range resp.Responses {
		answers = append(answers, r.GetResponseRange())
	}
	return answers, atOf(resp.Header), nil
}

// owner is who made a lease, as its session's record says.
type owner struct {
	name  string
	note  string // what is odd about the record
	known bool   // there is one
}

// owners remembers what sessions' records say: their values never change.
type owners struct {
	mu   sync.Mutex
	byID map[string]owner // by the lease's ID as keys have it
}

// ownersKept bounds how many.
const ownersKept = 10000

// sessionOf returns the session's ID that a claim's key bears, where the claim is a session's.
func sessionOf(kv *mvccpb.KeyValue) string {
	_, session := parseClaim("", string(kv.Key))
	return session
}

// ownersOf returns the owners of the sessions that kvs are claims of. It reads the records that are
// not known yet as of rev. At a later revision the record of a session that has ended since would
// be missing, and its claim would look like another program's.
func (s *Store) ownersOf(ctx context.Context, what string, kvs []*mvccpb.KeyValue, rev int64,
) (map[string]owner, error) {
	out := map[string]owner{}
	var miss []string
	s.owners.mu.Lock()
	for _, kv := range kvs {
		id := sessionOf(kv)
		if _, dup := out[id]; dup || id == "" {
			continue
		}
		o, ok := s.owners.byID[id]
		out[id] = o
		if !ok {
			miss = append(miss, id)
		}
	}
	s.owners.mu.Unlock()
	_, err := s.wire.Limit.InChunks(len(miss), func(from, to int) (bool, error) {
		return true, s.readOwners(ctx, what, miss[from:to], rev, out)
	})
	return out, err
}

func (s *Store) readOwners(ctx context.Context, what string, ids []string, rev int64, out map[string]owner) error {
	req := &pb.TxnRequest{}
	for _, id := range ids {
		req.Success = append(req.Success, doRange(&pb.RangeRequest{Key: []byte(s.prefix + sessions + id),
			Revision: rev}))
	}
	resp, _, err := s.wire.Txn(ctx, what, req)
	if errors.Is(err, rpctypes.ErrCompacted) && rev != 0 {
		return s.readOwners(ctx, what, ids, 0, out)
	}
	if err != nil {
		return err
	}
	s.owners.mu.Lock()
	defer s.owners.mu.Unlock()
	if s.owners.byID == nil || len(s.owners.byID) > ownersKept {
		s.owners.byID = map[string]owner{}
	}
	for i, id := range ids {
		o := ownerOf(kvAt(resp, i))
		out[id], s.owners.byID[id] = o, o
	}
	return nil
}

func ownerOf(kv *mvccpb.KeyValue) owner {
	if kv == nil {
		return owner{note: "entered by another program: its lease has no session record"}
	}
	var r sessionRecord
	if json.Unmarshal(kv.Value, &r) != nil {
		return owner{known: true, note: "its session record cannot be read"}
	}
	return owner{known: true, name: r.Owner}
}

// Ask implements [driver.Asker]. The request is a key on the holder's own lease, and goes with it.
func (s *Store) Ask(ctx context.Context, name string, r driver.Request) error {
	what := verb("ask", name)
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	for ended := int64(0); ; {
		holder, slots, err := s.holding(ctx, what, name, r.Token, false)
		switch {
		case err != nil:
			return err
		case holder == nil:
			return placeGone("ask", name)
		case slots != 0:
			return refused(what, "that claim is shared, and only who holds a name alone can be asked")
		}
		err = s.deliver(ctx, what, name, holder, value)
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		// The etcd lease that the claim was on has ended since it was read, and the claim with it;
		// or the claim was moved to another before, and its term goes on.
		if holder.Lease == ended {
			return notGone(err)
		}
		ended = holder.Lease
	}
}

// deliver puts a request, if the claim it is meant for still stands.
func (s *Store) deliver(ctx context.Context, what, name string, holder *mvccpb.KeyValue, value []byte) error {
	key, rec := string(holder.Key), s.prefix+sessions+sessionOf(holder)
	there := ifCreate(rec, 0)
	there.Result = pb.Compare_GREATER
	resp, _, err := s.wire.Txn(ctx, what, &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(key, holder.CreateRevision), there},
		Success: []*pb.RequestOp{doPut(askKey(rec, name), value, holder.Lease)},
		Failure: []*pb.RequestOp{doFind(key)},
	})
	if err != nil || resp.Succeeded {
		return err
	}
	if kv := kvAt(resp, 0); kv == nil || kv.CreateRevision != holder.CreateRevision {
		return placeGone("ask", name)
	}
	return refused(what, "the holder is another program, which cannot be asked")
}

// Origin names the cluster that this store's tokens come from: "etcd/" and the cluster's ID in hex.
// Tokens of two origins cannot be compared. etcd computes the ID from --initial-cluster-token and
// the members' peer URLs: after a restore from a snapshot with the same flags it stays, though
// revisions count from an earlier one again. Restore with a new token, or with --bump-revision and
// --mark-compacted, so that revisions grow on.
func (s *Store) Origin() string { return "etcd/" + strconv.FormatUint(s.wire.Cluster(), 16) }

// ClaimKey returns the key of the claim that holds name under token, for a compare on its create
// revision in the caller's own Txn. While the key has that create revision the claim holds the
// name, also after a move to another lease. It makes one linearizable read, or two where shared
// claims hold the name. [driver.ErrGone] if that claim does not hold it.
func (s *Store) ClaimKey(ctx context.Context, name string, token uint64) (string, error) {
	kv, _, err := s.holding(ctx, verb("read", name), name, token, true)
	if err != nil {
		return "", err
	}
	if kv == nil {
		return "", fmt.Errorf("etcd: %q under token %d: the claim: %w", name, token, driver.ErrGone)
	}
	return string(kv.Key), nil
}

// holding returns the claim that holds name under token, and its slots; nil if none does. KeysOnly
// leaves its value and lease out.
func (s *Store) holding(ctx context.Context, what, name string, token uint64, keysOnly bool,
) (*mvccpb.KeyValue, int, error) {
	dir := s.lineDir(name)
	r := oldestFirst(prefixRange(dir))
	r.Limit, r.KeysOnly = 1, keysOnly
	resp, err := s.wire.Get(ctx, what, r)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, 0, err
	}
	// A claim that waits has a token too: only the first holds for sure.
	first := resp.Kvs[0]
	slots, _ := parseClaim(dir, string(first.Key))
	if uint64(first.CreateRevision) == token {
		return first, slots, nil
	}
	if slots == 0 {
		return nil, 0, nil
	}
	if resp, err = s.readLine(ctx, what, name); err != nil {
		return nil, 0, err
	}
	all, held := ranks(dir, resp.Kvs)
	for i, kv := range resp.Kvs {
		if held[i] && uint64(kv.CreateRevision) == token {
			return kv, all[i], nil
		}
	}
	return nil, 0, nil
}
