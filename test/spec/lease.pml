/* The store expires the lease.
 *
 * Two clients, each with one session: a lease that it keeps alive, and one place in the line for one name. The store counts
 * the lease down on its own clock; the client counts from when it sent what was accepted, on a clock that may miss up to E
 * of T ticks. A tick is one of the store's clock. Nothing else is bounded: a client that is paused is one whose steps are not
 * chosen, a slow message one whose arrival is not chosen. Requests and answers are lost, or given up and carried out late.
 *
 *   one leader       the checks of two clients never both succeed
 *   fence            the resource never applies a token smaller than one it has applied
 *   token once       no token is led with twice
 *   no ghost         a claim that was given up, and whose release was confirmed, never enters
 *
 * Each of these takes one rule out, and each has a counterexample:
 *   FROM_REPLY       the deadline counts from the reply
 *   NO_DRIFT         the deadline has no margin for the drift of clocks
 *   NO_FENCE         the resource takes any token
 *   FLAG             Check reads a flag instead of comparing the clock with the deadline
 *   RELEASE_FIRST    the claim is released while the right still lasts
 *   SAME_CLAIM       a campaign takes up the claim that this client has just resigned
 *   STALE_ACK        the store acknowledges renewals that it does not carry out
 *   NO_RETRACT       to release a claim forgets requests to enter that are still under way
 */
#ifndef T
#define T 2             /* ttl of a lease, in ticks of the store's clock */
#endif
#ifndef E
#define E 1             /* ticks of T that a client's clock may miss: the drift bound */
#endif
#ifndef TOKENS
#define TOKENS 2        /* claims that enter the line in all; each gets a token of its own */
#endif
#ifndef CLAIMS
#define CLAIMS 2        /* claim IDs of each client: one more than it resigns */
#endif

#ifdef NO_DRIFT
#define SPAN T
#else
#define SPAN (T - E)    /* how long a client trusts its lease, on its own clock */
#endif

#ifndef ONLY
#define ONLY 0          /* 0: all properties; else the number of the one to check */
#endif
#define checks(property) (ONLY == 0 || ONLY == property)
#ifndef REACH
#define REACH 0         /* not 0: fail where the event of that number happens, to show that it can */
#endif
#define reached(event) if :: REACH == event -> printf("REACHED event %d.\n", event); assert(false) :: else fi

mtype = { Nothing,
	Grant, Granted, Renew, Renewed,             /* what is under way for the lease: requests, and answers (-ed) */
	Entered, Held, Left,                        /* answers under way for the claim */
	Out, Entering, Waiting, Leading, Leaving }  /* phases of a claim, as in internal/core/claim.go */

typedef Window { byte age; byte missed }    /* how long ago something was sent, by the client's clock */

typedef Client {
	bit leased; Window lease;               /* its lease, and when the last accepted renewal was sent */
	mtype beat; Window sent;                /* the renewal under way, and when it was sent */
	mtype phase; byte id; byte token;       /* its claim; the token is the one in the last answer */
	mtype answer;                           /* under way to the client; while Entering and Leaving, requests always are */
	bit led;                                /* it has led under this claim already */
	mtype late; byte lateID;                /* a request that was given up and still travels: Renew, Entering, Leaving */
}
typedef Store {                             /* what the store has of each client */
	byte left;                              /* ticks until it ends the lease; 0: no lease */
	byte id; byte token;                    /* the claim in the line; 0: none */
	byte barred;                            /* claims up to this ID were released: they cannot enter any more */
}
Client client[2];
Store  store[2];
byte   tokens;                              /* the last one handed out */
byte   sink;                                /* the largest token that the resource has applied */
byte   write;                               /* the token of a write that is under way; 0: none */

