// Package core holds the decisions of `primacy postgres`: who may be promoted, in which order,
// which standbys a commit must have reached, and how a former primary comes back. It is pure:
// observations go in, orders come out. It reads no clock, starts no goroutine and does no I/O.
//
// # Words
//
//   - seal: what a member does when it hears of a newer term. It notes the term's token on disk,
//     stops listening to any primary, and reads where its WAL ends. Its answer is true from then
//     on: it flushes nothing more for a former primary, and so can acknowledge nothing for it.
//   - survey: the leader of a term looks at the answers and decides who is to be promoted.
//   - record: what all must agree on, under one key of the store: the primary, the voters, k, q,
//     the timeline numbers. Only the leader of a living term writes it, by compare-and-swap.
//   - incarnation: one life of a data directory, a random text. A member that lost its data, had
//     them changed by a clone or a rewind, or has those of a backup in their place, is another one.
//   - V: the voters, standbys whose answers a survey counts. S: those that a value of
//     synchronous_standby_names (SSN) names. k: how many of S must have flushed a commit. q: how
//     many of V must have answered before somebody is promoted.
//
// # The rules
//
//  1. Record. A new term reads the record after it was won. A write whose outcome is unknown is
//     repeated, the same, until the record shows it: else the leader would act by one record while
//     another stands. A write of a former term finds its claim gone.
//  2. Seal. The token is on disk before the member stops listening, and no walreceiver is left
//     before it reads: else it could acknowledge after its answer. It follows only the primary of a
//     record whose token is at least that of its seal, after a restart too. One that has begun a
//     promotion stops its server first: the promotion may still be under way.
//  3. Complete answers only. After a crash a server does not know at once where its WAL ends. An
//     answer is a position: the timeline of the last record, then the LSN, as the term and the
//     index in Raft. A longer WAL of an older timeline may lack what was acknowledged on the newer
//     one. A timeline that was never given out was promoted by hand and counts for nothing; as
//     numbers are given out by twos, one made by hand is never given to another.
//  4. Who may be promoted. Enough is the answer of the record's primary, or those of q voters, or
//     the LSN at which the primary was shut down and anybody who has it. Incarnations count, not
//     names. The most advanced is promoted; among equals priority decides, and then who holds the
//     term.
//  5. Order of a promotion. The record names the new primary; its SSN is set; the guardian is bound
//     to the term's deadline; a third of the term is left; then it is promoted. The new primary is
//     no voter any more, and q does not fall: until rule 7 settles it may be the only one that has
//     an acknowledged commit. Where q is above the number of voters, nobody else can be promoted.
//  6. SSN. A standby's names somebody who does not exist. So a server promoted by hand acknowledges
//     nothing, and one without voters makes commits wait. It is empty only in async, or where the
//     record says that the primary is alone.
//  7. Changes of voters keep k + q > |V ∪ S|, for each SSN that a process of the primary may
//     have loaded. To add: the record first. To drop: the SSN first. To go alone: the record
//     first, without voters and with q as it was. Settle lowers q and shrinks V: all have
//     loaded the SSN; then the primary's LSN, the barrier, is read; then k of S have flushed
//     the barrier. Without the barrier a commit may be on the dropped one alone. Another k and
//     another durability come the same way: to async the record first, and back by a settle. A
//     newcomer votes once it has flushed what the primary had when it came: without that a
//     clone cannot be started.
//  8. Stop. At the end of its term a server that was promoted, or is being promoted, is stopped,
//     whatever order is under way. What has failed halfway is stopped too: a promotion or a bind of
//     unknown outcome, a server made ready for another term, one on a timeline that was not
//     ordered. One that does not end in time, for its disk hangs, does not keep the term.
//  9. Start. A server is started as a standby that listens to nobody. Data that initdb, clone or
//     rewind left half done are not started. What a clone or rewind has copied is consistent only
//     with the WAL of that primary: under another one it is copied again.
//  10. Pause. It is in the record before the guardian lets go of the server, and until it holds it
//     again. While it is, nobody but the record's primary stands, and who wins the term all the
//     same gives it up. A primary that gets a new term writes that into the record: nobody else can
//     have been promoted since. A person may force an election: an ordinary one, with seals.
//  11. Amnesia of the store. A record, or none, that is not what this member has seen or what came
//     after it: it stops, and puts that finding in the record's place, by compare-and-swap. So who
//     has seen less, or nothing, stops too, and all wait for a person. Nobody answers a term before
//     it has read the record since it knew of that term. Where only such members run that have seen
//     nothing newer than a backup, nobody can know. The one incarnation that a person has chosen
//     may write the first record over the finding: of a new life, and on a timeline far beyond its
//     own. A record of another life than the member's own is no finding, unless
//     that life came before: the member stops, and tells nobody.
//  12. Adoption. Data that were there before the cluster are taken over where a person has
//     said, for each member, whether they are the primary's. Until there is a record, the former
//     manager's servers go on, and who was adopted as a standby does not stand. Who was adopted
//     as the primary and has a term ends its server, reads all of the WAL, and writes the first
//     record, without voters: nobody else can be promoted until rule 7 has found that some have
//     all of it, or until the next record has made the cluster async. A member that leaves forgets
//     its incarnation, and the last one the record, before another manager's server writes.
//
// # Why no acknowledged commit is lost
//
// Let P acknowledge a commit c. Then c is flushed on P and on k members of the SSN that the
// releasing walsender had loaded. The next promotion rests on answers R.
//
// If P is in R, or the LSN of its shutdown is known: P's WAL holds c, and whoever is promoted has
// all of it. If q voters are in R: k + q > |V ∪ S| puts a member X into R that is among the k. X
// flushed c before its seal, for after it X listens to nobody; or voters have changed since, and
// rule 7 let them change only when k of the new S had flushed past c. So the most advanced of R has
// c: timelines are ordered as terms are, by rule 3, and on one timeline only one server has ever
// written.
//
// Nor does P acknowledge c later, when it is too late: once R is complete at most |V ∪ S| - q < k
// members can still flush for P. By induction over terms the same holds for every later promotion:
// the new primary has all that was acknowledged before, and rule 5 lets nobody else be promoted
// until enough voters have it too.
//
// A database that was adopted begins with a promotion too. What the former manager's primary has
// acknowledged is flushed there, and its server has ended before the WAL is read: so the first
// primary has all of it. That the server was the primary is a person's word, void where the data
// have become a standby's since. That the former manager is gone is looked up, and the store tells
// one that comes back later that these are not its data. A second member that was adopted as the
// primary changes nothing.
//
// No clock occurs in this: a frozen or slow P, a guardian that fails, a lease that is believed too
// long cost no row. That the store gives the term to one member at a time makes surveys follow one
// another, and the deadline ends stale reads.
//
// # To read
//
// record.go, survey.go, voters.go and rejoin.go are rules 1, 3, 4, 5, 7 as functions. member.go
// is one member: Step takes what happened, then decide goes through what must be stopped, what
// must be on disk, the seal, and at last leads (lead.go) or follows (follow.go). lost.go and
// lives.go are rule 11, adopt.go is rule 12. orders.go and observation.go are all that it asks of
// the world and knows of it. Who judges them: the tests beside them, one rule at a time; a search
// of every order of steps within bounds (search_test.go); package sim, which drives whole members
// in a world that fails; and a mutation for each rule, test/mutations/pgcore-*.
package core
