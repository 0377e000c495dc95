package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
)

func isGone(err error) bool { return errors.Is(err, driver.ErrGone) }

// verb names what is done to which name, for errors.
func verb(what, name string) string { return fmt.Sprintf("%s %q", what, name) }

// Claim implements [driver.Lease]. Claims on different names enter together, those on one name in order. Where any is a Try they enter one
// after another: where one is taken, those with Try that entered before it in the same call are taken out again.
func (l *lease) Claim(ctx context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	if len(claims) > 1 && !slices.ContainsFunc(claims, func(c driver.Claim) bool { return c.Try }) {
		return l.claimMany(ctx, claims)
	}
	places := make([]driver.Place, 0, len(claims))
	for i, c := range claims {
		p, err := l.claim(ctx, c)
		if err != nil {
			if errors.Is(err, driver.ErrTaken) {
				for j, back := range claims[:i] {
					if !back.Try {
						continue
					}
					if rerr := l.Release(ctx, places[j]); rerr != nil {
						return nil, rerr // unknown: something may be left in the line
					}
				}
			}
			return nil, err
		}
		places = append(places, p)
	}
	return places, nil
}

// claim enters one claim, or finds its place again.
func (l *lease) claim(ctx context.Context, c driver.Claim) (driver.Place, error) {
	if why := wrong(c); why != "" {
		return driver.Place{}, refused(verb("claim", c.Name), why)
	}
	sl := l.open(spot{c.Name, c.Seat})
	defer l.drop(sl)
	if err := sl.lock(ctx); err != nil {
		return driver.Place{}, fmt.Errorf("etcd: %s: %w", verb("claim", c.Name), err)
	}
	defer sl.unlock()
	return l.claimIn(ctx, sl, c, l.stand)
}

// claimIn is claim for who has the slot's turn. How it enters is left to enter.
func (l *lease) claimIn(ctx context.Context, sl *slot, c driver.Claim, enter func(context.Context, *slot, driver.Claim) (driver.Place, error)) (driver.Place, error) {
	if l.over() {
		return driver.Place{}, l.goneErr(verb("claim", c.Name))
	}
	if l.wasSpent(c.ID) {
		return driver.Place{}, placeGone("claim", c.Name) // before it pushes out the claim that stands now
	}
	// A place that another ID has, or had and may still get, is never taken up: it may be about to be released.
	// Nor is one that we failed to take out.
	l.mu.Lock()
	stale := sl.id != "" && (sl.id != c.ID || sl.leaving)
	other := sl.slots
	differs := sl.id != "" && !stale && sl.slots != c.Slots
	l.mu.Unlock()
	if differs {
		return driver.Place{}, refused(verb("claim", c.Name), fmt.Sprintf("under the same ID it was claimed with %s, not %s", countSlots(other), countSlots(c.Slots)))
	}
	if stale {
		if err := l.retract(ctx, sl, nil); err != nil {
			return driver.Place{}, err
		}
	}
	cctx, ok := l.begin(ctx, sl, c)
	if !ok {
		return driver.Place{}, placeGone("claim", c.Name)
	}
	p, err := enter(cctx, sl, c)
	l.finish(sl)
	if err == nil || !final(err) {
		return p, err
	}
	// A final answer promises that nothing is left in the line and nothing will come.
	if rerr := l.retract(ctx, sl, nil); rerr != nil {
		return p, rerr
	}
	if isGone(err) {
		l.mu.Lock()
		l.spent.add(c.ID) // what is gone never exists again
		l.mu.Unlock()
	}
	return p, err
}

// wasSpent reports whether the claim ID was given up.
func (l *lease) wasSpent(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spent.ids[id]
}

// final reports whether err is one of the answers that a caller takes for the last word.
func final(err error) bool {
	return isGone(err) || errors.Is(err, driver.ErrTaken) || errors.Is(err, driver.ErrRefused)
}

// begin notes that c is about to enter, so that a Release from now on finds it. It reports false if one came already.
func (l *lease) begin(ctx context.Context, sl *slot, c driver.Claim) (context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spent.ids[c.ID] {
		return nil, false
	}
	sl.id, sl.slots, sl.key = c.ID, c.Slots, l.s.claimKey(sl.spot, c.Slots, l.stem)
	ctx, sl.stop = context.WithCancel(ctx)
	return ctx, true
}

// finish ends what begin began.
func (l *lease) finish(sl *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sl.stop()
	sl.stop = nil
}

// stand enters c, unless it stands already.
func (l *lease) stand(ctx context.Context, sl *slot, c driver.Claim) (driver.Place, error) {
	l.mu.Lock()
	p := sl.place()
	l.mu.Unlock()
	if p.Token == 0 {
		return l.enter(ctx, sl, c)
	}
	what := verb("claim", c.Name)
	st, err := l.look(ctx, what, p)
	if err != nil {
		return driver.Place{}, err
	}
	if !st.stands {
		return driver.Place{}, placeGone("claim", c.Name)
	}
	if p.Held = st.held; st.held {
		l.show(p, st)
	}
	if c.Try && !st.held {
		return driver.Place{}, taken(what)
	}
	return p, nil
}

func taken(what string) error { return fmt.Errorf("etcd: %s: %w", what, driver.ErrTaken) }

