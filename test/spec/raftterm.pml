/* The store is a raft cluster: etcd, under a session of ours (etcdstore/renew.go, move.go).
 *
 * lease.pml takes it for granted that an accepted renewal holds in the store. On etcd that takes work. Keepalives and expiry do
 * not go through raft: the leader of the day keeps the leases' clocks in its memory. A leader that was paused or cut off does not
 * know that it is deposed, until it hears of it: it acknowledges keepalives, and when a lease ends by its stale clock it proposes
 * to revoke it, which its successor carries out.
 *
 * One session, whose record and one claim are keys under an etcd lease. Each raft term has its leader, which knows the leases
 * granted before and while it led. A tick is one of the members' clocks; the session's clock may miss up to E of T. A rival
 * leads as soon as the claim's key is gone, so that one leader says:
 *
 *   one leader       while the session's Check says yes, its claim stands
 *
 * Requests are lost, answers are late, calls are given up and their Txns carried out later. Each of these takes one rule out:
 *   UNVERIFIED           a keepalive is taken at its word, without the proof that follows it
 *   READ_HEADER          the proof is a read, and the raft term is the one in its answer's header
 *   ONE_ENTRY            the proof is one request through the log, so that its answer may show an old raft term
 *   AT_ONCE              the two requests through the log follow the keepalive at once, without the read in between
 *   NO_TERM_RULE         a verified renewal counts also for a lease of an earlier raft term
 *   BEFORE_SETTLED       a renewal counts when the record has moved to the new lease, before the claim has
 *   ANY_GRANT            a grant is taken to be of the raft term in its answer, without the newest term known before
 *   NO_MARK              the Txns of a move do not compare the record's mod revision: old ones still bite
 *   REVIVE               a renewal that is answered after the deadline revives the session
 */
#ifndef T
#define T 2             /* ttl of a lease, in ticks of the members' clocks */
#endif
#ifndef E
#define E 1             /* ticks of T that the session's clock may miss */
#endif
#ifndef TERMS
#define TERMS 3         /* raft terms */
#endif
#ifndef LEASES
#define LEASES 3        /* etcd leases granted in all */
#endif
#define SPAN (T - E)
#define UNKNOWN (T + 1)
#ifdef AT_ONCE
#define PROPOSING Acked
#else
#define PROPOSING Reading
#endif
#ifndef REACH
#define REACH 0         /* not 0: fail where the event of that number happens, to show that it can */
#endif
#define reached(event) if :: REACH == event -> printf("REACHED event %d.\n", event); assert(false) :: else fi

mtype = { Idle, Keepalive, Admitted, Acked, Reading, Proposed, Granting, Granted, Attaching, Settling }  /* where the session's Renew is */

typedef Leadership {                    /* the leader of one raft term: an incarnation, not a member */
	bit leads;                      /* by its own lights: until it hears of a later term */
	byte left[LEASES + 1];          /* ticks to each lease's end on its clock, or UNKNOWN */
}
Leadership leader[TERMS + 1];
byte now = 1;                       /* the present raft term */
byte committed = 1;                 /* the newest raft term that a committed entry bears */

/* What raft agrees on. Leases are numbered as they are granted. */
byte granted = 1;                   /* how many leases were granted */
bit  alive[LEASES + 1];
bit  revoke[LEASES + 1];            /* a proposal to revoke it is under way to the present leader */
byte record = 1;                    /* the lease that the session's record hangs on; 0: gone */
byte claim;                         /* the lease that the claim hangs on; 0: it does not stand */
byte mark = 1;                      /* the record's mod revision, which every move raises */

