package core

import (
	"slices"
	"time"
)

// serverRun is one run of the server: what this member has done to it since its start.
type serverRun struct {
	cutOff            bool // it listens to nobody
	following         Identity
	notStreamingSince time.Duration
	fullAt            time.Duration // when its disk was last seen full
	streamsSince      time.Duration // in each look
	needsWAL          bool          // rewound or cloned: it must follow to become consistent
	readTries         int           // of where the WAL ends, since the last one that succeeded, or got on
	readSince         time.Duration // when the first of these was
	recovering        string        // the file of WAL that it replayed at the last try
	bound             bool          // the guardian has confirmed that it ends by the term's deadline
	// Until when commits could wait for another reason than that this machine does not reach its
	// voters: the cluster was paused, too few of them were there to replace this primary, or they
	// had what it had written, see copied.
	excused       time.Duration
	written       LSN    // by this primary, when that was last seen to be copied
	lacksDeadline bool   // the guardian has confirmed that no deadline ends it
	mustEnd       bool   // it must be stopped: a promotion or a bind of unknown outcome
	stuck         bool   // it was told to end, and has not: what ends it waits for its disk
	promoted      uint64 // the token under which its promotion was ordered
	primary       bool   // that promotion is done
	voters        *Voters
	roster        *Roster
	setID         uint64 // of the last SetSync
	setFor        uint64 // the token under which it was ordered
	setAgain      *Sync  // one that failed
}

// watch says whether a server that is to stream has not for too long, and whether it has all the
// time, for long: a walreceiver that is told at once that the WAL is gone may be seen to stream for
// a moment.
func (s *serverRun) watch(o Observation) (astray, steady bool) {
	if o.Server.Follows || !o.leads() {
		s.notStreamingSince, s.needsWAL = o.Now, s.needsWAL && !o.Server.Follows
	}
	if !o.Server.Follows || s.streamsSince == 0 {
		s.streamsSince = o.Now
	}
	if o.Server.Full {
		s.fullAt = o.Now // that is why, and after it the walreceiver needs time to connect
	}
	return o.Now-max(s.notStreamingSince, s.fullAt) > strayAfter, o.Now-s.streamsSince > strayAfter
}

// begin notes what is true from the moment an order goes out.
func (s *serverRun) begin(do Action, o Observation) {
	switch do := do.(type) {
	case Follow:
		s.cutOff = false
	case Unbind:
		s.bound = false // it may be so from now on
	case Promote:
		s.promoted = o.Own.Token
	case SetSync:
		s.setAgain, s.setFor = nil, o.Own.Token
		if s.voters == nil {
			s.voters = NewVoters(do.Sync)
		} else {
			s.voters.Loading(do.Sync)
		}
	}
}

// finish takes the result of an order.
func (s *serverRun) finish(do Action, d Done, o Observation) {
	switch do := do.(type) {
	case Start:
		if d.Err == nil {
			*s = serverRun{cutOff: true, needsWAL: s.needsWAL, promoted: s.promoted}
		}
	case Stop:
		s.mustEnd, s.stuck = s.mustEnd && d.Err != nil, d.Err != nil
	case Seal:
		s.cutOff, s.following = d.Err == nil, Identity{}
	case Follow:
		if d.Err == nil {
			s.following, s.notStreamingSince, s.streamsSince = do.Primary, o.Now, 0
		}
	case SetSync:
		s.setID = d.ID
		if d.Err != nil {
			s.setAgain = &do.Sync
		}
	case Bind:
		s.bound, s.lacksDeadline, s.mustEnd = d.Err == nil, false, d.Err != nil
	case Unbind:
		s.lacksDeadline = d.Err == nil
	case Promote:
		other := o.Server.Primary && o.Server.Timeline != 0 && o.Server.Timeline != do.Timeline // by hand, just then
		s.primary, s.mustEnd = d.Err == nil, d.Err != nil || other
	}
}

// copied says whether enough voters have on disk what this primary had written when it was so last.
// Then they are reached, and a commit that waits does so for another reason: with
// synchronous_commit = remote_apply for a standby that replays nothing, as one that is held up by a
// query. Another primary would have to wait for the same.
func (s *serverRun) copied(o Observation) bool {
	if s.voters == nil || o.Server.Proven != s.setID || o.Server.LSN == 0 {
		return false // a walsender that is frozen may wait for others than were set
	}
	sync := s.voters.Current()
	var flushed []LSN
	for _, x := range o.Server.Senders {
		if x.Counts && slices.Contains(sync.Names, x.Identity.String()) {
			flushed = append(flushed, x.Flushed)
		}
	}
	if sync.Kind != SyncAny || len(flushed) < sync.Acks {
		return false
	}
	slices.Sort(flushed)
	if flushed[len(flushed)-sync.Acks] < s.written {
		return false
	}
	s.written = o.Server.LSN
	return true
}

// hangs says whether a primary must make way for another because it hangs. One that does not end
// then is not waited for.
func (s *serverRun) hangs(o Observation) bool {
	paused := o.Record != nil && o.Record.Paused != nil
	return o.Server.Hung && o.Server.Running && s.promoted != 0 && !s.stuck && !paused
}