#ifdef FLAG
#define trusts(c)  (client[c].leased)
#else
#define trusts(c)  (client[c].leased && client[c].lease.age < SPAN)
#endif
/* Term.Check */
#define leads(c)   (client[c].phase == Leading && trusts(c))
#define first(c)   (store[c].id != 0 && (store[1-c].id == 0 || store[c].token < store[1-c].token))
/* It stands already; or the lease is there and the claim was not released. The first token goes to client 0: the clients are alike. */
#define may_enter(c, i) (store[c].left > 0 && (store[c].id == i || (store[c].barred < i && tokens < TOKENS && (tokens > 0 || c == 0))))
#define ghost(c, i) (i < client[c].id || (client[c].leased && client[c].phase == Out))

inline reset(window)      { window.age = 0; window.missed = 0 }
inline take(window, from) { window.age = from.age; window.missed = from.missed }

/* A tick of the store's clock, as a client's clock counts it. */
inline measure(window, running, misses) {
	if
	:: !(running) || window.age >= SPAN
	:: (running) && window.age < SPAN && misses && window.missed < E -> window.missed++
	:: else -> window.age++; if :: window.age >= SPAN -> window.missed = 0 :: else fi
	fi
}
inline tick(who, misses) {
	measure(client[who].lease, client[who].leased, misses);
	measure(client[who].sent, client[who].beat != Nothing, misses);
	if
	:: store[who].left > 1 -> store[who].left--
	:: store[who].left == 1 ->
		if :: first(who) && client[1-who].phase == Waiting -> reached(7) :: else fi;
		store[who].left = 0; store[who].id = 0; store[who].token = 0;
		printf("The store ends the lease of client %d.\n", who)
	:: else
	fi;
#ifndef FLAG
	/* Not that the client notices: from here on each comparison says no, so that it is as if it had. */
	if :: client[who].leased && client[who].lease.age >= SPAN -> lease_over(who) :: else fi
#endif
}
inline judge() {
	if
	:: checks(1) && leads(0) && leads(1) ->
		printf("VIOLATED one leader: both checks say yes, client 0 with token %d and client 1 with token %d.\n", client[0].token, client[1].token);
		assert(false)
	:: else
	fi
}

/* The store carries out a claim: the same ID finds its place again, under another the earlier one is removed first. */
inline stand(who, which) {
	if
	:: store[who].id == which
	:: else -> tokens++; store[who].id = which; store[who].token = tokens
	fi
}
/* By claim ID, which is never used again, not by identity. */
inline release(who, which) {
	if :: store[who].id == which -> store[who].id = 0; store[who].token = 0 :: else fi;
#if !defined(NO_RETRACT) && !defined(SAME_CLAIM)
	if :: store[who].barred < which -> store[who].barred = which :: else fi
#endif
}
inline answer_place(who) {
	client[who].token = store[who].token;
	if :: first(who) -> client[who].answer = Held :: else -> client[who].answer = Entered fi
}
inline lose_answer(who) {
	if :: client[who].answer == Entered || (client[who].answer == Held && client[who].phase == Entering) -> client[who].token = 0 :: else fi;
	client[who].answer = Nothing
}
/* The claim goes on to another phase, or its lease is over: what was asked for may still be carried out. */
inline leave_behind(who) {
	if
	:: (client[who].phase == Entering || client[who].phase == Leaving) && client[who].late == Nothing ->
		client[who].late = client[who].phase; client[who].lateID = client[who].id
	:: else
	fi;
	client[who].answer = Nothing
}
inline lead(who) {
	client[who].answer = Nothing; client[who].phase = Leading; printf("Client %d leads, with token %d.\n", who, client[who].token);
	if
	:: checks(3) && trusts(who) && (client[who].led || client[who].token == client[1-who].token) ->
		printf("VIOLATED token once: somebody has led with token %d before.\n", client[who].token); assert(false)
	:: else
	fi;
	client[who].led = 1;
	if :: client[who].token == TOKENS -> reached(6) :: else fi;
	judge()
}
inline lease_over(who) {
	leave_behind(who); client[who].phase = Out; client[who].token = 0; client[who].led = 0;
	client[who].leased = 0; reset(client[who].lease); client[who].beat = Nothing; reset(client[who].sent);
	printf("The deadline of client %d has passed.\n", who)
}

