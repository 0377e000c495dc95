// Package cron runs commands by a schedule, beside others like it on other machines, so that each
// instant of a job is decided once in the whole fleet.
//
// # The promise
//
// At most one command begins for each (job, instant, attempt), under any crash, pause, partition or
// wrong clock, as long as the store keeps what it has acknowledged and clock rates stay within the
// session's drift bound. At least once is the user's to say: by retries, and by a resource that
// refuses a smaller token (PRIMACY_TOKEN), since what a killed command has done already nobody can
// take back. Every instant from where a schedule counts has a record in the end: it ran and ended
// so, it was lost, it was suppressed by an overlap, or it was missed.
//
// # Records and claims
//
// The journal cron/JOB has a record for each decision, by keys that sort: INSTANT.ATTEMPT.KIND,
// with the instant in UTC. Each key is appended at most once, so each is a decision of its own:
// ".a" says who runs the attempt (or that nobody does), ".z" how it ended. Whoever appends first
// has decided.
//
// While a command runs, its process holds a claim, a lock of its session: cron/JOB, or with overlap
// = "allow" cron/JOB/INSTANT. The claim decides nothing about who runs. It tells the living from
// the dead, and it bounds the command: a guardian ends the command and all it started by the
// deadline of the claim's lease, so when anybody else can hold the claim, nothing runs under it.
//
//	            claim           append .a         run          append .z
//	due ──────▶ held by us ───▶ added, ours ────▶ command ───▶ ok, failed, … ──▶ claim given up
//	│           │ by another    │ another's       under the    │ another's: it was
//	│           ▼               ▼                 claim's      ▼ declared lost
//	│           decided? older? duplicate         deadline     .zz says how it ended
//	│           ▼               suppressed
//	│           overlap, wait, or ask it to stop
//	└── nobody in time ──▶ missed: under the claim cron/JOB once, skip or all
//
//	begun, no end, the claim stands nowhere ──▶ whoever sees it takes the claim, appends
//	.z = lost, and gives it up ──▶ the next attempt, as retries say
//
// The claim comes BEFORE the append, and the command starts only if the claim has been held without
// a break since. So a beginning without an end, seen by one who holds the claim, is of a runner
// that will never run: not later either, however long it was paused, since its claim is over for
// good. And a "lost" that is under way while its finder dies is still true when it arrives. (Append
// first and claim then would need a third record: a paused finder's "lost" could arrive when the
// runner, woken up, has found no such record and runs.)
//
// # Each point at which a process can stop
//
//	it crashes, or is paused,            then
//	before the claim                     another decides the instant; what nobody has decided
//	                                     after Late was missed
//	with the claim, before the append    the lease runs out and another decides; a paused one's
//	                                     append fails, or, if it arrives where nobody has
//	                                     decided, is found lost: its own look at the claim,
//	                                     after the append, says no
//	after the append, before the start   lost, found when the lease is over; paused: the claim,
//	                                     looked at again, says no
//	while the command runs               the guardian ends the command by the deadline, and the
//	                                     lease is over after that: lost. A paused runner that
//	                                     wakes up finds the command gone and the end told, and
//	                                     says what it knows as .zz
//	after the command, before .z         lost, though it may have done its work: that is why
//	                                     "at least once" needs the token
//	after .z, before it gives the claim  the claim runs out with the lease; runs of the job that
//	                                     may not overlap wait for that
//	while it declares another lost       nothing is said, or it is said: true in both cases
//
// An answer that was lost is asked for again under the same random run name: who finds his own name
// in the record is the one. A store that is down stops all decisions; commands go on until the
// deadline and are ended then.
//
// The journal keeps what is not over, and all that is newer. Who was frozen so long that it has
// forgotten records meanwhile does nothing that is older than the journal's oldest record, nor what
// others say is over (Record.Done): the oldest record may be a late one, with a hole behind it. The
// journal is read again, back to whatever there is to do about it, when the last look is more than
// 2 s old and the claim is held.
//
// # Clocks
//
// Wall clocks say when an instant is due: a machine whose clock is ahead runs jobs early, and the
// others tell of it; nothing runs twice. An instant with a record never runs again, whatever a
// clock does, and a process never goes back behind what it has seen decided. Suspend and jumps are
// noticed within a second. Deadlines are the session's, on the boot clock.
//
// # Several processes with one ID
//
// are safe: claims belong to leases and records to random run names. Only people cannot tell them
// apart.
package cron
