// Package supervise runs a command for as long as its owner has the right to it, and never longer.
//
// It knows nothing of elections. Its caller gives it a deadline on the boot clock and moves it on with
// [Process.Extend]; when the deadline is near and has not moved, the command and everything it started are killed, so
// that they are gone BY the deadline. That holds when this process is killed or frozen, because a second process, the
// guardian, keeps the deadline too:
//
//	supervisor (the caller) ── orders: start, deadline, signal, stop ──▶ guardian ── starts ──▶ COMMAND
//	     │                  ◀── reports: started, failed, paused, gone ──   │                      │
//	     │                                                                  │                  its children
//	     └── guardian killed or frozen: kills the tree itself               └── supervisor dead or frozen:
//	                                                                            TERM, then KILL by the deadline
//
// The guardian is this same executable again, so the program calls [GuardianMain] before anything else when its first
// argument is [GuardianArg]. It is the parent of the command and a child subreaper: whatever the command starts stays
// below the guardian, also after setsid and a double fork. The supervisor is a subreaper too, so what is left of a
// killed guardian's tree falls to it.
//
// The life of a command, as the guardian sees it:
//
//	running ──▶ told (TERM: Stop, deadline − grace, supervisor gone, or the command ended and left children)
//	   │          │
//	   │          ▼  grace over, or deadline − margin
//	   └──────▶ killed (KILL to the group and to every descendant, again and again)
//	              │
//	              ▼
//	            gone (nothing left, everything reaped): only now does [Process.Wait] return, or is the will carried out
//
// A supervisor that was killed may leave a [Will]: what the guardian has done for it once nothing of the command is left, such as to give back
// what the supervisor held, so that nobody waits for it to run out. The guardian goes by what it knows. The supervisor is dead when it is
// no longer the guardian's parent, never because it is silent; the command is gone when the kernel says that the guardian has no child
// left. What does not die keeps the will closed. Where the supervisor only froze, or the guardian died too, the will is not carried out.
//
// SIGKILL goes out a margin before the deadline, because guardian and supervisor must first get a processor. With ten
// times more to do than processors to do it, that has taken 130 ms: give a larger [Command].Margin on such machines.
// (Real-time priority is no way out: the Go runtime's locks spin, and a thread that goes before all others spins until
// the kernel throttles it while the thread that holds the lock waits. Tried: up to a second late.)
//
// What it cannot do: kill a process that somebody else started on the command's behalf (a container daemon, cron,
// systemd-run), one it has no permission to kill (set-user-ID, when we are not root), or one that hangs in the kernel
// (state D); [Status].Overrun tells of the last two. If supervisor and guardian are killed at the same instant, the
// command dies with its parent (PDEATHSIG) but its own children live on: there a cgroup must help, as systemd's
// KillMode does. A whole machine that is frozen and thawed runs on for the moment that the guardian needs to wake:
// only the fencing token helps there.
package supervise