inline trust(who) {
#ifdef FROM_REPLY
	printf("Client %d trusts its lease for %d tick(s) from now on.\n", who, SPAN)
#else
	printf("Client %d trusts its lease for %d tick(s) from when it asked.\n", who, SPAN)
#endif
}

/* The session: one lease, renewed. */
proctype Session(byte c) {
	do
	:: d_step { !client[c].leased && client[c].beat == Nothing && store[c].left == 0 ->
		client[c].beat = Grant; printf("Client %d asks for a lease.\n", c) }
	:: d_step { trusts(c) && client[c].beat == Nothing ->
		client[c].beat = Renew; printf("Client %d sends a renewal.\n", c) }
	:: d_step { client[c].beat == Granted || client[c].beat == Renewed ->
#ifdef FROM_REPLY
		reset(client[c].sent);
#endif
		if
		:: client[c].sent.age >= SPAN -> printf("The answer comes to client %d too late.\n", c)
		:: else ->
			if :: client[c].beat == Renewed -> reached(1) :: else fi;
			client[c].leased = 1; take(client[c].lease, client[c].sent);     /* a renewal that comes after the deadline is none: see lease_over */
			trust(c)
		fi;
		client[c].beat = Nothing; reset(client[c].sent); judge() }
	:: d_step { client[c].beat != Nothing ->
		printf("The %e of client %d is lost.\n", client[c].beat, c); client[c].beat = Nothing; reset(client[c].sent) }
	:: d_step { client[c].beat == Renew && client[c].late == Nothing ->
		client[c].late = Renew; client[c].beat = Nothing; reset(client[c].sent); printf("Client %d gives the renewal up; it still travels.\n", c) }
#ifdef FLAG
	:: d_step { client[c].leased && client[c].lease.age >= SPAN -> lease_over(c) }
#endif
	od
}

/* A claim's story: out, entering, waiting, leading, leaving, out. */
proctype Claim(byte c) {
	do
	:: d_step { client[c].phase == Out && trusts(c) && client[c].id < CLAIMS ->
		client[c].phase = Entering; client[c].id++; printf("Client %d campaigns, under claim ID %d.\n", c, client[c].id) }
	:: d_step { client[c].answer == Entered ->
		leave_behind(c); client[c].phase = Waiting; printf("Client %d learns that it stands in the line.\n", c) }
	:: d_step { client[c].answer == Held ->
		if :: client[c].phase == Waiting -> reached(2) :: else fi;
		leave_behind(c); lead(c) }
	:: d_step { client[c].phase == Entering || client[c].phase == Waiting ->
		leave_behind(c); client[c].phase = Leaving; client[c].token = 0; printf("Client %d gives its campaign up.\n", c) }
	/* Resign: the work has returned and the right ends here, before anything is sent. */
	:: d_step { client[c].phase == Leading ->
		client[c].phase = Leaving; client[c].token = 0; printf("Client %d resigns: its check says no from here on.\n", c) }
	:: d_step { client[c].answer == Left ->
		leave_behind(c); client[c].phase = Out; client[c].led = 0; printf("Client %d learns that its claim is released.\n", c) }
	:: d_step { client[c].answer != Nothing ->
		lose_answer(c); printf("The answer to client %d is lost; it asks again.\n", c) }
#ifdef SAME_CLAIM
	:: d_step { client[c].phase == Leaving ->
		leave_behind(c); client[c].phase = Entering; printf("Client %d campaigns again, under the claim that it has resigned.\n", c) }
#endif
	od
}

