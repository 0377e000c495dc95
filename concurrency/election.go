package concurrency

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"
)

// Errors of elections. They are the original's own values.
var (
	ErrElectionNotLeader = orig.ErrElectionNotLeader
	ErrElectionNoLeader  = orig.ErrElectionNoLeader
)

// observer is embedded for its Observe, over a client of which every method is ours: what Observe
// returns is a channel of other things in client 3.6 (responses) than in 3.7 (pointers), and so
// it is the one that the program was written for.
type observer = orig.Election

// Election is a line of candidates for one prefix, of whom the first leads.
//
// Observe returns a channel of the leader's key as it is and at each change. It need not show
// every leader, but always shows the latest, and of one leader each value proclaimed, as long as
// etcd has it. It is closed when the context ends or etcd refuses to show the line. While etcd
// cannot be reached, or no one leads, the channel is silent.
type Election struct {
	*observer
	session *Session
	prefix  string

	at      place
	resumed bool // ResumeElection made it
}

// NewElection returns the election of all keys that begin with pfx + "/".
func NewElection(s *Session, pfx string) *Election {
	s.claims.usePrefix(pfx + "/")
	return &Election{observer: orig.NewElection(s.inner, pfx), session: s, prefix: pfx + "/", at: place{s: s}}
}

// ResumeElection returns an election with a leader that is known. As in the original, pfx is
// taken as it is, without a slash at its end. It takes the caller's word for it, and asks nobody:
// until Campaign or Proclaim has returned nil nothing is held, and Token is 0.
//
// If leaderKey is the key of s's own lease, which was brought with WithLease, s keeps it from now
// on; once it turns out to be gone, Key is "".
func ResumeElection(s *Session, pfx string, leaderKey string, leaderRev int64) *Election {
	e := &Election{observer: orig.ResumeElection(s.inner, pfx, leaderKey, leaderRev), session: s, prefix: pfx,
		resumed: true, at: place{s: s, position: position{key: leaderKey, rev: leaderRev}}}
	s.claims.usePrefix(pfx)
	if leaderKey != "" && leaderRev > 0 {
		c, fresh := s.claims.resume(leaderKey, pfx, leaderRev)
		if fresh {
			// It may be attached to a lease that nobody renews any more.
			s.wire.later(func(ctx context.Context) { _ = s.leases.attach(ctx, c) })
		}
		e.at.claim, e.at.kept = c, true
	}
	return e
}

// Campaign stands for the election and returns nil once this session leads and can be relied
// upon. A session that leads or stands already proclaims val. When ctx ends it returns ctx.Err()
// at once, and the key is deleted, in the background if etcd does not answer. It returns
// ErrSessionExpired as soon as the session, or its key, is lost.
//
// An election that leads already leads on where Campaign fails, unless Token is 0 then; whether
// val was proclaimed is unknown.
func (e *Election) Campaign(ctx context.Context, val string) error {
	s := e.session
	in, err := s.lines.enter(ctx, e.prefix, val, false)
	if err != nil {
		return expired(err)
	}
	e.at.take(in.c)
	if in.own != nil && string(in.own.Value) != val && !s.gone() {
		err = e.proclaim(ctx, in.c, val)
	}
	if err == nil && !in.held {
		_, err = s.lines.wait(ctx, in.c, s.abandoned)
	}
	return e.at.ended(in.c, in.header, err)
}

// Proclaim replaces the value announced. ErrElectionNotLeader if this election has no leader key,
// has begun to resign it, or the key or the session is lost. After any other error the outcome is
// unknown; Proclaim may be called again.
func (e *Election) Proclaim(ctx context.Context, val string) error {
	at, _ := e.at.get()
	if at.claim == nil || at.key == "" || at.givingUp || e.session.gone() {
		return ErrElectionNotLeader
	}
	return e.proclaim(ctx, at.claim, val)
}

func (e *Election) proclaim(ctx context.Context, c *claim, val string) error {
	h, err := e.session.lines.proclaim(ctx, c, val)
	e.at.proclaimed(c, h, err, e.resumed)
	if errors.Is(err, errGone) {
		return ErrElectionNotLeader
	}
	return blame(ctx, err)
}

// Resign gives the leadership up: deletes the key if it is still the one that was won. It may be
// called again after an error; meanwhile it is tried on in the background. Without a leadership
// it does nothing. Another Election of this session with the same prefix loses the same key.
func (e *Election) Resign(ctx context.Context) error {
	_, err := e.at.giveUp(ctx)
	return err
}

// Leader returns the leader's key, or ErrElectionNoLeader. It is a linearizable read.
func (e *Election) Leader(ctx context.Context) (*v3.GetResponse, error) {
	resp, err := e.session.wire.get(ctx, e.prefix, v3.WithFirstCreate()...)
	if err != nil {
		return nil, blame(ctx, err)
	}
	if len(resp.Kvs) == 0 {
		return nil, ErrElectionNoLeader
	}
	return resp, nil
}

// Key returns the key that this election leads or waits with, else "". Token tells which.
func (e *Election) Key() string {
	at, token := e.at.get()
	if token == 0 && e.resumed && at.claim != nil && e.session.claims.missed(at.claim) {
		return ""
	}
	return at.key
}

// Rev returns the create revision of the key.
func (e *Election) Rev() int64 {
	at, _ := e.at.get()
	return at.rev
}

// Token returns the fencing token of this leadership, the create revision of its key: larger than
// that of every earlier one of the election. It is 0 without one: while Campaign only waits, and
// as soon as a Resign has begun, also that of another Election of this session on the same
// prefix.
func (e *Election) Token() uint64 {
	_, token := e.at.get()
	return token
}

// Header is the response header of the last successful proposal: of entering the line, or of the
// last Proclaim or Resign.
func (e *Election) Header() *pb.ResponseHeader {
	at, _ := e.at.get()
	return at.header
}