/* The session (etcdstore.lease and its anchor; internal/core.Lease). */
mtype at = Idle;
bit  over;                          /* its deadline has passed */
byte age; byte missed;              /* since the send of the last renewal that counted, on its clock */
byte sent; byte sentMissed;         /* since the send of the renewal under way */
byte id = 1; byte term = 1; byte known = 1; bit settled = 1;    /* anchor: lease, its raft term, the record's mark as known; all claims moved */
byte seen = 1;                      /* the newest raft term seen in any answer */
byte acker;                         /* the term of the leader that is about to answer the keepalive */
bit  acked;                         /* it knew the lease */
byte entry; byte holder;            /* the first of the two requests: the raft term it bears in the log; the last leader that has it in its log */
byte fresh; byte before;            /* the lease just granted; the newest term seen before it was asked for */
/* The claim: it was begun, so that a move looks for it; it is known to stand; a move under way looks for it; a put of it travels. */
bit  begun; bit token; bit looked; bit put; byte putLease; byte putMark;
/* A Txn that was given up and still travels: attach the record, or the claim, to a lease if the mark is still so. */
mtype late; byte lateLease; byte lateMark;

#ifdef REVIVE
#define leading (token && age < SPAN)
#else
#define leading (token && !over && age < SPAN)
#endif
#ifdef NO_MARK
#define marked(m) true
#else
#define marked(m) (mark == m)
#endif
#define knows(n, l) (leader[n].leads && leader[n].left[l] != UNKNOWN)

inline judge() {
	if
	:: leading && claim == 0 -> printf("VIOLATED one leader: the claim is gone, so that a rival leads, while the session's check says yes.\n"); assert(false)
	:: else
	fi
}
inline finish() { at = Idle; sent = 0; sentMissed = 0; acker = 0; acked = 0; entry = 0; holder = 0; fresh = 0; before = 0; looked = 0 }
inline lost()   { over = 1; finish(); printf("The session learns that its record or its claim is gone. It is over.\n") }
inline accept() {
	age = sent; missed = sentMissed; finish();
	printf("The renewal counts: the session trusts its lease for %d tick(s) from when it sent the keepalive.\n", SPAN);
	judge()
}
/* The record is another than was known: by an earlier move whose answer was lost. What lease that was is not known. */
inline learn() {
	if :: record != id -> id = record; term = 0; settled = 0 :: else fi;
	known = mark
}
/* The record as it stands is read, and the answer is taken to show raft term t. */
inline proved(t) {
	if :: seen < t -> seen = t :: else fi;
	printf("The answer shows the record on lease %d, in term %d.\n", record, t);
	if
	:: record == 0 -> lost()
	:: record != 0 && record != id -> learn(); move(); printf("An earlier move was carried out: moved once more.\n")
#ifndef NO_TERM_RULE
	:: record == id && t != term ->
		move(); printf("That is not the term that lease %d is taken to be of: the session moves to a new one.\n", id)
#endif
	:: else ->
		if
		:: !acked -> finish(); printf("The keepalive found no lease: the renewal fails.\n")
		:: acked && !settled -> settle()
		:: else -> reached(1); if :: entry < holder -> reached(9) :: else fi; accept()
		fi
	fi
}
inline move()   { before = seen; at = Granting; acked = 0; entry = 0; holder = 0 }
inline settle() { at = Settling; looked = begun; acked = 0; entry = 0; holder = 0 }

/* Txns, as the cluster carries them out: compare, then attach. */
inline attach_record(lease, compare, done) {
	done = 0;
	if
	:: record != 0 && marked(compare) && alive[lease] -> record = lease; mark++; committed = now; done = 1
	:: else
	fi
}
inline attach_claim(lease, compare, done) {
	done = 0;
	if
	:: record != 0 && marked(compare) && claim != 0 && alive[lease] -> claim = lease; committed = now; done = 1
	:: else
	fi
}

/* The cluster agrees on a next leader. Who led before goes on leading by its own lights. An entry that is in the log of some leader and not
 * committed is in the next one's log or not. It keeps its term. It cannot be there once an entry of a later term is committed. */
