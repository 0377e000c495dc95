// Package redlockstore keeps leases and claims on N independent Redis servers, of which a majority
// decides: the algorithm known as Redlock. With [Config.Plain] the keys are the names, verbatim,
// and whoever locks them with SET NX PX and compare-and-delete (redsync, redislock) is excluded and
// excludes us, over one server or over the same N.
//
// A claim is one key on each server, with a value that no other try has, and an expiry that the
// server counts down:
//
//	claim ──▶ SET NX PX on s1 ✓   s2 ✓   s3 (frozen)     held: a majority says so
//	renew ──▶ PEXPIRE, if the value is ours, on all;     what a minority has lost is set again,
//	                                                     with NX
//	leave ──▶ DEL, if the value is ours, on all;         in the background where it takes long
//
// It has no fencing token and no line: whoever comes first after a release holds. What it promises
// rests on three things: that no server's clock is stepped, that a server which lost its memory
// does not count for a while ([Config.Guard]), and that the process stops by its own clock, which
// the library above does. See docs/redlock.md.
//
// What a server may still do with a call that was given up is bounded too: each call that sets a
// key names the moment, on that server's own clock, after which it does nothing. Whoever gives a
// claim up leaves a mark where such a call may be under way.
//
// Lock order: claim.turn (of several claims by name and seat), then lease.gate, then lease.mu, then
// server.mu or hub.mu, then Store.mu. Each may be taken without those before it. views.mu is taken
// alone. Only claim.turn and lease.gate are held over a call to a server.
package redlockstore
