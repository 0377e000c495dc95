/* The waiter ends the lease, by watching.
 *
 * For leases shorter than the store's own: the holder rewrites a heartbeat key, under compare that it still stands. Who waits
 * behind it and sees no change for a full ttl on its own clock deletes the key, under compare on the revision it has seen last,
 * and with it the session's record. From then on the holder's heartbeat fails for good, and so does each Txn that would let a
 * claim of its enter; only then the waiter revokes the holder's lease, with its claim. The store's clock has no part in it:
 * what counts is how the rates of two clients' clocks differ.
 *
 * Below is a lease of the store's own, longer, which the store ends by its clock. With BASE client 0 has one, of that many ticks
 * (client 1 has one that never ends): a heartbeat counts only while the last proof that it was renewed is young enough. That a
 * renewal of it is proven is the subject of raftterm.pml; here it is one step, and may stay out for any time.
 * With ENTERING a claim's put that was given up may arrive at any time, until a release fences it off (see lease.pml).
 *
 * Two clients, each with a heartbeat key and a claim in the line for one name. A tick is one of the faster clock; each client's
 * may miss up to E of T. Pauses and delays are unbounded, as in lease.pml. Revisions are not counted: for each revision that
 * somebody remembers there is a bit that says whether it is the key's present one.
 *
 *   one leader       the checks of two clients never both succeed
 *   fence            the resource never applies a token smaller than one it has applied
 *   token once       no two clients hold the same token
 *   dead stays dead  no claim enters for a session whose heartbeat key was deleted
 *
 * Each of these takes one rule out, and each has a counterexample:
 *   FROM_REPLY       the deadline counts from the reply
 *   NO_DRIFT         the deadline has no margin for the drift of clocks
 *   NO_FENCE         the resource takes any token
 *   FLAG             Check reads a flag instead of comparing the clock with the deadline
 *   SHORT_WAIT       the waiter waits only as long as the holder trusts its heartbeat
 *   FROM_ASK         the waiter counts from when it sent its read, not from the answer
 *   NO_COMPARE       the waiter deletes the heartbeat key whatever its revision
 *   REVOKE_FIRST     the waiter revokes the lease without deleting the heartbeat key before
 *   ENTER_DEAD       a claim enters without looking whether its session was declared dead
 *   NO_BASE          a heartbeat counts however long ago the lease below it was proven
 */
#ifndef T
#define T 2             /* ttl, in ticks of the faster clock */
#endif
#ifndef E
#define E 1             /* ticks of T that a client's clock may miss: the drift bound */
#endif
#ifndef TOKENS
#define TOKENS 3        /* claims that enter the line in all */
#endif
#ifdef NO_DRIFT
#define SPAN T
#else
#define SPAN (T - E)    /* how long a holder trusts its last heartbeat, on its own clock */
#endif
#ifdef SHORT_WAIT
#define WAIT (T - E)
#else
#define WAIT T          /* how long a waiter watches without a change, on its own clock */
#endif
#ifdef BASE
#define LIMIT (BASE / 2 - T)    /* how long ago the lease below may have been proven, on the holder's clock */
#endif
#ifndef ONLY
#define ONLY 0          /* 0: all properties; else the number of the one to check */
#endif
#define checks(property) (ONLY == 0 || ONLY == property)
#ifndef REACH
#define REACH 0         /* not 0: fail where the event of that number happens, to show that it can */
#endif
#define reached(event) if :: REACH == event -> printf("REACHED event %d.\n", event); assert(false) :: else fi

mtype = { Nothing, Join, Joined, Beat, Beaten,  /* the heartbeat's calls; Joined and Beaten are answers */
	Out, Waiting, Leading, Leaving }            /* phases of a claim */

typedef Window { byte age; byte missed }        /* how long ago, on the client's clock */

typedef Client {
	mtype phase; byte token;
	Window heart;                               /* since the last accepted heartbeat was sent */
	mtype beat; Window sent;                    /* the heartbeat under way, and when it was sent */
	bit late;                                   /* a heartbeat that was given up still travels */
	bit told;                                   /* the news that it is first is under way */
	/* What it knows of the other's heartbeat key. */
	bit seen; bit seenNow; Window watch;        /* a revision, whether it is the present one, since when it is known */
	bit read; bit readNow;                      /* the answer to a read under way: whether its revision is the present one */
	bit kill; bit killNow;                      /* a delete under way, whether its compare would hold */
	bit dead;                                   /* it knows that the key is deleted, and revokes the lease */
#ifdef ENTERING
	bit entry;                                  /* a put of its claim that was given up still travels */
#endif
#ifdef FROM_ASK
	bit asked; Window askedAt;
#endif
}
typedef Store { bit key; byte token }           /* the heartbeat key stands; the claim's token, 0: none */
Client client[2];
Store  store[2];
byte   tokens, sink, write;
#ifdef BASE
byte   lease;                                   /* how long ago the lease below client 0's heartbeat was renewed, on the store's clock */
Window proven;                                  /* the same as client 0 knows it */
#endif

