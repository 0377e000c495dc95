// Package concurrency is a drop-in for go.etcd.io/etcd/client/v3/concurrency: sessions,
// elections, locks and STM with the same names, types, errors and keys on the wire. Change the
// import and nothing else:
//
//	import "github.com/primacy-go/primacy/concurrency"
//
// Both may stand in one line. etcd's own tests of its package run against this one (see folder
// upstreamtest).
//
// # What is promised beyond the original
//
// While [Session.Check] returns nil, no session of another lease holds what this one holds: under
// any delay, loss or partition, any pause of any process, and any change of etcd's leader, as
// long as the rates of this machine's clock and of etcd's differ by less than a tenth. The
// deadline is
//
//	clock before the accepted renewal was sent + granted TTL × 0.9
//
// on a clock that counts suspended time, and Done is closed a tenth of the TTL before it. A
// renewal counts only if etcd's log has proved it, in the raft term in which the lease was
// granted; when etcd's leader has changed, claims are moved to a lease granted since, their
// revisions unchanged. Above a TTL of 300 s a renewal is trusted for 300 s. [Election.Token] and
// [Mutex.Token] are fencing tokens.
//
// Not promised: that a program stops. It must, when Done is closed or Check returns an error. A
// write that is already under way when its process is paused can be refused only by what it is
// sent to, by its token.
//
// # What is different
//
// Each line names a fault of the original, what happens here instead, and the test that plays the
// same scenario with both packages.
//
//   - Campaign under a lease that was revoked returns nil: many lead at once. Here:
//     ErrSessionExpired (TestNoPhantomLeaders).
//   - So does Campaign of a session whose context has ended. Here: ErrSessionExpired, if the key
//     is gone (TestAnEndedContextWinsNothing).
//   - A leader's second Campaign fails: it is no leader to itself, and the key stands. Here: it
//     leads on; a second Lock that fails leaves the Mutex locked, too
//     (TestAFailedCampaignKeepsTheLead).
//   - A waiter does not hear that its session is lost. Here: ErrSessionExpired, at once
//     (TestAWaiterHearsThatItsSessionIsLost).
//   - A compaction or a broken connection ends a wait with an error, and Campaign leaves its key
//     behind. Here: the wait goes on (TestCompactionEndsNoWaitAndLeavesNoGhost).
//   - A cancelled context is not obeyed in a partition. Here: at once; the key is deleted in the
//     background (TestACancelledContextIsObeyedInAPartition).
//   - A lost reply leaves the key in the line. Here: it is found and deleted
//     (TestALostReplyLeavesNoKey).
//   - A put that is carried out late leaves a key. Here: it is deleted (TestALatePutIsRemoved).
//   - A Proclaim that is carried out late brings an old value back. Here: it is carried out only
//     if no other came between (TestALateProclaimBringsNoOldValueBack).
//   - Resign forgets after an error, and the key stands. Here: it is tried on, and can be called
//     again (TestResignDoesNotForgetOnAnError).
//   - A late Unlock deletes a newer lock. Here: it deletes only the revision it locked
//     (TestAStaleUnlockHurtsNoNewerLock).
//   - TryLock that fails writes twice. Here: nothing (TestTryLockWritesNothingWhereItFails).
//   - IsOwner before Lock makes a Txn an error. Here: the compare is false
//     (TestIsOwnerBeforeLockIsNoError).
//   - A hand-over is up to 100 ms late. Here: a millisecond or two (TestHandOver).
//   - Done is counted from a reply, and looked at once a second: closed after the key is gone.
//     Here: before the key can go (TestDoneIsClosedBeforeTheKeyCanGo).
//   - A deleted key is never noticed. Here: it ends the session: there is no other way to tell
//     the holder (TestADeletedKeyEndsTheSession).
//   - A revoked lease is noticed a third of the TTL later. Here: at once, where a claim is attached
//     to it (TestARevokedLeaseIsNoticedAtOnce).
//   - NewSession waits for ever. Here: for the TTL, 10 s to 60 s (TestNewSessionIsBounded).
//   - A frozen member of etcd costs the session. Here: another member is asked
//     (TestAFrozenMemberEndsNoSession).
//   - An etcd leader that was paused revokes, as it wakes up, leases that were renewed since. Here:
//     claims are attached to a lease it never knew (TestALeaseOfAnEarlierRaftTermIsNotReliedOn).
//   - While etcd is full (NOSPACE) the original's sessions live on: a keepalive needs no space.
//     Here they do until etcd's leader changes; then each needs a new lease, which a full etcd does
//     not grant: Done is closed, and its elections and locks are lost. Make space before you
//     restart the leader.
//   - Observe ends with a compaction, or shows an old state for ever. Here: it goes on, and shows
//     what etcd's majority says (TestObserveSurvivesCompaction).
//
// # What else to know
//
//   - Keys: one put for each waiter, `<prefix>/<lease in hex>`, and nothing else under the
//     prefix. A renewal reads and writes claims only (or, with none, the key that the first
//     election or lock of the session would have), so a user needs rights on his prefix only.
//   - With WithLease, and after a change of etcd's leader, claims are attached to a guard: another
//     lease of the session's, with the same TTL, which it keeps alive beside its own. Their keys
//     still end in the ID that Session.Lease returns. Orphan puts them back. Keys that the user
//     puts under Session.Lease are not moved.
//   - So `etcdctl lease revoke` of the lease in a key's name does not free what is attached to a
//     guard at once: the next renewals find the lease gone, Done is closed, and the guard is
//     revoked at the deadline. To free it at once, delete the key.
//   - And where somebody else keeps a lease alive that was brought with WithLease, and the process
//     crashes, its keys are gone one TTL later; in the original they stand as long as the lease. A
//     process that is started again within the TTL finds them.
//   - Two living sessions of one lease (WithLease with a lease that another process still keeps)
//     are one candidate and share one key. The last to take it up leads with it. The other one is
//     told at its next renewal: until then Check returns nil for both, and their tokens are equal.
//     The original tells neither. End the old session before a new one brings its lease along.
//   - An orphaned session works as in the original: it is not kept alive and has no deadline. If
//     its lease was its own, and it was Orphan that ended it, Campaign returns nil when all before
//     it are gone, though its own key may be gone too: etcd's tests want that. With WithLease, and
//     where the context of WithContext ended it, Campaign returns ErrSessionExpired then.
//   - On a lease that etcd does not know, the first call returns an error in which errors.Is
//     finds both ErrSessionExpired and rpctypes.ErrLeaseNotFound, which is all that the original
//     returns; later ones return ErrSessionExpired. Compare with errors.Is, not with ==.
//   - Token is 0 for who only waits, for who has begun to resign or unlock, and for a resumed
//     election until Proclaim or Campaign has returned nil. IsOwner holds only while Token is not
//     0; in the original it holds for who waits, too. Objects of one session and one prefix share
//     one key: they win it together, and lose it together.
//   - A paused leader of etcd's may revoke the session's own lease as it wakes up. That lease
//     cannot be moved, since it must keep its ID: the session ends, and Done is closed before its
//     claims go.
//   - Close makes waiters return ErrSessionExpired.
//   - Recipes of client/v3/experimental/recipes take the original's *Session; use a copy of them
//     that imports this package.
//   - NewSession makes connections of its own beside the client's, with its credentials and dial
//     options, one set for each client; they, and every goroutine, end with the client. Endpoints
//     must be members, or balancers that pass connections through: through etcd's own grpc-proxy
//     no renewal is accepted.
//   - A client that was put together from parts (client/v3/namespace, client/v3/ordering) is
//     spoken to through these parts: a frozen member may then cost the session.
//     client/v3/leasing, which answers from a cache, is refused.
//   - etcd 3.4.42, 3.5.28, 3.6.9, 3.7 or newer: older ones can show old state after a pause, and
//     a warning is logged.
//
// # What it costs
//
// The original's session sends one keepalive each third of the TTL. Here a renewal, each fifth of
// it, is a keepalive of the session's lease, one more for its guard if it has one, a read, and
// two Txns, which write nothing, but pass through etcd's log: they are the proof. However many
// claims there are, it is no more. A thousand sessions with a claim and a TTL of 20 s are 500
// entries a second in etcd's log, where the original makes none. So share one session among the
// elections and locks of a process, and take no shorter TTL than is needed. A session that has
// made neither an election nor a lock has no key to prove a renewal with: it sends keepalives
// only, and its first claim gets a lease of its own.
package concurrency
