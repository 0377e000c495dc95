// Package sim plays elections in a simulated world, event by event, from a seed. One seed gives one
// run, to the bit, on every machine.
//
// What runs is the code that ships: package internal/core takes every decision. Around it stand the
// shell (shell.go, claim.go, candidate.go: what the root package does for each order, and in which
// order) and a store, with the client rules of its package. The stores (stores.go; etcd is not
// among them: internal/etcdsim simulates etcd's cluster around the client that ships, see
// TestSimulatedCluster):
//
//   - plain: one clock, keeps every clause of the port (plain.go). With a heartbeat that waiters
//     time: beat (beat.go).
//   - zk: an ensemble whose followers tell the leader of sessions only in answers to its pings; a
//     renewal is proved by a chain of writes (zk*.go).
//   - redis, postgres: a server that may forget what it acknowledged, or not, and a replica with
//     another clock (mirror.go, redis.go, postgres.go).
//   - register: registers under compare-and-swap and no clock at all (cas*.go).
//   - kubernetes: two API servers on one etcd, with caches that lag, forget and stand still;
//     watches that go deaf or are cut; 429, 503 of a proxy that has sent the request on all the
//     same, 410; objects that are deleted, put back and rewritten by hand (kube*.go).
//   - shards: a plain store under groups of shards (group*.go). What plans and follows is package
//     shards' own; its goroutines are a model. Members leave, come back, are restarted, are not
//     ready, are made for another number of shards, have handlers that never return; assigners are
//     lost in the middle of a move, or paused there; moves are paused; answers are old.
//   - quorum: servers that know nothing of each other, of which a majority decides; no token, no
//     line (quorum*.go).
//
// The world (world.go, task.go, net.go) has a true time that nobody in it knows; every machine has
// a clock with an offset and a rate of its own. Messages are delayed by up to twice the TTL, lost,
// doubled and overtaken; links are cut, in one direction too; processes are paused, suspended,
// killed and started again; single goroutines get no turn, as between a check and the write that
// follows; store clients never come back; the store restarts, changes its leader, hears a former
// one, forgets; operators remove claims and leases.
//
// The judge (judge.go, ghosts.go, register.go) sees true time and asks after every event: would two
// processes be told yes by Check? Does each term's token exceed all before? Was the end of a term
// told, and had its work returned, before its claim was released? Is the line first come, first
// served? Is one waiter woken, not all? Does anything stand that nobody stands behind? Did a fenced
// write go back, or was one lost? Does somebody lead once nothing goes wrong any more? Of groups of
// shards (group_judge.go): did more shards move than events demand, or more at a time than may? Did
// a term end by a request for another? Did a shard wait for its member that is being restarted?
//
// # What it cannot show
//
//   - The shell is a model of the root package, and each client a model of its store's package: a
//     fault in those packages that is not in the model stays unseen. Their own tests, and real
//     processes on real servers, are for that.
//   - The stores are what is known of them, no more. The log of ZooKeeper is taken to be
//     linearizable.
//   - Looks of a simulated assigner are three reads, each of one instant. On registers and
//     Kubernetes each line is read at an instant of its own.
//   - On zk and redis only leases, renewals and grants follow the real rules; that a claim is
//     entered once is the plain store's doing.
//   - Two things are not judged: a former Redis primary that lives on and needs no replica to
//     confirm (a control shows what it does), and after a store has forgotten that an operator
//     removed a claim, who leads under that claim.
//   - That one waiter is woken, and that the line is in order, is a property of the simulated
//     stores; drivertest asks it of real ones.
//   - A step of a task between two waits is atomic, as under a lock: data races are for the race
//     detector.
//   - Clocks differ by rate and offset and count suspended time. A hypervisor that stops a guest's
//     clocks is outside the promise.
//   - Seeds are samples, not a proof.
package sim
