// Package sim proves the decisions of `primacy postgres` in a simulated world. What runs is the
// code that ships: each member is a core.Member. Around it stand models of what it relies on:
//
//   - PostgreSQL (postgres.go, stream.go): WAL as a list of records; walsenders that each load
//     synchronous_standby_names for themselves, late or never; walreceivers that connect late;
//     replies in flight; promotions that take time, or happen after the agent gave up.
//   - The store (store.go): leases, one line of claims, tokens, transfers, and the record by
//     compare-and-swap. Answers get lost, writes land late, but never after their claim is gone.
//   - The agent and its guardian (agent.go, orders.go): orders take time and fail, before or after
//     they had their effect.
//   - The shared configuration (shared.go): people change durability and acks, well or badly, and
//     each member reads it late.
//   - Faults (faults.go): machines without power, processes killed and frozen, cuts, disks wiped,
//     servers promoted by hand; and a guardian or a clock that fails, so that a former primary
//     lives on. Clients write to every primary that there is, all the time.
//
// judge.go says what must hold. A seed replays exactly: everything random comes from it, and all
// runs on one goroutine. See sim/run for how to play seeds.
package sim
