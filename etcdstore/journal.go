package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
)

var _ driver.Journal = (*Store)(nil)

const (
	recordKeyMax = 64
	page         = 500 // keys read or removed at once
)

// journalsDir returns what the keys of all records begin with.
func (s *Store) journalsDir() string { return s.prefix + journals }

// journalDir returns what the keys of one journal's records begin with.
func (s *Store) journalDir(name string) string { return s.journalsDir() + escape(name) + "/" }

// Append implements [driver.Journal]. Where an earlier attempt of the same call may have kept the record, and what is there is the same, nobody
// can tell whose it is: then the outcome is unknown.
func (s *Store) Append(ctx context.Context, name string, r driver.Record, keep int) (there driver.Record, added bool, err error) {
	what := verb("append to journal", name)
	if why := wrongRecord(name, r); why != "" {
		return there, false, refused(what, why)
	}
	if keep < 1 {
		return there, false, refused(what, fmt.Sprintf("keep at least 1 record, not %d", keep))
	}
	resp, doubt, err := s.append(ctx, what, name, r)
	if err != nil {
		return there, false, s.rights(err)
	}
	if resp.Succeeded {
		if n := resp.Responses[1].GetResponseRange().GetCount(); n > int64(keep+slack(keep)) {
			s.trimLater(name, keep)
		}
		return r, true, nil
	}
	kv := one(resp, 0)
	if kv == nil {
		return there, false, fmt.Errorf("etcd: %s: the record %q was removed meanwhile", what, r.Key) // by its end, or beyond those that are kept
	}
	if there = (driver.Record{Key: r.Key, Value: kv.Value}); doubt && string(kv.Value) == string(r.Value) {
		return driver.Record{}, false, fmt.Errorf("etcd: %s: the answer was lost, and the record %q is there: this call may have kept it", what, r.Key)
	}
	return there, false, nil
}

// append is the Txn of Append. A lease for records that cannot be used is done without.
func (s *Store) append(ctx context.Context, what, name string, r driver.Record) (resp *pb.TxnResponse, doubt bool, err error) {
	dir := s.journalDir(name)
	at := s.shelfOf(name)
	for bare, tries := false, 0; ; tries++ {
		lease := int64(0)
		if !bare {
			lease = s.shelfLease(ctx, at)
		}
		var unsure bool
		resp, unsure, err = s.txn(ctx, what, &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(dir+r.Key, 0)},
			Success: []*pb.RequestOp{doPut(dir+r.Key, r.Value, lease),
				doRange(&pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)), CountOnly: true})},
			Failure: []*pb.RequestOp{doGet(dir + r.Key)},
		})
		doubt = doubt || unsure
		switch {
		case bare && err == nil:
			s.shelves.without(at)
			return resp, doubt, nil
		case isGone(err) && tries < 2:
			s.shelves.forget(at)
		case errors.Is(err, driver.ErrRefused) && lease != 0:
			bare = true // a user may attach nothing to a lease with a key that he may not write
		default:
			return resp, doubt, notGone(err)
		}
	}
}

// notGone hides that etcd does not know a lease: no claim of the caller's is gone.
func notGone(err error) error {
	if isGone(err) {
		return fmt.Errorf("the lease of the journal's records has ended: %s", err)
	}
	return err
}

// rights says what a user lacks who is not permitted to use journals.
func (s *Store) rights(err error) error {
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), rpctypes.ErrPermissionDenied.Error()) {
		return err
	}
	return fmt.Errorf("%w (records are kept below %q: the user needs the right to read and write there)", err, s.journalsDir())
}

// Records implements [driver.Journal].
func (s *Store) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	if limit < 1 || name == "" {
		return nil, nil
	}
	dir := s.journalDir(name)
	end := prefixEnd(dir)
	if before != "" {
		end = dir + before
	}
	resp, err := s.get(ctx, verb("read journal", name), &pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(end), Limit: int64(limit),
		SortOrder: pb.RangeRequest_DESCEND, SortTarget: pb.RangeRequest_KEY})
	if err != nil {
		return nil, s.rights(err)
	}
	var all []driver.Record
	for _, kv := range resp.Kvs {
		all = append(all, driver.Record{Key: string(kv.Key[len(dir):]), Value: kv.Value})
	}
	return all, nil
}

// Journals implements [driver.Journal]. It leaps over the rest of a journal whose records fill a page.
func (s *Store) Journals(ctx context.Context, prefix string) (names []string, err error) {
	base := s.journalsDir()
	from, end := base+escape(prefix), prefixEnd(base+escape(prefix))
	for {
		resp, err := s.get(ctx, verb("list journals", prefix), &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end), Limit: page, KeysOnly: true})
		if err != nil {
			return nil, s.rights(err)
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

// pastJournal returns where to read on behind the journal of that record.
func pastJournal(base string, last *mvccpb.KeyValue) string {
	key := string(last.Key)
	if i := strings.IndexByte(key[len(base):], '/'); i >= 0 {
		return prefixEnd(key[:len(base)+i+1])
	}
	return key + "\x00" // no record of ours
}

// slack is how many records more than keep a journal may have before some are removed.
func slack(keep int) int { return 8 + keep/8 }

// trimLater removes records beyond keep, unless somebody in this process is at it.
func (s *Store) trimLater(name string, keep int) {
	if !s.shelves.begin(name) {
		return
	}
	s.later(func(ctx context.Context) {
		defer s.shelves.done(name)
		for more := true; more; {
			more = s.trim(ctx, name, keep)
		}
	})
}

// trim removes records of a journal that are beyond keep, at most page of them. More says that there may be others. What fails is left to the next
// Append: the journal is then only longer.
func (s *Store) trim(ctx context.Context, name string, keep int) (more bool) {
	what, dir := verb("trim journal", name), s.journalDir(name)
	resp, err := s.get(ctx, what, &pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)), KeysOnly: true, Limit: page + 1})
	if err != nil {
		return false
	}
	beyond := int(min(resp.Count-int64(keep), page))
	if beyond <= 0 || beyond >= len(resp.Kvs) {
		return false
	}
	// All below the first that stays. Whatever enters there meanwhile is beyond keep too.
	stays := string(resp.Kvs[beyond].Key)
	_, _, err = s.txn(ctx, what, &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(stays, resp.Kvs[beyond].CreateRevision)},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(dir), RangeEnd: []byte(stays)}}}},
	})
	return err == nil && beyond == page
}

// wrongRecord says why a record cannot be kept, "" if it can.
func wrongRecord(journal string, r driver.Record) string {
	odd := strings.IndexFunc(r.Key, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-.:+_", c))
	})
	switch {
	case journal == "":
		return fmt.Sprintf("the journal of the record %q has no name", r.Key)
	case r.Key == "" || len(r.Key) > recordKeyMax || odd >= 0:
		return fmt.Sprintf("a record's key is 1 to %d letters, digits and -.:+_, not %q", recordKeyMax, r.Key)
	case len(r.Value) > driver.MaxRecord:
		return fmt.Sprintf("the record %q has %d bytes, at most %d can be kept", r.Key, len(r.Value), driver.MaxRecord)
	}
	return ""
}
