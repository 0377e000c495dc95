// Package callbacks runs the commands that a member's file names for what has happened to its
// server, with the arguments of Patroni's callbacks:
//
//	COMMAND… on_start|on_stop|on_restart|on_reload|on_role_change primary|replica CLUSTER
//
// It only observes: it reads snapshots of the member (agent.Snapshot), each after the fact, and
// what it does is read by nobody. A callback is a hint. What keeps two servers from being primaries
// is in package core, and rests on no command of a user's.
//
// # What holds
//
//   - Nothing waits for a callback: no decision, no deadline, no end of the member. Commands are
//     on other file systems than ours, and those may hang: so the keeper executes them, not the
//     agent. A fork of the agent waits until the child has executed its program, and all other
//     forks wait with it, those of servers and guardians too.
//   - At most one command runs for on_reload, and one for all others. A newer one ends it, with all
//     that it has started, and begins once that is gone. Of those that wait the newest is kept.
//   - A command has no descriptor, lock, session or process group of the agent or the server.
//   - What it prints is in the agent's log, line by line.
//
// # The keeper
//
// The keeper is this same executable, one process for each command. It is the parent of the command
// and a child subreaper: what the command leaves falls to it, and not to the agent, which would
// take it for what a lost guardian has left, kill it, and wait for its end. It reads what the
// command prints, so that a command goes on to print when the agent has ended. It ends with the
// last process of the command. What a command has left running when it ended, such as a program in
// the background, goes on: only a command that still runs is ended.
//
// The keeper outlives the agent: on_stop of a member that is stopped begins when the server is
// gone, just before the agent ends.
package callbacks
