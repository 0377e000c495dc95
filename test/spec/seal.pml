/* A standby is promoted, and no acknowledged commit is lost: primacy postgres.
 *
 * Three servers of PostgreSQL. A primary acknowledges a commit when k of the standbys that synchronous_standby_names (SSN) names have
 * flushed it. Each walsender decides so by the SSN that it has loaded itself, perhaps long ago. The terms of the store say who may promote, and
 * one record, which only the leader of the living term writes, says who was primary, who votes and how many of them must be sealed first: q.
 * No clock occurs: a former primary is never ended unless its own agent does it, servers sleep for any time, replies and promotions come late.
 *
 *   nothing lost     whoever is promoted has every commit that was acknowledged
 *   one acknowledges a former primary acknowledges nothing that the one chosen after it has not
 *
 * Each of these takes one rule out, and each has a counterexample:
 *   UNSEALED         an answer counts of a member that has not stopped listening
 *   EARLY            a member answers while its walreceiver still runs
 *   PENDING          a member answers while a promotion of its own is still under way
 *   FEWER            one answer less than q is enough
 *   Q_FALLS          a promotion takes q from the voters that are left
 *   LSN_FIRST        the longer WAL wins, whatever its timeline
 *   SAME_LIFE        a member that has lost its data still counts as the voter that it was
 *   DROP_FIRST       a voter is dropped by the record before SSN
 *   ADD_FIRST        a voter is added by SSN before the record
 *   NO_EVIDENCE      SSN counts as loaded at once
 *   NO_BARRIER       q falls before k of the voters have flushed what was committed under the SSN before
 */
#ifndef COMMITS
#define COMMITS 1       /* rows committed in all */
#endif
#ifndef TERMS
#define TERMS 2         /* tokens: one election less */
#endif
#ifndef K
#define K 1             /* how many standbys must have flushed a commit, at first */
#endif
#ifndef CHANGES
#define CHANGES 0       /* how often a primary sets another SSN, in all */
#endif
#ifndef WIPES
#define WIPES 0         /* how often a member loses its data and its state */
#endif
#ifndef REACH
#define REACH 0         /* not 0: fail where the event of that number happens, to show that it can */
#endif
#define reached(event) if :: REACH == event -> printf("REACHED event %d.\n", event); assert(false) :: else fi

#define N 3
#define Nobody N
#define in(set, i)   (((set) >> (i)) & 1)
#define only(i)      (1 << (i))
#define size(set)    (((set) & 1) + (((set) >> 1) & 1) + (((set) >> 2) & 1))
#define least(a, b)  ((a) < (b) -> (a) : (b))
#define most(a, b)   ((a) > (b) -> (a) : (b))

typedef Sender {        /* the walsender for one standby */
	bit on; bit fresh;              /* it has loaded the present SSN, not the one before */
	bit stranger;                   /* its standby is of a life that nobody voted for */
	byte heard; byte sent           /* how far the standby has flushed: as the primary knows, as it was told */
}
typedef Member {
	byte wal[COMMITS]; byte length; /* the commits in it, in their order */
	byte sealed; byte said;         /* tokens: listens to no primary before, durably; has answered */
	byte saidLength;
	byte follows;
	bit lost;                       /* it is no more the voter of its name */
	bit late;                       /* its walreceiver outlives its answer */
	byte stage;                     /* of its promotion: 1 record written, 2 SSN set, 3 promoted */
	byte term;                      /* the token of its promotion; also names its timeline */
	byte names; byte acks;          /* SSN */
	byte wasNames; byte wasAcks;    /* the one before */
	byte barrier;                   /* 1 + its length, when all walsenders had loaded SSN */
	byte voters; byte q;            /* what the record said when this member last wrote it */
	byte from;                      /* its length when it was chosen */
	Sender to[N]
}
Member m[N];
byte token = 1;                         /* of the living term */
byte recToken = 1, recPrimary = 0, recVoters = 6, recK, recQ;   /* the record */
byte had;                               /* the commits that its primary had when it was chosen */
byte commits, acked, changes, wipes;
byte timelineOf[COMMITS + 1];
byte x, y, n, best;                     /* within a step only */
byte who, need, ack;                    /* what is to be written, or set; within a step only */