#ifdef FLAG
#define trusts(c)  true
#else
#define trusts(c)  (client[c].heart.age < SPAN)
#endif
/* Term.Check */
#define leads(c)   (client[c].phase == Leading && trusts(c))
#define other(c)   (1 - (c))
#define first(c)   (store[c].token != 0 && (store[other(c)].token == 0 || store[c].token < store[other(c)].token))
#define standing(c) (client[c].phase == Waiting || client[c].phase == Leading)

inline reset(window)      { window.age = 0; window.missed = 0 }
inline take(window, from) { window.age = from.age; window.missed = from.missed }
inline measure(window, running, misses, limit) {
	if
	:: !(running) || window.age >= limit
	:: (running) && window.age < limit && misses && window.missed < E -> window.missed++
	:: else -> window.age++; if :: window.age >= limit -> window.missed = 0 :: else fi
	fi
}
inline tick(who, misses) {
	measure(client[who].heart, standing(who), misses, SPAN);
	measure(client[who].sent, client[who].beat != Nothing, misses, SPAN);
	measure(client[who].watch, client[who].seen, misses, WAIT);
#ifdef FROM_ASK
	measure(client[who].askedAt, client[who].asked, misses, WAIT);
#endif
#ifdef BASE
	if
	:: who == 0 && store[0].key -> measure(proven, true, misses, LIMIT + 1); if :: lease < BASE -> lease++ :: else fi
	:: else
	fi;
#endif
#ifndef FLAG
	/* Not that the client notices: from here on each comparison says no, so that it is as if it had. */
	if :: standing(who) && client[who].heart.age >= SPAN -> over(who); printf("The deadline of client %d has passed.\n", who) :: else fi
#endif
}
inline judge() {
	if
	:: checks(1) && leads(0) && leads(1) ->
		printf("VIOLATED one leader: both checks say yes, client 0 with token %d and client 1 with token %d.\n", client[0].token, client[1].token);
		assert(false)
	:: checks(3) && client[0].token != 0 && client[0].token == client[1].token ->
		printf("VIOLATED token once: both clients hold token %d.\n", client[0].token); assert(false)
	:: else
	fi
}
inline blind(who) {     /* it waits no longer: what it knew of the other is forgotten; what it sent may still arrive */
	client[who].seen = 0; client[who].seenNow = 0; reset(client[who].watch);
	client[who].read = 0; client[who].readNow = 0; client[who].told = 0;
#ifdef FROM_ASK
	client[who].asked = 0; reset(client[who].askedAt);
#endif
}
inline over(who) {
	blind(who); client[who].phase = Out; client[who].token = 0; reset(client[who].heart);
	client[who].late = (client[who].beat == Beat -> 1 : client[who].late); client[who].beat = Nothing; reset(client[who].sent)
}
inline changed(who) {   /* the other client's revision of this key is an old one from now on */
	client[1-who].seenNow = 0; client[1-who].readNow = 0; client[1-who].killNow = 0
}

inline trust() {
#ifdef FROM_REPLY
	printf("It trusts it for %d tick(s) from now on.\n", SPAN)
#else
	printf("It trusts it for %d tick(s) from when it asked.\n", SPAN)
#endif
}

