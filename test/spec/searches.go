package main

// search is one question to a model, with the answer that it must give.
type search struct {
	Model  string // file name without .pml
	Name   string // what the table calls it
	Says   string // in words
	Define []string
	// "": no error in the whole state space; else what the last line of the counterexample's story
	// must begin with
	Want  string
	Large bool // only with larger bounds
	Cut   bool // small enough for make test
}

const (
	oneLeader = "VIOLATED one leader"
	fenced    = "VIOLATED fence"
	tokenOnce = "VIOLATED token once"
	noGhost   = "VIOLATED no ghost"
	dead      = "VIOLATED dead stays dead"
	stands    = "VIOLATED claim stands"
	lost      = "VIOLATED nothing lost"
	oneAcks   = "VIOLATED one acknowledges"
	reached   = "REACHED"
)

// bases are the models with all rules: the claim itself.
var bases = []search{
	{Model: "lease", Name: "all rules", Says: "ttl 2, drift 1, 2 tokens, 1 resign each",
		Define: []string{"T=2", "CLAIMS=2", "TOKENS=2"}},
	{Model: "lease", Name: "all rules", Says: "ttl 3, drift 1, 2 tokens",
		Define: []string{"T=3", "CLAIMS=1", "TOKENS=2"}},
	{Model: "lease", Name: "all rules, writes", Says: "ttl 2, drift 1, 2 tokens",
		Define: []string{"T=2", "CLAIMS=1", "TOKENS=2", "WRITES"}},
	{Model: "lease", Name: "all rules", Says: "ttl 2, drift 1, 2 tokens",
		Define: []string{"T=2", "CLAIMS=1", "TOKENS=2"}, Cut: true},
	{Model: "raftterm", Name: "all rules", Says: "ttl 3, drift 1, 3 raft terms, 3 leases", Define: []string{"T=3"}},
	{Model: "raftterm", Name: "all rules, entering",
		Says:   "ttl 2, drift 1, 3 raft terms, 3 leases; the claim enters meanwhile",
		Define: []string{"T=2", "ENTERING"}},
	{Model: "raftterm", Name: "all rules", Says: "ttl 2, drift 1, 3 raft terms, 3 leases", Define: []string{"T=2"},
		Cut: true},
	{Model: "observed", Name: "all rules", Says: "ttl 3, drift 1, 3 tokens", Define: []string{"T=3", "TOKENS=3"}},
	{Model: "observed", Name: "all rules, writes", Says: "ttl 2, drift 1, 3 tokens",
		Define: []string{"T=2", "TOKENS=3", "WRITES"}},
	{Model: "observed", Name: "all rules", Says: "ttl 2, drift 1, 2 tokens", Define: []string{"T=2", "TOKENS=2"},
		Cut: true},
	{Model: "observed", Name: "all rules, entering", Says: "ttl 2, drift 1, 3 tokens; a claim's put was given up",
		Define: []string{"T=2", "TOKENS=3", "ENTERING"}},
	{Model: "observed", Name: "all rules, base lease", Says: "ttl 2, drift 1, 2 tokens; below a lease of 6 ticks",
		Define: []string{"T=2", "TOKENS=2", "BASE=6"}},
	{Model: "zk", Name: "all rules", Says: "session timeout 6, drift 1, a ping each tick", Define: []string{"T=6"}},
	{Model: "zk", Name: "all rules", Says: "session timeout 5, drift 1, a ping each tick", Define: []string{"T=5"},
		Cut: true},

	{Model: "seal", Name: "all rules, voters", Says: "3 servers, k 1, 3 terms, 1 commit, 1 change of voters",
		Define: []string{"TERMS=3", "CHANGES=1"}},
	{Model: "seal", Name: "all rules, voters", Says: "3 servers, k 1, 2 terms, 2 commits, 1 change of voters",
		Define: []string{"COMMITS=2", "CHANGES=1"}},
	{Model: "seal", Name: "all rules, voters", Says: "3 servers, k 2, 2 terms, 2 commits, 1 change of voters",
		Define: []string{"COMMITS=2", "CHANGES=1", "K=2"}},
	{Model: "seal", Name: "all rules, wipe", Says: "3 servers, k 1, 2 terms, 1 commit, 1 change, 1 disk wiped",
		Define: []string{"CHANGES=1", "WIPES=1"}},
	{Model: "seal", Name: "all rules, behind", Says: "3 servers, 3 commits; a voter was left behind with a longer WAL",
		Define: []string{"BEHIND", "TERMS=3", "COMMITS=3", "CHANGES=1", "K=2"}},
	{Model: "seal", Name: "all rules", Says: "3 servers, k 1, 2 terms, 1 commit", Define: []string{"TERMS=2"},
		Cut: true},

	{Model: "lease", Name: "all rules", Says: "ttl 2, drift 1, 3 tokens, 1 resign each",
		Define: []string{"T=2", "CLAIMS=2", "TOKENS=3"}, Large: true},
	{Model: "lease", Name: "all rules", Says: "ttl 3, drift 1, 2 tokens, 1 resign each",
		Define: []string{"T=3", "CLAIMS=2", "TOKENS=2"}, Large: true},
	{Model: "raftterm", Name: "all rules", Says: "ttl 3, drift 1, 4 raft terms, 4 leases",
		Define: []string{"T=3", "TERMS=4", "LEASES=4"}, Large: true},
	{Model: "observed", Name: "all rules", Says: "ttl 4, drift 1, 3 tokens", Define: []string{"T=4", "TOKENS=3"},
		Large: true},
	{Model: "zk", Name: "all rules", Says: "session timeout 9, drift 2, a ping each 2 ticks",
		Define: []string{"T=9", "E=2", "P=2"}, Large: true},
	{Model: "seal", Name: "all rules, voters", Says: "3 servers, k 2, 3 terms, 2 commits, 1 change of voters",
		Define: []string{"TERMS=3", "COMMITS=2", "CHANGES=1", "K=2"}, Large: true},
}