#define reigns(p) (token == m[p].term && recToken == m[p].term && recPrimary == p)
#define rank(i)   (m[i].saidLength == 0 -> 0 : timelineOf[m[i].wal[m[i].saidLength - 1]])
#define loaded(p, j) (m[p].to[j].fresh -> m[p].names : m[p].wasNames)
#define counts(p, j) (m[p].to[j].on && !m[p].to[j].stranger && in(loaded(p, j), j))
/* A voter, of the life that votes; or the primary of the record. */
#define votes(i)     (in(recVoters, i) && !m[i].lost)
#define was(i)       (recPrimary == i && !m[i].lost)
#ifdef UNSEALED
#define answered(i)  (m[i].stage == 0)
#define saidOf(i)    m[i].length
#else
#define answered(i)  (m[i].said == token)
#define saidOf(i)    m[i].saidLength
#endif
#ifdef NO_EVIDENCE
#define shown(p, j)   true
#else
#define shown(p, j)   (!m[p].to[j].on || m[p].to[j].fresh)
#endif
#ifdef NO_BARRIER
#define flushed(p, j) true
#else
#define flushed(p, j) (m[p].to[j].heard + 1 >= m[p].barrier)
#endif
#ifdef FEWER
#define needed (recQ - 1)
#else
#define needed recQ
#endif

inline acknowledge(p, c) {
	if
	:: in(acked, c) == 0 ->
		acked = acked | only(c); reached(1);
		printf("%d acknowledges commit %d.\n", p, c);
		if
		:: recToken > m[p].term && in(had, c) == 0 ->
			printf("VIOLATED one acknowledges: %d has not commit %d, and was chosen later.\n", recPrimary, c); assert(false)
		:: recToken > m[p].term -> reached(2)
		:: else
		fi
	:: else
	fi
}
/* What the walsender for j does when it has heard j, or has loaded SSN. */
inline release(p, j) {
	if
	:: m[p].stage == 3 && counts(p, j) ->
		for (x : 0 .. COMMITS - 1) {
			if
			:: x < m[p].length && timelineOf[m[p].wal[x]] == m[p].term ->
				n = 0;
				for (y : 0 .. N - 1) { if :: counts(p, y) && m[p].to[y].heard > x -> n++ :: else fi }
				if :: n >= (m[p].to[j].fresh -> m[p].acks : m[p].wasAcks) -> acknowledge(p, m[p].wal[x]) :: else fi
			:: else
			fi
		}
	:: else
	fi
}
/* n: how far the WAL of a and b are the same. */
inline common(a, b) {
	n = 0;
	do
	:: n < m[a].length && n < m[b].length && m[a].wal[n] == m[b].wal[n] -> n++
	:: else -> break
	od
}
inline disconnect(p, j) {
	m[p].to[j].on = 0; m[p].to[j].fresh = 0; m[p].to[j].stranger = 0; m[p].to[j].heard = 0; m[p].to[j].sent = 0
}
/* The server ends, and comes back as a standby that listens to nobody. */
inline down(i) {
	for (x : 0 .. N - 1) { disconnect(i, x) }
	m[i].stage = 0; m[i].term = 0; m[i].names = 0; m[i].acks = 0; m[i].wasNames = 0; m[i].wasAcks = 0;
	m[i].barrier = 0; m[i].voters = 0; m[i].q = 0; m[i].from = 0; m[i].follows = Nobody
}
inline cut(i, end) {
	for (x : 0 .. COMMITS - 1) { if :: x >= end -> m[i].wal[x] = 0 :: else fi }
	m[i].length = end
}
inline write(p) {
	m[p].voters = who; m[p].q = need; recVoters = who; recQ = need; recK = m[p].acks
}
inline load(p) {
	m[p].wasNames = m[p].names; m[p].wasAcks = m[p].acks; m[p].names = who; m[p].acks = ack; m[p].barrier = 0;
	for (x : 0 .. N - 1) { m[p].to[x].fresh = 0 };
	printf("%d sets SSN: any %d of the members in %d (bits).\n", p, ack, who)
}