/* The heartbeat and the claim. */
proctype Holder(byte c) {
	do
	/* One Txn makes the key and the claim. Under a new lease a client is a new one; it comes back when the old claim is gone. */
	:: d_step { client[c].phase == Out && client[c].beat == Nothing && store[c].token == 0 && !store[c].key && tokens < TOKENS ->
		client[c].beat = Join; printf("Client %d asks to enter the line, with a heartbeat key.\n", c) }
	:: d_step { standing(c) && trusts(c) && client[c].beat == Nothing ->
		client[c].beat = Beat; printf("Client %d sends a heartbeat.\n", c) }
	:: d_step { client[c].beat == Joined || client[c].beat == Beaten ->
#ifdef FROM_REPLY
		reset(client[c].sent);
#endif
		if
		:: client[c].sent.age >= SPAN -> printf("The answer comes to client %d too late.\n", c)
		:: client[c].sent.age < SPAN && client[c].beat == Joined ->
			client[c].phase = Waiting; client[c].token = store[c].token; take(client[c].heart, client[c].sent);
			printf("Client %d stands in the line, with token %d. ", c, client[c].token); trust()
#if defined(BASE) && !defined(NO_BASE)
		:: client[c].sent.age < SPAN && client[c].beat == Beaten && c == 0 && proven.age > LIMIT ->
			reached(9); printf("Client 0 does not count the heartbeat: the lease below was last proven too long ago.\n")
#endif
		:: else ->
			take(client[c].heart, client[c].sent); reached(1); printf("Client %d counts the heartbeat. ", c); trust()
		fi;
		client[c].beat = Nothing; reset(client[c].sent); judge() }
	:: d_step { client[c].beat != Nothing ->
		printf("The heartbeat of client %d, or its answer, is lost.\n", c); client[c].beat = Nothing; reset(client[c].sent) }
	:: d_step { client[c].beat == Beat && !client[c].late ->
		client[c].late = 1; client[c].beat = Nothing; reset(client[c].sent); printf("Client %d gives the heartbeat up; it still travels.\n", c) }
	:: d_step { client[c].phase == Waiting && client[c].told ->
		blind(c); client[c].phase = Leading; printf("Client %d leads, with token %d.\n", c, client[c].token);
		if :: client[c].token == 3 -> reached(2) :: else fi;
		judge() }
	/* Resign: the right ends here, before anything is sent. */
	:: d_step { standing(c) ->
		over(c); client[c].phase = Leaving; printf("Client %d gives its claim up: its check says no from here on.\n", c) }
#ifdef FLAG
	:: d_step { standing(c) && client[c].heart.age >= SPAN -> over(c); printf("Client %d notices that its deadline has passed.\n", c) }
#endif
	od
}

/* Who waits watches the key of the one before. */
proctype Waiter(byte c) {
	do
#ifdef FROM_ASK
	:: d_step { client[c].phase == Waiting && first(1-c) && !client[c].asked && !client[c].read ->
		client[c].asked = 1; printf("Client %d asks for the heartbeat key of client %d.\n", c, 1-c) }
#define ASKED client[c].asked
#else
#define ASKED true
#endif
	/* A revision that is known already would change nothing. */
	:: d_step { client[c].phase == Waiting && ASKED && first(1-c) && !client[c].read && store[1-c].key && !client[c].seenNow ->
		client[c].read = 1; client[c].readNow = 1; printf("The store reads the heartbeat key of client %d, for client %d.\n", 1-c, c) }
	:: d_step { client[c].read ->
		client[c].seen = 1; client[c].seenNow = client[c].readNow; reset(client[c].watch);
		printf("Client %d sees a new revision of it, and watches.\n", c);
#ifdef FROM_ASK
		take(client[c].watch, client[c].askedAt); client[c].asked = 0; reset(client[c].askedAt);
#endif
		client[c].read = 0; client[c].readNow = 0 }
	:: d_step { client[c].phase == Waiting && client[c].seen && client[c].watch.age >= WAIT && !client[c].kill ->
#ifdef REVOKE_FIRST
		client[c].dead = 1; printf("Client %d has seen no change for %d ticks of its clock.\n", c, WAIT)
#else
		client[c].kill = 1; client[c].killNow = client[c].seenNow;
		printf("Client %d has seen no change for %d tick(s) of its clock, and sends the delete.\n", c, WAIT)
#endif
		client[c].seen = 0; client[c].seenNow = 0; reset(client[c].watch) }
	/* Also when somebody else deleted it, or another waiter before it could revoke the lease. */
	:: d_step { client[c].phase == Waiting && store[1-c].token != 0 && !store[1-c].key && !client[c].dead ->
		client[c].dead = 1; printf("Client %d learns that the heartbeat key of client %d is gone.\n", c, 1-c) }
	od
}

