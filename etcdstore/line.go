package etcdstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
)

// Line implements [driver.Store]. The revision is etcd's own, which grows with every write to the cluster.
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
	dir := s.lineDir(name)
	return s.get(ctx, what, &pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)),
		SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_CREATE})
}

// line makes a Line of what was read.
func (s *Store) line(ctx context.Context, what, name string, resp *pb.RangeResponse) (driver.Line, error) {
	owners, err := s.ownersOf(ctx, what, resp.Kvs, resp.Header.Revision)
	if err != nil {
		return driver.Line{}, err
	}
	return s.lineOf(name, resp.Kvs, resp.Header.Revision, owners), nil
}

// lineOf puts the claims in order. Whoever wrote them, they hold the line in etcd's own rules.
func (s *Store) lineOf(name string, kvs []*mvccpb.KeyValue, rev int64, owners map[string]owner) driver.Line {
	line := driver.Line{Name: name, Revision: uint64(rev)}
	slots, held := ranks(s.lineDir(name), kvs)
	for i, kv := range kvs {
		st := entryOf(sessionOf(kv), kv, owners[sessionOf(kv)])
		st.Slots, st.Held = slots[i], held[i]
		if i == 0 {
			line.Holder = &st
		} else {
			line.Waiters = append(line.Waiters, st)
		}
	}
	return line
}

// ranks returns, of all claims of a line, oldest first, how many slots each has and whether it holds.
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

// entryOf describes one claim. ID is what its key ends in.
func entryOf(id string, kv *mvccpb.KeyValue, who owner) driver.Entry {
	st := driver.Entry{Token: uint64(kv.CreateRevision), Value: kv.Value}
	switch {
	case kv.Lease == 0:
		st.Note = "has no lease: it never expires, and stands until somebody deletes it"
	case who.known && id != "":
		st.Owner, st.Note, st.Lease = who.name, who.note, id
	default:
		st.Lease, st.Note = hex(kv.Lease), who.note
		if id != st.Lease {
			st.Note = "its key does not end in its lease: another program wrote it"
		}
	}
	return st
}

// Next implements [driver.Store]. It watches the line, reads it after each signal, and from time to time without one.
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	what := verb("next", name)
	changed := make(chan struct{}, 1)
	dir := s.lineDir(name)
	sub := s.hub.watch(span{key: dir, end: prefixEnd(dir), puts: true}, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer sub.stop()
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
		pause := poll()
		if err != nil {
			pause = again
		}
		if err := s.pause(ctx, changed, pause); err != nil {
			return driver.Line{}, fmt.Errorf("etcd: %s: %w", what, err)
		}
	}
}

// pause waits for a signal, at most for d. It returns an error if ctx or the store ends first.
func (s *Store) pause(ctx context.Context, changed <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return errClosed
	}
	return nil
}

// baseline is a revision at which the line is known to be as the caller of Next saw it.
type baseline struct {
	rev   int64
	count int64 // how many claims stood; -1: not known yet
}

// differs reports whether the line as read differs from the one at the baseline, which otherwise moves up to it. Claims
// that came or changed show it by their mod revision. With none of those, all that stand stood before, and the line has
// changed only if there are fewer.
func (s *Store) differs(ctx context.Context, what, dir string, now *pb.RangeResponse, base *baseline) (bool, error) {
	rev, count := now.Header.Revision, int64(len(now.Kvs))
	if rev < base.rev {
		return false, nil // a cluster restored from a backup; it must not show an older line
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
		old, err := s.get(ctx, what, &pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)), Revision: base.rev, CountOnly: true})
		if err != nil {
			if errors.Is(err, rpctypes.ErrCompacted) {
				return true, nil // nobody can tell any more; to show the line once too often is harmless
			}
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

// Lines implements [driver.Lister].
func (s *Store) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	what := verb("lines", prefix)
	kvs, rev, err := s.readLines(ctx, what, s.prefix+escape(prefix))
	if err != nil {
		return nil, err
	}
	byName := map[string][]*mvccpb.KeyValue{}
	var all []*mvccpb.KeyValue
	for _, kv := range kvs {
		dir, _, ok := bytes.Cut(kv.Key[len(s.prefix):], []byte("/"))
		name, plain := unescape(string(dir))
		if !ok || !plain {
			continue // a session's record, or no claim of any name
		}
		byName[name] = append(byName[name], kv)
		all = append(all, kv)
	}
	owners, err := s.ownersOf(ctx, what, all, rev)
	if err != nil {
		return nil, err
	}
	lines := make([]driver.Line, 0, len(byName))
	for name, kvs := range byName {
		lines = append(lines, s.lineOf(name, kvs, rev, owners))
	}
	slices.SortFunc(lines, func(a, b driver.Line) int { return cmp.Compare(a.Name, b.Name) })
	return lines, nil
}

// readLines reads all keys that begin with from, those of one line oldest first, but not what is no line: journals may be long.
func (s *Store) readLines(ctx context.Context, what, from string) (kvs []*mvccpb.KeyValue, rev int64, err error) {
	oldest := func(from, end string) *pb.RangeRequest {
		return &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end), SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_CREATE}
	}
	if from != s.prefix {
		resp, err := s.get(ctx, what, oldest(from, prefixEnd(from)))
		if err != nil {
			return nil, 0, err
		}
		return resp.Kvs, resp.Header.Revision, nil
	}
	resp, _, err := s.txn(ctx, what, &pb.TxnRequest{Success: []*pb.RequestOp{
		doRange(oldest(from, from+noLine)), doRange(oldest(from+pastNoLine, prefixEnd(from)))}})
	if err != nil {
		return nil, 0, err
	}
	return append(found(resp, 0), found(resp, 1)...), resp.Header.Revision, nil
}