#define done x = 0; y = 0; n = 0; best = 0; who = 0; need = 0; ack = 0

/* The terms of the store. Who wins one is seen when it writes the record. */
proctype Store() {
	do
	:: d_step { token < TERMS -> token++; printf("Term %d begins.\n", token) }
	od
}

proctype Agent(byte i) {
	do
	:: d_step { m[i].stage == 3 && commits < COMMITS ->
		commits++; timelineOf[commits] = m[i].term; m[i].wal[m[i].length] = commits; m[i].length++;
		printf("%d commits %d.\n", i, commits);
		done
	}
	/* Rule 2. */
	:: d_step { m[i].sealed < token ->
		m[i].sealed = token; m[i].said = token; m[i].saidLength = m[i].length;
		printf("%d is sealed and answers.\n", i);
		if
		:: m[i].stage == 3 -> down(i); reached(3)
#ifndef PENDING
		:: m[i].stage == 1 || m[i].stage == 2 -> down(i)
#endif
		:: else
		fi;
#ifdef EARLY
		if :: m[i].follows != Nobody -> m[i].late = 1 :: else fi
#else
		m[i].follows = Nobody
#endif
		done
	}
#ifdef EARLY
	:: d_step { m[i].late -> m[i].late = 0; m[i].follows = Nobody; printf("The walreceiver of %d ends.\n", i) }
#endif
	/* Whoever has all of the WAL that the record's primary has, up to where its own ends, follows it. Else it is rewound. */
	:: d_step { m[i].sealed <= recToken && recPrimary != i && m[i].stage == 0 && m[i].follows != recPrimary && !m[i].late ->
		common(i, recPrimary);
		if
		:: n == m[i].length ->
			m[i].sealed = recToken; m[i].follows = recPrimary; printf("%d follows %d.\n", i, recPrimary)
		:: n < m[i].length && m[recPrimary].stage == 3 && m[recPrimary].term == recToken ->
			m[i].sealed = recToken; m[i].follows = recPrimary; reached(4);
#ifndef SAME_LIFE
			m[i].lost = 1;
#endif
			cut(i, n); printf("%d is rewound and follows %d.\n", i, recPrimary)
		:: else
		fi;
		done
	}
	:: d_step { wipes < WIPES && m[i].stage == 0 ->
		wipes++; down(i); cut(i, 0); m[i].said = 0; m[i].saidLength = 0; m[i].sealed = 0; m[i].late = 0;
#ifndef SAME_LIFE
		m[i].lost = 1;
#endif
		printf("%d loses its data and its state.\n", i);
		done
	}
	/* Rule 4: the survey. */
	:: d_step { recToken < token && answered(i) && m[i].stage == 0 && (votes(i) || was(i)) ->
		n = 0; y = 0; best = 1;
		for (x : 0 .. N - 1) {
			if
			:: answered(x) && votes(x) -> n++
			:: else
			fi;
			if :: answered(x) && was(x) -> y = 1 :: else fi;
			if
			:: answered(x) && (votes(x) || was(x)) && x != i ->
#ifdef LSN_FIRST
				if :: saidOf(x) > saidOf(i) -> best = 0 :: else fi
#else
				if
				:: rank(x) > rank(i) || (rank(x) == rank(i) && saidOf(x) > saidOf(i)) -> best = 0
				:: else
				fi
#endif
			:: else
			fi
		};
		if
		:: best && (y || (n >= needed && n > 0)) ->
			if :: !y && n < size(recVoters) -> reached(5) :: else fi;
			/* Rule 5: the record first. q does not fall. */
			recToken = token; recPrimary = i; recVoters = recVoters & ~only(i);
			recK = most(1, least(recK, size(recVoters)));
#ifdef Q_FALLS
			recQ = most(1, size(recVoters) - recK + 1);
#else
			recQ = most(recQ, size(recVoters) - recK + 1);
#endif
			had = 0;
			for (x : 0 .. COMMITS - 1) { if :: x < m[i].length -> had = had | only(m[i].wal[x]) :: else fi };
			m[i].follows = Nobody; m[i].stage = 1; m[i].term = token; m[i].from = m[i].length;
			m[i].voters = recVoters; m[i].q = recQ; m[i].acks = recK;
			printf("%d leads term %d and writes the record: it is to be promoted; %d voters, q = %d.\n", i, token, size(recVoters), recQ);
			if
			:: (acked & ~had) != 0 ->
				printf("VIOLATED nothing lost: %d has not all that was acknowledged.\n", i); assert(false)
			:: else
			fi
		:: else
		fi;
		done
	}
	:: d_step { m[i].stage == 1 ->
		m[i].stage = 2; m[i].names = m[i].voters;
		printf("%d sets its first SSN.\n", i);
		done
	}
	:: d_step { m[i].stage == 2 ->
		m[i].stage = 3; printf("%d is promoted.\n", i);
		if :: token > m[i].term -> reached(6) :: else fi;
		done
	}
	/* Rule 7: evidence, and then the only step that lowers q. */
	:: d_step { m[i].stage == 3 && m[i].barrier == 0 && shown(i, 0) && shown(i, 1) && shown(i, 2) ->
		m[i].barrier = 1 + m[i].length; printf("All walsenders of %d have loaded its SSN.\n", i);
		done
	}
	:: d_step { m[i].stage == 3 && m[i].barrier > 0 && reigns(i) && (m[i].voters != m[i].names || m[i].q != size(m[i].names) - m[i].acks + 1) ->
		n = 0;
		for (x : 0 .. N - 1) {
			if
			:: in(m[i].names, x) && m[i].to[x].on && !m[i].to[x].stranger && flushed(i, x) -> n++
			:: else
			fi
		};
		if
		:: n >= m[i].acks && m[i].names != 0 ->
			who = m[i].names; need = size(who) - m[i].acks + 1; write(i); reached(7);
			printf("%d writes the record: %d voters, q = %d.\n", i, size(recVoters), recQ)
		:: else
		fi;
		done
	}
	/* Another k, of 1 and 2: q rises before k falls. */
	:: d_step { m[i].stage == 3 && changes < CHANGES && m[i].acks == 1 && size(m[i].names) == 2 -> 
		changes++; who = m[i].names; ack = 2; load(i);
		done
	}
	:: d_step { m[i].stage == 3 && changes < CHANGES && m[i].acks == 2 && reigns(i) ->
		changes++; who = m[i].voters; need = most(m[i].q, size(m[i].voters | m[i].names)); write(i);
		who = m[i].names; ack = 1; load(i);
		done
	}
	od
}

