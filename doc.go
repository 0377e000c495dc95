// Package primacy elects a leader, and never two, by leases kept in a store you already run.
//
// # Nouns
//
//	store     where leases and claims live: etcd, PostgreSQL, Redis, ZooKeeper, …
//	lease     the store's promise to keep a process's claims for a TTL after each renewal
//	session   keeps a lease alive for all elections of this process, by one heartbeat; when the
//	          lease is lost it gets another
//	election  a name that at most one candidate holds at a time
//	claim     a candidate's place in the line for a name; the oldest claim leads
//	term      the time of one leader: a context, a deadline, a fencing token
//	token     a number larger than that of every earlier term of the name
//	candidate the loop that campaigns, leads, and campaigns again
//	lock      a name held for a while and given back: [Mutex], [RWMutex], [Semaphore]; what is
//	          held is a term
//
// # A program
//
//	store, err := open.Open(ctx, "etcd://127.0.0.1:2379")
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//	session, err := primacy.NewSession(store, nil)
//	if err != nil {
//		return err
//	}
//	defer session.Close(context.WithoutCancel(ctx))
//	return session.Run(ctx, "billing/invoicer", func(ctx context.Context, term *primacy.Term) error {
//		return work(ctx, term.Token()) // ctx ends before the lease can; context.Cause(ctx) says why
//	})
//
// # What is promised
//
// At any instant [Term.Check] says yes in at most one process for an election or an exclusive lock
// of one name. (Readers share a lock, and a semaphore has several holders.) This holds under any
// delay, loss or partition of messages, any pause of a process and any clock offset, provided that
// clock rates differ by less than Options.Drift, that clocks count suspended time, and that the
// store is linearizable. Tokens grow.
//
// A claim is given up only after the work has returned and context and right have ended. Work that
// has to stop is told by the term's context; until the deadline the right lives on, so that the
// work can stop in order. If the store has lost the claim already, context and right end at once. A
// lost lease always ends the term; to win again begins another term.
//
// What is not promised: no check can recall a write that is under way when the process is paused.
// Only a fence stops that write: a resource that refuses a token smaller than one it has seen. A
// fence needs no clock.
//
// # How it works
//
//	deadline = clock read BEFORE the accepted renewal was sent + TTL as granted × (1 − drift)
//
//	follower ────────▶ candidate ──▶ leader ──▶ follower
//	not in the line    in the line   a term
//
// Contexts end at deadline − grace, the right to lead at the deadline.
//
// [Term.Check] compares the boot clock with the deadline each time it is called. Contexts and
// timers are hints that may come late.
package primacy

// The locks of this package, from the outer to the inner. Whoever holds one takes only those of
// lines below it. The caller of a method that ends in Locked holds its receiver's lock. There are
// two exceptions. For a function or a method of Term it is claim.mu. For an observer of a claim
// (statistics, events, history, the log) it is claim.mu too, unless the method's comment names the
// observer's own lock.
//
//	queue.mu, Candidate.mu
//	claim.mu                                            of one claim at a time
//	Elections.mu
//	lease.mu, Session.mu                                neither under the other
//	seatTable.mu, announcementTable.mu, historyWriter.mu, tallies.mu, eventReaders.mu, outages.mu
//	announcements.mu, feed.mu, logQueue.mu
//
// Term.Check may take claim.mu and lease.mu. A claim may not take queue.mu: it starts a goroutine
// for each event that its queue has to know (claimSpec.onEvent).