/* The store carries requests out, one at a time, whenever they arrive. */
proctype Requests(byte c) {
	do
	:: d_step { client[c].beat == Grant && store[c].left == 0 ->
		store[c].left = T; client[c].late = Nothing; client[c].lateID = 0;      /* that named the lease that ended */
		client[c].beat = Granted; printf("The store grants client %d a lease of %d ticks.\n", c, T) }
	:: d_step { client[c].beat == Renew && store[c].left > 0 ->
		client[c].beat = Renewed;
#ifdef STALE_ACK
		printf("A renewal of client %d is acknowledged by a leader of the store that was deposed: nothing is renewed.\n", c) }
#else
		store[c].left = T; printf("The store renews the lease of client %d.\n", c) }
#endif
	:: d_step { client[c].phase == Entering && client[c].answer == Nothing && may_enter(c, client[c].id) ->
		stand(c, client[c].id); answer_place(c); printf("The claim of client %d stands in the line, with token %d.\n", c, store[c].token) }
	:: d_step { client[c].phase == Waiting && client[c].answer == Nothing && first(c) ->
		client[c].answer = Held; printf("The store tells client %d that its claim is the first.\n", c) }
	:: d_step { client[c].phase == Leaving && client[c].answer == Nothing ->
		release(c, client[c].id); client[c].answer = Left; printf("The store releases the claim of client %d.\n", c) }
#ifdef RELEASE_FIRST
	:: d_step { client[c].phase == Leading && store[c].id == client[c].id ->
		release(c, client[c].id); printf("Client %d releases its claim while its check still says yes.\n", c) }
#endif
	/* A straggler arrives, or is lost. */
	:: d_step { client[c].late == Renew && store[c].left > 0 ->
		store[c].left = T; client[c].late = Nothing; reached(4); printf("A renewal that client %d had given up renews its lease.\n", c) }
	:: d_step { client[c].late == Leaving ->
		release(c, client[c].lateID); client[c].late = Nothing; client[c].lateID = 0;
		printf("A release that client %d had sent before is carried out.\n", c) }
	:: d_step { client[c].late == Entering && may_enter(c, client[c].lateID) ->
		stand(c, client[c].lateID); printf("A claim that client %d had asked for before enters, with token %d.\n", c, store[c].token);
		if
		:: checks(4) && ghost(c, client[c].lateID) ->
			printf("VIOLATED no ghost: the release of claim ID %d of client %d had been confirmed.\n", client[c].lateID, c); assert(false)
		:: else
		fi;
		client[c].late = Nothing; client[c].lateID = 0 }
	:: d_step { client[c].late == Entering && store[c].left > 0 && client[c].lateID <= store[c].barred ->
		client[c].late = Nothing; client[c].lateID = 0; reached(5); printf("A claim that client %d had asked for before is refused: it was released.\n", c) }
	:: d_step { client[c].late != Nothing ->
		client[c].late = Nothing; client[c].lateID = 0; printf("What of client %d still travelled is lost.\n", c) }
	od
}

/* The work: check, then act. Between the two anything may happen, for any time, to one write at least. */
inline apply(under) {
	if
#ifndef NO_FENCE
	:: under < sink -> reached(3); printf("The resource refuses the write with token %d.\n", under)
#endif
	:: else ->
		printf("The write with token %d is applied.\n", under);
		if
		:: checks(2) && under < sink -> printf("VIOLATED fence: a token smaller than %d was applied.\n", sink); assert(false)
		:: else
		fi;
		if :: under > sink && sink > 0 -> reached(8) :: else fi;
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
		client[0].beat = Nothing; client[0].phase = Out; client[0].answer = Nothing; client[0].late = Nothing;
		client[1].beat = Nothing; client[1].phase = Out; client[1].answer = Nothing; client[1].late = Nothing;
		run Session(0); run Claim(0); run Requests(0);
		run Session(1); run Claim(1); run Requests(1);
#ifdef WRITES
		run Work(0); run Work(1);
#endif
		run Time()
	}
}