// enter puts the claim's key. The caller has the turn and has called begin.
func (l *lease) enter(ctx context.Context, sl *slot, c driver.Claim) (driver.Place, error) {
	for lean := c.Slots == 0 && !c.Try; ; {
		at := l.anchored()
		req, err := l.entry(ctx, sl, c, at)
		if err != nil {
			return driver.Place{}, err
		}
		if lean {
			req.Failure = nil // it is not expected to fail, and every byte goes through etcd's log
		}
		resp, doubt, err := l.send(ctx, c, req)
		if doubt {
			l.doubt(sl)
		}
		if err != nil {
			if isGone(err) {
				l.end()
			}
			return driver.Place{}, err
		}
		if resp.Succeeded {
			if c.Slots == 0 && !c.Try {
				l.found(sl, resp, 0)
			}
			return l.entered(sl, resp.Header.Revision, resp.Header.Revision, free(c.Slots, resp)), nil
		}
		if lean {
			lean = false // now it must tell why
			continue
		}
		if p, err, done := l.failed(ctx, sl, c, at, resp); done {
			return p, err
		}
	}
}

// failed deals with an entry whose compares failed, by what it has read. Done says that the claim needs no further try.
func (l *lease) failed(ctx context.Context, sl *slot, c driver.Claim, at anchor, resp *pb.TxnResponse) (p driver.Place, err error, done bool) {
	own, rec := one(resp, 0), one(resp, 1)
	switch {
	case rec == nil || rec.CreateRevision != l.born:
		return p, l.lost(verb("claim", c.Name)), true
	case own != nil:
		return l.adopt(ctx, sl, c, own)
	case rec.ModRevision != at.mark:
		// Another name's claim was retracted meanwhile, or all were moved. Puts of ours from before can no longer enter.
		l.learn(rec.ModRevision, rec.Lease)
	case c.Slots != 0 && (one(resp, 2) != nil || one(resp, 3) != nil):
		return p, l.mixed(verb("claim", c.Name), c, append(found(resp, 2), found(resp, 3)...)[0]), true
	case c.Try && c.Slots <= 0:
		l.s.passingAll(found(resp, len(resp.Responses)-1))
		return p, taken(verb("claim", c.Name)), true // of a semaphore the line has only changed since it was read
	}
	return p, nil, false
}

// send sends what entry returned. Shared claims go alone: their Txns are wide, and each changes the line that the next one compares.
func (l *lease) send(ctx context.Context, c driver.Claim, req *pb.TxnRequest) (*pb.TxnResponse, bool, error) {
	if c.Slots != 0 {
		return l.s.txn(ctx, verb("claim", c.Name), req)
	}
	return l.together(ctx, "claim", c.Name, req, nil)
}

// entry is the Txn that puts a claim: only if the session's record is as we know it and the key is not there, with Try
// only if it then holds. It learns in the same step what stands before it.
func (l *lease) entry(ctx context.Context, sl *slot, c driver.Claim, at anchor) (*pb.TxnRequest, error) {
	if c.Slots != 0 {
		return l.sharedEntry(ctx, sl, c, at)
	}
	dir := l.s.lineDir(c.Name)
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(l.key, at.mark), ifCreate(sl.key, 0)},
		Success: []*pb.RequestOp{doPut(sl.key, c.Value, at.id)},
		Failure: []*pb.RequestOp{doGet(sl.key), doGet(l.key)},
	}
	if c.Try {
		req.Compare[1] = ifNone(dir)
		req.Failure = append(req.Failure, neighbours(dir)) // who is in its way
		return req, nil
	}
	// In a Txn reads see what stands before them in its list, so ours is not among these.
	req.Success = []*pb.RequestOp{neighbours(dir), doPut(sl.key, c.Value, at.id)}
	return req, nil
}

// adopt deals with a key of ours that stands already. It is this claim's if an earlier put of it was in doubt; otherwise
// somebody else wrote it, and it is removed. Done says that the claim needs no further try.
func (l *lease) adopt(ctx context.Context, sl *slot, c driver.Claim, own *mvccpb.KeyValue) (driver.Place, error, bool) {
	l.mu.Lock()
	ours := sl.doubt && own.Lease != 0
	l.mu.Unlock()
	if !ours {
		err := l.remove(ctx, sl.name, sl.key, own.CreateRevision, nil)
		return driver.Place{}, err, err != nil
	}
	l.entered(sl, own.CreateRevision, own.ModRevision, false)
	p, err := l.stand(ctx, sl, c)
	return p, err, true
}

// doubt notes that a put of the slot's claim may still be under way.
func (l *lease) doubt(sl *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sl.doubt = true
}

// found keeps what the Txn that entered the slot's claim has read, as its i-th operation, of those before it: nothing, where there may be more.
func (l *lease) found(sl *slot, resp *pb.TxnResponse, i int) {
	ahead, all := byAge(found(resp, i))
	l.mu.Lock()
	defer l.mu.Unlock()
	if sl.ahead, sl.at = nil, 0; all {
		sl.ahead, sl.at = ahead, resp.Header.Revision
	}
}

// entered notes that the claim stands, and returns its place. Who enters behind a claim that holds from the start sees that it does.
func (l *lease) entered(sl *slot, create, mod int64, held bool) driver.Place {
	l.mu.Lock()
	sl.token, sl.mod, sl.shown = uint64(create), mod, held
	p := sl.place()
	l.mu.Unlock()
	p.Held = held
	l.news.bear(sl.spot, p.Token)
	return p
}
