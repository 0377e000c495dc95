// Package shards spreads a number of shards over the processes that are there. Each shard is owned
// by exactly one of them at a time, under a term and token of its own.
//
//	group, err := shards.New(session, "tenants", 256, nil)
//	if err != nil {
//		return err
//	}
//	return group.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
//		return serve(ctx, s.Number, s.Term.Token()) // until ctx ends
//	})
//
// # Nouns
//
//	group     a name and a number of shards
//	member    a process that runs the group: it stands in the line of the election NAME
//	shard     the election NAME/0000, NAME/0001, …: who leads it owns the shard
//	assigner  the member that leads the election NAME: it decides who should own what
//	plan      what the assigner announces: who should take which shard. Its token is the epoch
//	move      a shard goes from one member to another, both alive
//
// Kafka's words for the same: a plan is an assignment, a move a rebalance of one partition, to ask
// the owner for a shard is to revoke it. The assignment is sticky and cooperative.
//
// # What is promised
//
// Two members never own a shard at the same instant. This rests on the shard's election alone, with
// all that package primacy promises and does not promise. It rests neither on the plan nor on the
// assigner: a plan that is old, or of an assigner that leads no more, can cause moves, and never a
// second owner. Losing the assigner loses no shard: who owns one keeps it, and the next assigner
// reads from the shards' lines who owns what.
//
// # How a shard moves
//
//	assigner  the plan names the new member for it
//	new       calls Options.Warm, then stands in the shard's line
//	assigner  sees it waiting there, and asks the owner, by the token of its term, to hand over
//	owner     its handler's context ends; the handler returns; only then the shard is handed over
//
// In between nobody owns the shard for the time of one write. If the owner dies meanwhile, the new
// member leads by its place in the line. A handler that takes its time to return keeps its shard:
// nobody takes it by force while its process is well.
package shards