inline elect() {
	now++; leader[now].leads = 1;
	l = 1; do :: l <= LEASES -> leader[now].left[l] = (alive[l] -> T : UNKNOWN); l++ :: else -> break od; l = 0;
	printf("The leader of term %d is paused or cut off. Term %d begins: its leader gives every lease its full ttl again.\n", now - 1, now)
}
proctype Election() {
	byte l;
	do
	:: d_step { !over && now < TERMS -> elect() }
	:: d_step { !over && now < TERMS && at == Proposed && committed <= entry ->
		elect(); holder = now; printf("It has the session's request of term %d in its log.\n", entry) }
	od
}
proctype Leader(byte n) {
	byte l;
	do
	/* It acknowledges keepalives by itself. To look whether the lease has ended and to put its end off are two steps. */
	:: d_step { !over && at == Keepalive && knows(n, id) && leader[n].left[id] > 0 ->
		at = Admitted; acker = n; printf("The leader of term %d finds that lease %d has not ended.\n", n, id) }
	:: d_step { !over && at == Keepalive && leader[n].leads && leader[n].left[id] == UNKNOWN ->
		at = Acked; printf("The leader of term %d answers the keepalive: it knows no lease %d.\n", n, id) }
	:: d_step { !over && at == Admitted && acker == n ->
		at = Acked; acked = !leader[n].leads || knows(n, id);
		if :: knows(n, id) -> leader[n].left[id] = T :: else fi;
		if :: acked && n < now -> reached(7) :: else fi;
#ifndef UNVERIFIED
		acker = 0;      /* the term in its answer does not count */
#endif
		printf("The leader of term %d acknowledges the keepalive of lease %d.\n", n, id) }
	/* It takes requests into its log, also when it is deposed: then they are carried out only if a later leader has them in its log. */
	:: d_step { !over && at == PROPOSING && leader[n].leads ->
		at = Proposed; entry = n; holder = n; printf("The leader of term %d takes two requests of the session into its log.\n", n) }
	:: d_step { !over && n < now && leader[n].leads ->
		leader[n].leads = 0;
		l = 1; do :: l <= LEASES -> leader[n].left[l] = UNKNOWN; l++ :: else -> break od; l = 0;
		printf("The leader of term %d hears that it was deposed.\n", n) }
	od
}
/* A lease ends by a leader's clock. The proposal is carried out at any time, or never. */
proctype Expiry(byte n; byte l) {
	do
	:: d_step { !over && leader[n].leads && leader[n].left[l] == 0 && alive[l] && !revoke[l] ->
		revoke[l] = 1; if :: n < now -> reached(6) :: else fi;
		printf("Lease %d has ended by the clock of the leader of term %d, which proposes to revoke it.\n", l, n) }
	od
}
proctype Proposal(byte l) {
	do
	:: d_step { !over && revoke[l] ->
		revoke[l] = 0; alive[l] = 0; committed = now; leader[now].left[l] = UNKNOWN;
		printf("The cluster revokes lease %d, with every key on it.\n", l);
		if :: record == l -> record = 0 :: else fi;
		if :: claim == l -> claim = 0 :: claim != 0 && claim != l -> reached(4) :: else fi;
		judge() }
	:: d_step { !over && revoke[l] ->
		revoke[l] = 0; printf("The proposal to revoke lease %d is lost.\n", l) }
	od
}