/* Between primary p and standby j. */
proctype Link(byte p; byte j) {
	do
	:: d_step { m[j].follows == p && m[p].stage > 0 && !m[p].to[j].on ->
		common(j, p);
		if
		:: n == m[j].length ->
			m[p].to[j].on = 1; m[p].to[j].fresh = 1; m[p].to[j].stranger = m[j].lost; m[p].to[j].sent = m[j].length;
			if :: m[p].stage == 1 -> m[p].to[j].fresh = 0 :: else fi;
			printf("%d connects to %d.\n", j, p)
		:: else
		fi;
		done
	}
	:: d_step { m[j].follows == p && m[p].to[j].on && m[p].to[j].stranger == m[j].lost && m[j].length < m[p].length ->
		common(j, p);
		if
		:: n == m[j].length ->
			m[j].wal[m[j].length] = m[p].wal[m[j].length]; m[j].length++; m[p].to[j].sent = m[j].length;
			printf("%d flushes commit %d of %d.\n", j, m[j].wal[m[j].length - 1], p)
		:: else
		fi;
		done
	}
	:: d_step { m[p].to[j].on && m[p].to[j].heard < m[p].to[j].sent ->
		m[p].to[j].heard = m[p].to[j].sent; printf("%d hears the reply of %d.\n", p, j);
		if :: m[j].follows != p -> reached(8) :: else fi;
		release(p, j);
		done
	}
	:: d_step { m[p].to[j].on && !m[p].to[j].fresh && m[p].stage > 1 ->
		m[p].to[j].fresh = 1; printf("The walsender of %d for %d loads SSN.\n", p, j); release(p, j);
		done
	}
	:: d_step { m[p].to[j].on && (m[j].follows != p || m[p].to[j].stranger != m[j].lost) ->
		disconnect(p, j); printf("The walsender of %d for %d ends.\n", p, j);
		done
	}
	/* A voter is dropped: SSN first, the record when that has settled. Where k falls with it, q rises before. */
	:: d_step { m[p].stage == 3 && changes < CHANGES && in(m[p].names, j) && size(m[p].names) > 1 && reigns(p) ->
		changes++; printf("%d drops %d.\n", p, j);
		ack = least(m[p].acks, size(m[p].names) - 1);
#ifdef DROP_FIRST
		who = m[p].names & ~only(j); need = size(who) - ack + 1;
#else
		who = m[p].voters; need = most(m[p].q, size(m[p].voters | m[p].names) - ack + 1);
#endif
		write(p); who = m[p].names & ~only(j); load(p);
		done
	}
	/* A voter is added that streams and has what was there before: the record first. */
	:: d_step { m[p].stage == 3 && changes < CHANGES && !in(m[p].names | m[p].voters, j) && m[p].to[j].on && m[p].to[j].stranger == m[j].lost &&
			m[p].to[j].heard >= m[p].from && reigns(p) ->
		changes++; printf("%d adds %d.\n", p, j);
		m[j].lost = 0; m[p].to[j].stranger = 0;
#ifndef ADD_FIRST
		who = m[p].voters | only(j); need = most(m[p].q + 1, size(m[p].voters | m[p].names) + 1 - m[p].acks + 1); write(p);
#endif
		who = m[p].names | only(j); ack = m[p].acks; load(p);
		done
	}
	od
}