/* The store carries requests out, one at a time, whenever they arrive. */
proctype Requests(byte c) {
	do
	:: d_step { client[c].beat == Join && store[c].token == 0 && tokens < TOKENS && (tokens > 0 || c == 0) ->
		tokens++; store[c].token = tokens; store[c].key = 1;
#ifdef BASE
		if :: c == 0 -> lease = 0; reset(proven) :: else fi;
#endif
#ifdef ENTERING
		client[c].entry = 0;    /* an earlier session's finds another one's record, and fails */
#endif
		client[c].late = 0; client[1-c].kill = 0; client[1-c].killNow = 0; client[1-c].dead = 0;   /* what named the lease before finds nothing */
		client[c].beat = Joined; printf("The claim of client %d stands in the line, with token %d.\n", c, tokens) }
	:: d_step { client[c].beat == Beat && store[c].key ->
		changed(c); client[c].beat = Beaten; printf("The heartbeat key of client %d is rewritten.\n", c) }
	:: d_step { client[c].late ->
		client[c].late = 0;
		if
		:: store[c].key -> changed(c); printf("A heartbeat that client %d had given up rewrites its key.\n", c)
		:: else -> reached(3); printf("A heartbeat that client %d had given up fails: the key is deleted.\n", c)
		fi }
	:: d_step { client[c].phase == Waiting && !client[c].told && first(c) ->
		client[c].told = 1; printf("The store tells client %d that its claim is the first.\n", c) }
	:: d_step { client[c].phase == Leaving ->
#ifdef ENTERING
		client[c].entry = 0;
#endif
		store[c].token = 0; store[c].key = 0; changed(c); client[c].phase = Out; printf("The claim of client %d is released.\n", c) }
#ifdef ENTERING
	:: d_step { client[c].beat == Joined && !client[c].entry ->
		client[c].entry = 1; printf("The put of client %d's claim was sent twice; one still travels.\n", c) }
	/* To whichever lease: a move may have made one that who ends the session has not seen. */
	:: d_step { client[c].entry ->
		client[c].entry = 0;
		if
#ifdef ENTER_DEAD
		:: store[c].token == 0 && tokens < TOKENS ->
#else
		:: store[c].token == 0 && tokens < TOKENS && store[c].key ->
#endif
			tokens++; store[c].token = tokens; printf("A put of client %d's claim that was given up enters it, with token %d.\n", c, tokens);
			if
			:: checks(4) && !store[c].key -> printf("VIOLATED dead stays dead: the claim of client %d has entered though its session was declared dead.\n", c); assert(false)
			:: else
			fi
		:: else -> if :: !store[c].key -> reached(8) :: else fi; printf("A put of client %d's claim that was given up fails.\n", c)
		fi }
#endif
#ifdef BASE
	:: d_step { c == 0 && store[0].key && (lease > 0 || proven.age > 0) ->
		lease = 0; reset(proven); printf("The lease below client 0's heartbeat is renewed, and client 0 has proof of it.\n") }
	:: d_step { c == 0 && store[0].key && lease >= BASE ->
		store[0].key = 0; store[0].token = 0; changed(0); lease = 0; reset(proven); reached(10);
		printf("The store ends the lease below client 0's heartbeat, with all that hangs on it.\n") }
#endif
	/* What c sent against the other. */
	:: d_step { client[c].kill ->
		if
#ifdef NO_COMPARE
		:: store[1-c].key ->
#else
		:: store[1-c].key && client[c].killNow ->
#endif
			store[1-c].key = 0; printf("The heartbeat key of client %d is deleted.\n", 1-c)
		:: else -> reached(4); printf("The delete fails: the heartbeat key of client %d has changed.\n", 1-c)
		fi;
		client[c].kill = 0; client[c].killNow = 0 }
	:: d_step { client[c].dead ->
		client[c].dead = 0;
		if :: store[1-c].token != 0 -> store[1-c].token = 0; store[1-c].key = 0; reached(5); printf("The lease of client %d is revoked, with its claim.\n", 1-c) :: else fi }
	:: d_step { client[c].kill || client[c].dead || client[c].late ->
		client[c].kill = 0; client[c].killNow = 0; client[c].dead = 0; client[c].late = 0; printf("What client %d had sent is lost.\n", c) }
	od
}

/* The work: check, then act. Between the two anything may happen, for any time, to one write at least. */
inline apply(under) {
	if
#ifndef NO_FENCE
	:: under < sink -> reached(6); printf("The resource refuses the write with token %d.\n", under)
#endif
	:: else ->
		printf("The write with token %d is applied.\n", under);
		if
		:: checks(2) && under < sink -> printf("VIOLATED fence: a token smaller than %d was applied.\n", sink); assert(false)
		:: else
		fi;
		if :: under > sink && sink > 0 -> reached(7) :: else fi;
		sink = under
	fi
}
proctype Work(byte c) {
	do
	:: d_step { leads(c) && write == 0 ->
		write = client[c].token; printf("Client %d checks, gets yes, and sends a write with token %d.\n", c, write) }
	:: d_step { leads(c) ->
		printf("Client %d checks, gets yes, and its write arrives at once.\n", c); apply(client[c].token) }
	:: d_step { write != 0 ->
		printf("The write that was under way arrives.\n"); apply(write); write = 0 }
	od
}

proctype Time() {
	do
	:: d_step { printf("tick\n"); tick(0, false); tick(1, false) }
	:: d_step { printf("tick, which the clock of client 0 misses\n"); tick(0, true);  tick(1, false) }
	:: d_step { printf("tick, which the clock of client 1 misses\n"); tick(0, false); tick(1, true) }
	:: d_step { printf("tick, which both clients' clocks miss\n"); tick(0, true);  tick(1, true) }
	od
}

init {
	atomic {
		client[0].beat = Nothing; client[0].phase = Out;
		client[1].beat = Nothing; client[1].phase = Out;
		run Holder(0); run Waiter(0); run Requests(0);
		run Holder(1); run Waiter(1); run Requests(1);
#ifdef WRITES
		run Work(0); run Work(1);
#endif
		run Time()
	}
}
