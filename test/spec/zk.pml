/* A chain of writes proves that a ZooKeeper session was touched.
 *
 * A follower answers its client, and tells the leader which sessions it has heard of only in its answers to the leader's pings. The leader
 * ends a session T ticks after it was told of it last. So no answer says that the session was renewed; but a ping that the leader sends between two
 * writes goes ahead of the second one's commit, its answer ahead of the third write, and with it the touch of the first. The
 * client paces its writes so that there is such a ping, and counts from when it sent the write two before the one that was answered.
 *
 * One session, one follower, its leader, and those who may elect another one: that gives the session T ticks afresh, and the client has lost its
 * connection. A tick is one of the leader's clock; the client's may miss up to E of T. The leader may be frozen for any time, messages may
 * be delayed for any time, in each direction in order. The leader pings every P ticks; where that is due it comes before whatever else the
 * leader's other threads do. Of pings that follow one another without a commit between them the model keeps one, of their answers too.
 *
 *   claim stands     the session has not ended while the client's Check says yes
 *
 * Each of these takes one rule or assumption out, and each has a counterexample:
 *   READ             a read counts, which the follower answers
 *   ONE_WRITE        the client counts from the write that was answered
 *   TWO_WRITES       the client counts from the write before it
 *   NO_PACE          the writes follow one another at once
 *   FROM_REPLY       the client counts from the answer of the write two before, not from when it was sent
 *   NO_DRIFT         the deadline has no margin for the drift of clocks
 *   STARVED          a leader's other threads go on while its pings are overdue
 *   RACE             the follower forgets a touch that comes while it answers a ping
 */
#ifndef T
#define T 5             /* session timeout, in ticks of the leader's clock */
#endif
#ifndef E
#define E 1             /* ticks of T that the client's clock may miss: the drift bound */
#endif
#ifndef P
#define P 1             /* from one ping to the next */
#endif
#ifdef NO_PACE
#define PACE 0
#else
#define PACE P          /* from an answer to the next write, on the client's clock */
#endif
#ifdef NO_DRIFT
#define SPAN T
#else
#define SPAN (T - E)    /* how long the client trusts a touch, on its own clock */
#endif
#ifndef REACH
#define REACH 0         /* not 0: fail where the event of that number happens, to show that it can */
#endif
#define reached(event) if :: REACH == event -> printf("REACHED event %d.\n", event); assert(false) :: else fi

mtype = { Idle, Sent, Asking, Answered, Cut }   /* the client's write, or its connection */

typedef Window { byte age; byte missed }        /* how long ago, by the client's clock */

Window proven;                                  /* since what the client counts from */
Window sent[3];                                 /* since the last writes were sent, the newest first */
byte   writes = 0;                              /* how many of them there are */
Window waited;                                  /* since the last answer */
mtype  phase = Idle;
bit    table;                                   /* the follower has heard of the session since the last ping */
/* To the follower: a ping, a commit, and a ping behind it. To the leader: an answer to a ping (2: it tells of the session), a write, another answer. */
bit    ping, commit, pingBehind;
byte   pong, pongBehind;
bit    request;
byte   left = T;                                /* ticks until the leader ends the session */
byte   due = P;                                 /* ticks until its next ping */
bit    frozen, froze, ended, elected;

#define trusts (proven.age < SPAN)
#ifdef STARVED
#define awake (!frozen)
#else
#define awake (!frozen && due > 0)
#endif

inline reset(window)      { window.age = 0; window.missed = 0 }
inline take(window, from) { window.age = from.age; window.missed = from.missed }
inline measure(window, misses) {
	if
	:: window.age >= SPAN -> window.missed = 0
	:: window.age < SPAN && misses && window.missed < E -> window.missed++
	:: else -> window.age++
	fi
}
inline tick(misses) {
	measure(proven, misses); measure(sent[0], misses); measure(sent[1], misses); measure(sent[2], misses);
	if :: waited.age < PACE -> measure(waited, misses) :: else -> waited.missed = 0 fi;
	if :: left > 0 -> left-- :: else fi;
	if :: due > 0 -> due-- :: else fi
}
inline end() {
	ended = 1; printf("The leader ends the session.\n");
	if
	:: trusts -> printf("VIOLATED claim stands: the session has ended, and the client's check says yes.\n"); assert(false)
	:: else
	fi
}