/* Renew: a keepalive, then a read, then two requests through the log; in another raft term a move. */
proctype Renew() {
	bit done;
	do
	:: d_step { !over && at == Idle && age < SPAN ->
		at = Keepalive; printf("The session sends a keepalive for lease %d.\n", id) }
#ifdef UNVERIFIED
	:: d_step { !over && at == Acked ->
		if :: acked && acker == term -> accept() :: acked && acker != term -> finish() :: else -> lost() fi }
#endif
#ifdef READ_HEADER
	:: d_step { !over && at == Acked ->
		committed = now; proved(now) }
	:: d_step { !over && at == Acked && term != 0 && term < now ->
		committed = now; printf("The member asked has caught up by a snapshot: its answer shows the old raft term.\n"); proved(term) }
#endif
#ifndef AT_ONCE
	/* A linearizable read: a leader whose entry of its own term is committed asks a majority whether it still leads. */
	:: d_step { !over && at == Acked ->
		committed = now; at = Reading;
		printf("A read is answered: the leader of term %d had a majority after the keepalive.\n", now) }
#endif
	/* A leader commits what is in its log with an entry of its own term. The requests are carried out, and answered under the term of the first
	 * of them or a later one. They only read, so one that was given up does nothing, whenever it is carried out. */
	:: d_step { !over && at == Proposed && holder == now ->
		committed = now; printf("The requests of term %d are carried out in term %d.\n", entry, now); proved(entry) }
	:: d_step { !over && at == Proposed && holder == now && entry < now ->
		committed = now; printf("The requests of term %d are carried out, and answered in term %d.\n", entry, now); proved(now) }
#ifdef ONE_ENTRY
	:: d_step { !over && at == Proposed && holder == now && term != 0 && term < entry ->
		committed = now; printf("The request is carried out by a member that has caught up by a snapshot: its answer shows the old raft term.\n"); proved(term) }
#endif
	:: d_step { !over && at == Granting && granted < LEASES ->
		committed = now; granted++; fresh = granted; alive[fresh] = 1; leader[now].left[fresh] = T; at = Granted;
		printf("In term %d the cluster grants lease %d.\n", now, fresh) }
	/* Its answer carries the term of that moment, a later one, or an old one. */
#ifdef ANY_GRANT
	:: d_step { !over && at == Granted ->
		committed = now; before = now; at = Attaching; printf("The answer shows term %d.\n", now) }
#else
	:: d_step { !over && at == Granted ->
		at = Attaching; printf("The answer shows term %d, the newest known before: so lease %d is of it or of a later one.\n", before, fresh) }
	:: d_step { !over && at == Granted && now != before ->
		committed = now; seen = now; fresh = 0; move(); printf("The answer shows term %d, newer than was known: asked for again.\n", now) }
#endif
	:: d_step { !over && at == Attaching ->
		attach_record(fresh, known, done);
		if
		:: done ->
			id = fresh; term = before; known = mark; settled = 0; settle(); fresh = 0; before = 0;
			printf("The session's record hangs on lease %d now.\n", id);
#ifdef BEFORE_SETTLED
			accept()
#endif
		:: !done && record == 0 -> lost()
		:: !done && record != 0 && mark != known -> learn(); printf("The record has changed meanwhile.\n")
		:: else -> finish(); printf("The new lease is gone already: the renewal fails.\n")
		fi;
		done = 0 }
	:: d_step { !over && at == Settling ->
		if
		:: looked && claim != 0 -> attach_claim(id, known, done)
		:: looked && claim == 0 && !token && record != 0 && marked(known) -> done = 1     /* there is none yet */
		:: !looked -> done = 1
		:: else -> done = 0
		fi;
		if
		:: done ->
			settled = 1; printf("All has moved: the claim hangs on lease %d.\n", claim);
			if :: term == 2 -> reached(2) :: term == 3 -> reached(3) :: else fi;
			accept()
		:: !done && record == 0 -> lost()
		:: !done && record != 0 && mark != known -> learn(); looked = begun; printf("The record has changed meanwhile.\n")
		:: !done && record != 0 && mark == known && claim == 0 && token -> lost()
		:: else -> finish(); printf("The new lease is gone already: the renewal fails.\n")
		fi;
		done = 0 }
	:: d_step { !over && seen < now ->
		committed = now; seen = now; printf("The session hears of term %d in another answer.\n", now) }
	/* A call is given up: it is lost, or its Txn still travels. */
	:: d_step { !over && at != Idle ->
		finish(); printf("The renewal fails: no answer in time.\n") }
	:: d_step { !over && late == Idle && (at == Attaching || (at == Settling && looked)) ->
		late = at; lateLease = (at == Attaching -> fresh : id); lateMark = known; finish();
		printf("The renewal fails: no answer in time. Its Txn still travels.\n") }
	:: d_step { !over && late == Attaching ->
		attach_record(lateLease, lateMark, done);
		printf("A Txn of an earlier move arrives. Record on lease %d.\n", record);
		if :: done :: !done && record != 0 -> reached(5) :: else fi;
		late = Idle; lateLease = 0; lateMark = 0; done = 0 }
	:: d_step { !over && late == Settling ->
		attach_claim(lateLease, lateMark, done);
		printf("A Txn of an earlier move arrives. Claim on lease %d.\n", claim);
		late = Idle; lateLease = 0; lateMark = 0; done = 0 }
	:: d_step { !over && late != Idle ->
		late = Idle; lateLease = 0; lateMark = 0; printf("A Txn of an earlier move is lost.\n") }
	od
}