// options take one rule out each. Every one must have a counterexample.
var options = []search{
	{Model: "lease", Name: "FROM_REPLY", Says: "the deadline is counted from the reply", Define: []string{"CLAIMS=1"},
		Want: oneLeader},
	{Model: "lease", Name: "NO_DRIFT", Says: "the deadline has no margin for drift", Define: []string{"CLAIMS=1"},
		Want: oneLeader},
	{Model: "lease", Name: "NO_FENCE", Says: "the resource takes any token", Define: []string{"WRITES", "CLAIMS=1"},
		Want: fenced},
	{Model: "lease", Name: "FLAG", Says: "Check reads a flag instead of the clock", Define: []string{"CLAIMS=1"},
		Want: oneLeader},
	{Model: "lease", Name: "RELEASE_FIRST", Says: "the claim is released before the right has ended",
		Define: []string{"CLAIMS=1"}, Want: oneLeader},
	{Model: "lease", Name: "SAME_CLAIM", Says: "a resigned claim is taken up again, and a late resign arrives",
		Define: []string{"ONLY=1", "CLAIMS=1"}, Want: oneLeader},
	{Model: "lease", Name: "SAME_CLAIM", Says: "a resigned claim is taken up again",
		Define: []string{"ONLY=3", "CLAIMS=1"}, Want: tokenOnce},
	{Model: "lease", Name: "STALE_ACK", Says: "the store acknowledges renewals that it does not carry out",
		Define: []string{"CLAIMS=1"}, Want: oneLeader},
	{Model: "lease", Name: "NO_RETRACT", Says: "a release forgets requests that are under way",
		Define: []string{"CLAIMS=1"}, Want: noGhost},

	{Model: "raftterm", Name: "UNVERIFIED", Says: "a keepalive is taken at its word", Want: oneLeader},
	{Model: "raftterm", Name: "NO_TERM_RULE", Says: "a lease of an earlier raft term is trusted", Want: oneLeader},
	{Model: "raftterm", Name: "BEFORE_SETTLED", Says: "a renewal counts before the claim has moved", Want: oneLeader},
	{Model: "raftterm", Name: "ANY_GRANT", Says: "a grant is taken to be of the raft term in its answer",
		Want: oneLeader},
	{Model: "raftterm", Name: "NO_MARK", Says: "Txns of an earlier move still bite", Want: oneLeader},
	{Model: "raftterm", Name: "REVIVE", Says: "an answer after the deadline revives the session", Want: oneLeader},
	{Model: "raftterm", Name: "READ_HEADER", Says: "the raft term is that in a read's header", Want: oneLeader},
	{Model: "raftterm", Name: "ONE_ENTRY", Says: "one request through the log proves a renewal", Want: oneLeader},
	{Model: "raftterm", Name: "AT_ONCE", Says: "no read between the keepalive and the requests", Want: oneLeader},

	{Model: "observed", Name: "FROM_REPLY", Says: "the deadline is counted from the reply",
		Define: []string{"TOKENS=2"}, Want: oneLeader},
	{Model: "observed", Name: "NO_DRIFT", Says: "the deadline has no margin for drift", Define: []string{"TOKENS=2"},
		Want: oneLeader},
	{Model: "observed", Name: "NO_FENCE", Says: "the resource takes any token",
		Define: []string{"WRITES", "TOKENS=2"}, Want: fenced},
	{Model: "observed", Name: "FLAG", Says: "Check reads a flag instead of the clock", Define: []string{"TOKENS=2"},
		Want: oneLeader},
	{Model: "observed", Name: "SHORT_WAIT", Says: "the waiter waits no longer than the holder trusts",
		Define: []string{"T=3", "TOKENS=2"}, Want: oneLeader},
	{Model: "observed", Name: "FROM_ASK", Says: "the waiter counts from when it asked for the key",
		Define: []string{"TOKENS=2"}, Want: oneLeader},
	{Model: "observed", Name: "NO_COMPARE", Says: "the heartbeat key is deleted whatever its revision",
		Define: []string{"TOKENS=2"}, Want: oneLeader},
	{Model: "observed", Name: "REVOKE_FIRST", Says: "the lease is revoked while the heartbeat key stands",
		Define: []string{"TOKENS=2"}, Want: oneLeader},
	{Model: "observed", Name: "ENTER_DEAD", Says: "a claim enters whether its session is dead or not",
		Define: []string{"TOKENS=3", "ENTERING"}, Want: dead},
	{Model: "observed", Name: "NO_BASE", Says: "a heartbeat counts whatever has become of the lease below",
		Define: []string{"TOKENS=2", "BASE=6"}, Want: oneLeader},

	{Model: "zk", Name: "READ", Says: "a read counts, which the follower answers", Want: stands},
	{Model: "zk", Name: "ONE_WRITE", Says: "the client counts from the write that was answered", Want: stands},
	{Model: "zk", Name: "TWO_WRITES", Says: "the client counts from the write before it", Want: stands},
	{Model: "zk", Name: "NO_PACE", Says: "the writes follow one another at once", Want: stands},
	{Model: "zk", Name: "FROM_REPLY", Says: "the client counts from an answer", Want: stands},
	{Model: "zk", Name: "NO_DRIFT", Says: "the deadline has no margin for drift", Want: stands},
	{Model: "zk", Name: "STARVED", Says: "a leader commits while its pings are overdue", Want: stands},
	{Model: "zk", Name: "RACE", Says: "a follower forgets a touch that comes beside a ping", Want: stands},

	{Model: "seal", Name: "UNSEALED", Says: "an answer counts of a member that still listens", Want: oneAcks},
	{Model: "seal", Name: "EARLY", Says: "a member answers while its walreceiver runs", Want: lost},
	{Model: "seal", Name: "PENDING", Says: "a member answers while its promotion is under way",
		Define: []string{"TERMS=3"}, Want: oneAcks},
	{Model: "seal", Name: "FEWER", Says: "one answer less than q is enough", Want: lost},
	{Model: "seal", Name: "Q_FALLS", Says: "q falls at a promotion", Define: []string{"TERMS=3"}, Want: lost},
	{Model: "seal", Name: "LSN_FIRST", Says: "the longer WAL wins, whatever its timeline",
		Define: []string{"BEHIND", "TERMS=3", "COMMITS=3", "CHANGES=1", "K=2"}, Want: lost},
	{Model: "seal", Name: "SAME_LIFE", Says: "a wiped member still counts as the voter that it was",
		Define: []string{"WIPES=1"}, Want: lost},
	{Model: "seal", Name: "DROP_FIRST", Says: "a voter is dropped by the record before SSN",
		Define: []string{"CHANGES=1"}, Want: lost},
	{Model: "seal", Name: "ADD_FIRST", Says: "a voter is added by SSN before the record",
		Define: []string{"CHANGES=1", "ONE_VOTER"}, Want: lost},
	{Model: "seal", Name: "NO_EVIDENCE", Says: "SSN counts as loaded at once", Define: []string{"CHANGES=1", "K=2"},
		Want: lost},
	{Model: "seal", Name: "NO_BARRIER", Says: "q falls before what was committed before has been flushed",
		Define: []string{"CHANGES=1"}, Want: lost},
}