init {
	atomic {
		d_step {
			recK = K; recQ = 2 - K + 1;
#ifdef ONE_VOTER
			recVoters = 2; recQ = 1;
#endif
			for (best : 0 .. N - 1) { m[best].sealed = 1; m[best].follows = 0 };
			m[0].follows = Nobody; m[0].stage = 3; m[0].term = 1; m[0].names = recVoters; m[0].acks = recK;
			m[0].voters = recVoters; m[0].q = recQ;
			for (best : 1 .. N - 1) { m[0].to[best].on = 1; m[0].to[best].fresh = 1 };
#ifdef BEHIND
			/* 1 has two commits of 0 that nobody has acknowledged; 2 has none, was promoted by its own answer, and leads. */
			commits = 2; timelineOf[1] = 1; timelineOf[2] = 1;
			m[0].wal[0] = 1; m[0].wal[1] = 2; m[0].length = 2; m[1].wal[0] = 1; m[1].wal[1] = 2; m[1].length = 2;
			token = 2; recToken = 2; recPrimary = 2; recVoters = 2; recK = 1; recQ = 1;
			m[2].sealed = 2; m[2].follows = Nobody; m[2].stage = 3; m[2].term = 2; m[2].names = 2; m[2].acks = 1; m[2].voters = 2; m[2].q = 1;
#endif
			done
		};
		run Store();
		run Agent(0); run Agent(1); run Agent(2);
		run Link(0, 1); run Link(0, 2); run Link(1, 0); run Link(1, 2); run Link(2, 0); run Link(2, 1)
	}
}