/* The claim enters: a put on the lease that the session thinks it has, if the record's mark is as it thinks. */
proctype Claim() {
	do
	:: d_step { !over && !begun && age < SPAN ->
		begun = 1; printf("The session campaigns.\n") }
	:: d_step { !over && begun && !token && !put ->
		put = 1; putLease = id; putMark = known; printf("It sends the put of its claim, on lease %d.\n", id) }
	:: d_step { !over && put ->
		if
		:: record != 0 && marked(putMark) && claim == 0 && !token && alive[putLease] -> claim = putLease; committed = now; printf("The claim stands, on lease %d.\n", claim)
		:: record == 0 -> lost()
		:: else -> learn(); reached(8); printf("The put is refused: the record has changed.\n")
		fi;
		put = 0; putLease = 0; putMark = 0 }
	:: d_step { !over && put ->
		put = 0; putLease = 0; putMark = 0; printf("The put is lost.\n") }
	:: d_step { !over && begun && !token && claim != 0 ->
		token = 1; printf("The session learns that its claim stands, and leads.\n"); judge() }
	od
}

/* A window is what the session's clock has counted since something was sent. */
#define COUNT(since, misses, limit) \
	if \
	:: since >= SPAN \
	:: since < SPAN && missing && misses < E -> misses++ \
	:: else -> since++; if :: since >= SPAN -> misses = 0 :: else fi \
	fi
inline tick(missing) {
	n = 1;
	do
	:: n <= TERMS ->
		l = 1;
		do
		:: l <= LEASES ->
			if :: leader[n].left[l] > 0 && leader[n].left[l] != UNKNOWN -> leader[n].left[l]-- :: else fi;
			l++
		:: else -> break
		od;
		n++
	:: else -> break
	od;
	n = 0; l = 0;
	COUNT(age, missed, SPAN);
	if :: at != Idle -> COUNT(sent, sentMissed, SPAN) :: else fi;
#ifndef REVIVE
	if :: age >= SPAN -> over = 1; printf("The session's deadline has passed. It is over.\n") :: else fi
#endif
}
proctype Time() {
	byte n, l;
	do
	:: d_step { !over -> printf("tick\n"); tick(false) }
	:: d_step { !over -> printf("tick, which the session's clock misses\n"); tick(true) }
	od
}

init {
	byte n = 1, l = 1;
	atomic {
		late = Idle;
		alive[1] = 1; leader[1].leads = 1;
		do
		:: n <= TERMS ->
			leader[n].left[1] = (n == 1 -> T : UNKNOWN);
			l = 2;
			do :: l <= LEASES -> leader[n].left[l] = UNKNOWN; l++ :: else -> break od;
			run Leader(n); l = 1;
			do :: l <= LEASES -> run Expiry(n, l); l++ :: else -> break od;
			n++
		:: else -> break
		od;
		l = 1;
		do :: l <= LEASES -> run Proposal(l); l++ :: else -> break od;
		run Election(); run Renew(); run Time();
#ifdef ENTERING
		run Claim();
		printf("The session has lease 1, granted in term 1, with its record on it.\n");
#else
		begun = 1; token = 1; claim = 1;
		printf("The session has lease 1, granted in term 1, with its record and a claim on it, and leads.\n");
#endif
		n = 0; l = 0
	}
}