// events must be reachable with all rules, or the models hold because nothing happens in them. The
// i-th of a model is its reached(i+1).
var events = map[string][]string{
	"lease": {
		"a renewal counts",
		"the name is handed over to a waiter",
		"the fence refuses a write",
		"a renewal that was given up is carried out late",
		"a straggler of a released claim is refused",
		"the last token is led with",
		"the store ends the lease of the holder while another waits",
		"a write is applied after one with a smaller token",
	},
	"raftterm": {
		"a renewal counts in the lease's own raft term",
		"the session has moved to a lease of term 2",
		"the session has moved to a lease of term 3",
		"a lease is revoked that the session has left",
		"a straggling Txn of a move is refused",
		"a leader that was deposed proposes to revoke a lease",
		"a leader that was deposed acknowledges",
		"a claim's put finds the record moved",
		"a renewal counts whose proof a later leader has carried out",
	},
	"observed": {
		"a heartbeat counts",
		"the last token is led with",
		"a heartbeat finds its key deleted",
		"a delete finds the key rewritten",
		"a waiter revokes the lease of the one before",
		"the fence refuses a write",
		"a write is applied after one with a smaller token",
		"a put of a claim finds its session dead",
		"a heartbeat does not count for the lease below",
		"the store ends the lease below a heartbeat",
	},
	"zk": {
		"a renewal counts",
		"a leader that was frozen ends the session",
		"a later leader ends the session",
		"a renewal counts after the leader was frozen",
	},
	"seal": {
		"a commit is acknowledged",
		"a former primary acknowledges a commit that the present one has",
		"a primary ends by its own agent",
		"a member is rewound",
		"fewer than all voters are enough",
		"a promotion comes after its term",
		"a record settles other voters",
		"a reply is heard of a member that has left",
	},
}

var models = []string{"lease", "raftterm", "observed", "zk", "seal"}
