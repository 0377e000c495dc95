package concurrency

import (
	"context"
	"errors"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// released is a key that nothing stands under.
const released = "\x00"

// place is where an election or a mutex stands in a line. Two calls may wait with it at once, and
// one of them fail after the other has won: so what is held is kept apart from the calls under
// way. It is locked before claims.mu.
type place struct {
	s    *Session
	lock bool // a mutex's

	mu sync.Mutex
	position
	calls int  // calls that wait with claim, each one of its users
	kept  bool // one more of claim's users: it was won, or resumed
	won   bool // a call has returned that it holds
}

// position is what an election or a mutex stands with.
type position struct {
	key      string
	rev      int64
	claim    *claim // nil: it stands nowhere
	givingUp bool   // until it is given up or enters anew
	header   *pb.ResponseHeader
}

// get returns the position, and what is held, or 0 if nothing is held or that is being given up.
func (p *place) get() (at position, token uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.won || p.givingUp {
		return p.position, 0
	}
	p.s.claims.mu.Lock()
	defer p.s.claims.mu.Unlock()
	if p.claim.givenUp {
		return p.position, 0
	}
	return p.position, uint64(p.rev)
}

// take is for a call that has entered the line with c.
func (p *place) take(c *claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claim != c {
		p.position = position{key: c.key, rev: c.rev, claim: c, header: p.header}
		p.calls, p.kept, p.won = 0, false, false
	}
	p.calls++
}

// ended ends a call that waited with c, and returns what that call returns. If it failed, only
// its own part in the claim is given up: what was won before, or another call waits for, stands.
func (p *place) ended(c *claim, h *pb.ResponseHeader, err error) error {
	if err == nil && p.s.gone() {
		err = ErrSessionExpired
	}
	p.mu.Lock()
	same := p.claim == c // not given up meanwhile
	if same {
		p.calls--
	}
	if err == nil {
		err = p.winLocked(c, same, h)
	}
	if err == nil {
		p.mu.Unlock()
		return nil
	}
	if same && p.calls == 0 && (!p.kept || p.key == "") {
		p.emptyLocked()
	}
	p.mu.Unlock()
	p.s.removals.quit(c)
	return err
}

// winLocked takes over what a call has won. It may have been given up again, by another object
// too. The caller holds p.mu.
func (p *place) winLocked(c *claim, same bool, h *pb.ResponseHeader) error {
	p.s.claims.mu.Lock()
	defer p.s.claims.mu.Unlock()
	if c.givenUp {
		return ErrSessionExpired
	}
	if same && p.kept {
		c.users-- // counted when it was won first
	}
	if same {
		p.kept, p.won = true, true
	}
	p.header = h
	return nil
}

// emptyLocked has it stand nowhere. The caller holds mu.
func (p *place) emptyLocked() {
	p.key, p.claim, p.calls = "", nil, 0
	p.kept, p.won, p.givingUp = false, false, false
	if p.lock {
		p.key, p.rev = released, -1
	}
}

// giveUp deletes the key that it stands with. Stood says that there was one.
func (p *place) giveUp(ctx context.Context) (stood bool, err error) {
	p.mu.Lock()
	p.givingUp = p.claim != nil
	at := p.position
	p.mu.Unlock()
	if at.claim == nil {
		return false, nil
	}
	var h *pb.ResponseHeader
	if at.key != "" { // no Proclaim has found it gone
		if h, err = p.s.removals.release(ctx, at.key, at.rev); err != nil {
			return true, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claim == at.claim {
		p.emptyLocked()
	}
	if h != nil && !p.lock {
		p.header = h
	}
	return true, nil
}

// proclaimed takes over what became of a Proclaim under c.
func (p *place) proclaimed(c *claim, h *pb.ResponseHeader, err error, resumed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.claim != c: // given up meanwhile, and maybe another one entered
	case err == nil:
		p.header, p.won = h, p.won || resumed && p.kept
	case errors.Is(err, errGone):
		p.key, p.won = "", false
	}
}
