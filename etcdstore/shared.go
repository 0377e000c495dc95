package etcdstore

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
)

// sharedEntry is entry for a claim with slots. That no shared claim with another number stands is compared too: of two that enter
// at once the later finds the earlier.
func (l *lease) sharedEntry(ctx context.Context, sl *slot, c driver.Claim, at anchor) (*pb.TxnRequest, error) {
	dir := l.s.lineDir(c.Name)
	same := slotsDir(dir, c.Slots)
	below, above := [2]string{dir + sharedMark, same}, [2]string{prefixEnd(same), dir + sharedEnd}
	other := func(in [2]string) *pb.RequestOp {
		return doRange(&pb.RangeRequest{Key: []byte(in[0]), RangeEnd: []byte(in[1]), Limit: 1, KeysOnly: true})
	}
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(l.key, at.mark), ifCreate(sl.key, 0), ifEmpty(below[0], below[1]), ifEmpty(above[0], above[1])},
		Failure: []*pb.RequestOp{doGet(sl.key), doGet(l.key), other(below), other(above)},
	}
	put := doPut(sl.key, c.Value, at.id)
	switch {
	case !c.Try:
		req.Success = append(before(dir, c.Slots, 0), put)
		return req, nil
	case c.Slots == driver.Unlimited:
		req.Compare = append(req.Compare, ifEmpty(dir, dir+sharedMark))
		req.Failure = append(req.Failure, doRange(&pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(dir + sharedMark), KeysOnly: true, Limit: nearby}))
	default:
		rev, err := l.room(ctx, sl, c)
		if err != nil {
			return nil, err
		}
		req.Compare = append(req.Compare, ifNoneAfter(dir, rev)) // then there is still room, if not more
	}
	req.Success = []*pb.RequestOp{put}
	return req, nil
}

// room returns a revision at which one more claim on the semaphore would have held. Without room it is [driver.ErrTaken]: nothing needs to
// enter, stand in others' way for a moment, and be taken out again.
func (l *lease) room(ctx context.Context, sl *slot, c driver.Claim) (int64, error) {
	what, dir := verb("claim", c.Name), l.s.lineDir(c.Name)
	resp, _, err := l.s.txn(ctx, what, &pb.TxnRequest{Success: []*pb.RequestOp{
		doRange(&pb.RangeRequest{Key: []byte(sl.key), KeysOnly: true}),
		doRange(&pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)), Limit: int64(c.Slots), KeysOnly: true}),
	}})
	if err != nil {
		return 0, err
	}
	if one(resp, 0) != nil {
		return resp.Header.Revision, nil // of an earlier put in doubt: the entering Txn finds it too
	}
	line := found(resp, 1)
	full := len(line) == c.Slots
	for _, kv := range line {
		n, _ := parseClaim(dir, string(kv.Key))
		if n != 0 && n != c.Slots {
			return 0, l.mixed(what, c, kv)
		}
		full = full || n == 0
	}
	if full {
		l.s.passingAll(line)
		return 0, taken(what)
	}
	return resp.Header.Revision, nil
}

// mixed is the error for a claim whose slots are not those of other, which stands in the line.
func (l *lease) mixed(what string, c driver.Claim, other *mvccpb.KeyValue) error {
	n, _ := parseClaim(l.s.lineDir(c.Name), string(other.Key))
	return refused(what, fmt.Sprintf("the claims in the line have %s, this one %s: all who share a name must give the same number",
		countSlots(n), countSlots(c.Slots)))
}

// free says whether the claim that this Txn entered holds, from what it read of those before.
func free(slots int, entered *pb.TxnResponse) bool {
	held, _ := verdict("", slots, found(entered, 0), found(entered, 1))
	return held
}

// wrong says what is wrong with c, "" if nothing.
func wrong(c driver.Claim) string {
	for i := 0; i < len(c.Seat); i++ {
		if b := c.Seat[i] | 0x20; (b < 'a' || b > 'z') && (c.Seat[i] < '0' || c.Seat[i] > '9') {
			return fmt.Sprintf("a seat has letters and digits only, not %q", c.Seat)
		}
	}
	if len(c.Seat) > seatMax {
		return fmt.Sprintf("a seat has %d letters and digits at most, %q has %d", seatMax, c.Seat, len(c.Seat))
	}
	if c.Slots < driver.Unlimited {
		return fmt.Sprintf("a claim cannot have %d slots", c.Slots)
	}
	return ""
}

const seatMax = 16

// countSlots says a number of slots in words.
func countSlots(n int) string {
	switch n {
	case 0:
		return "no slots"
	case 1:
		return "1 slot"
	case driver.Unlimited:
		return "any number of slots"
	}
	return fmt.Sprintf("%d slots", n)
}