proctype Client() {
	do
	:: d_step { phase == Idle && !ended && trusts && waited.age >= PACE ->
		take(sent[2], sent[1]); take(sent[1], sent[0]); reset(sent[0]); if :: writes < 3 -> writes++ :: else fi;
		phase = Sent;
#ifdef READ
		printf("The client sends a read.\n")
#else
		printf("The client sends a write.\n")
#endif
	}
	:: d_step { phase == Answered ->
		phase = Idle; reset(waited);
#ifdef FROM_REPLY
		reset(sent[0]);
#endif
#if defined(READ) || defined(ONE_WRITE)
		take(proven, sent[0]); printf("It is answered: the client counts from when it was sent.\n");
#elif defined(TWO_WRITES)
		if :: writes > 1 && trusts -> take(proven, sent[1]) :: else fi;
		printf("It is answered: the client counts from the write before it.\n");
#else
		if
		:: writes == 3 && trusts ->
			take(proven, sent[2]); reached(1); printf("It is answered: the client counts from the write two before it.\n");
			if :: froze -> reached(4) :: else fi
		:: else -> printf("It is answered.\n")
		fi;
#endif
		}
	od
}

proctype Follower() {
	do
#ifdef READ
	:: d_step { phase == Sent -> table = 1; phase = Answered; printf("The follower answers.\n") }
#else
	:: d_step { phase == Sent -> table = 1; request = 1; phase = Asking; printf("The follower passes it on.\n") }
#endif
	:: d_step { ping ->
		ping = 0;
		if :: request -> pongBehind = (pongBehind > 1 + table -> pongBehind : 1 + table)
		   :: else -> pong = (pong > 1 + table -> pong : 1 + table)
		fi;
		if :: table -> printf("The follower answers a ping, and tells of the session.\n") :: else -> printf("The follower answers a ping.\n") fi;
		table = 0;
#ifdef RACE
		if
		:: phase == Sent -> request = 1; phase = Asking; printf("A write comes meanwhile: the follower passes it on, and its touch is forgotten.\n")
		:: true
		fi
#endif
		}
	:: d_step { commit && !ping -> commit = 0; ping = pingBehind; pingBehind = 0; phase = Answered; printf("The follower hears that the write is committed, and answers it.\n") }
	od
}

proctype Leader() {
	do
	:: d_step { !elected && !frozen && due < P ->
		due = P; printf("The leader pings.\n"); if :: commit -> pingBehind = 1 :: else -> ping = 1 fi }
	:: d_step { !elected && awake && pong > 0 ->
		if :: pong == 2 && !ended -> left = T; printf("The leader hears of the session.\n") :: else fi;
		pong = 0 }
	:: d_step { !elected && awake && request && pong == 0 ->
		request = 0; pong = pongBehind; pongBehind = 0;
		if :: !ended -> commit = 1; printf("The leader commits the write.\n") :: else fi }
	:: d_step { !elected && !frozen -> frozen = 1; froze = 1; printf("The leader is frozen.\n") }
	:: d_step { !elected && frozen -> frozen = 0; printf("The leader thaws.\n") }
	:: d_step { left == 0 && !frozen && !ended ->
		if :: elected -> reached(3) :: froze && !elected -> reached(2) :: else fi;
		end() }
	/* What the former one has not committed never is; the follower leaves it, and closes its client's connection. */
	:: d_step { !elected && !ended ->
		elected = 1; frozen = 0; due = P; left = T; table = 0; ping = 0; pingBehind = 0; commit = 0; pong = 0; pongBehind = 0; request = 0;
		phase = (phase == Answered -> Answered : Cut); printf("Another leader is elected.\n") }
	od
}

proctype Time() {
	do
	:: d_step { (frozen || elected || due > 0) -> printf("tick\n"); tick(false) }
	:: d_step { (frozen || elected || due > 0) -> printf("tick, which the client's clock misses\n"); tick(true) }
	od
}

init { atomic { run Client(); run Follower(); run Leader(); run Time() } }
