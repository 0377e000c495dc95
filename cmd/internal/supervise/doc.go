// Package supervise runs a command for as long as its owner has the right to it, and never longer.
//
// It knows nothing of elections. The caller gives it a deadline on the boot clock and moves the
// deadline on with [Process.Extend]. When the deadline is near and has not moved, the command and
// everything it started are killed, so that they are gone BY the deadline. That holds also when
// this process is killed or frozen, because a second process, the guardian, keeps the deadline too:
//
//	supervisor  ── orders: start, deadline, signal, stop ──▶  guardian ── starts ──▶ COMMAND
//	(the caller) ◀── reports: started, bound, suspended, gone ── │                      │
//	     │                                                       │                its children
//	     └── guardian killed or frozen:                          └── supervisor dead or frozen:
//	         kills the tree itself                                   TERM, then KILL by the deadline
//
// A suspended process (SIGSTOP) keeps no deadline by itself. So both have an alarm: a timer of the
// kernel that sends SIGCONT to the process at the instant when it must kill the tree. A tree that
// is suspended whole is killed while it is suspended.
//
// The guardian is this same executable again. The program therefore calls [GuardianMain] before
// anything else when its first argument is [GuardianArg]. The guardian is the parent of the command
// and a child subreaper: the kernel gives it every process below it that loses its parent, also
// after setsid and a double fork. The supervisor is a subreaper too, so what a killed guardian
// leaves falls to the supervisor. "The tree" is the command and everything below the guardian.
//
// A command may also have no deadline ([NoDeadline]), as a server that needs no right as long as it
// is a standby. [Process.Bind] gives it one: when Bind has returned nil, the guardian has confirmed
// the deadline, and the caller may let the server become the leader. Without a deadline too the
// tree ends as soon as its supervisor or its guardian has died.
//
// # Words
//
//   - To stop a command is to ask it to end: by the stop signal, which is SIGTERM unless
//     [Command].StopSignal names another. To suspend a process is what a shell's job control does
//     with SIGTSTP (^Z) or SIGSTOP; SIGCONT (fg, bg) continues it. A suspension moves no deadline.
//   - The grace is how long the command may take to end after the stop signal. If nobody stops the
//     command earlier, the stop signal is sent at deadline − grace.
//   - The margin is the time that killing may take. SIGKILL is sent when the grace is over, or at
//     deadline − margin if that is earlier.
//   - A guardian is lost when it was killed, when it is frozen, or when the deadline comes and it
//     neither kills the tree nor reports. The supervisor then kills the tree.
//
// # The life of a tree, as the guardian sees it
//
//	running ──▶ stopping  (stop signal sent: Stop, deadline − grace, supervisor gone,
//	   │          │         or the command has exited and left processes behind)
//	   │          ▼  grace over (with KillRemaining: at once when the command has exited),
//	   │          │  or deadline − margin
//	   └──────▶ killing   (SIGKILL to the group and to every descendant, round after round)
//	              │
//	              ▼
//	            gone      (nothing left, everything reaped)
//
// An order that replaces the deadline is carried out in the first state only, and refused in the
// others. Only in the last state does [Process.Wait] return, and only then may a [LastAction] run.
//
// # The last action
//
// A supervisor may leave a [LastAction] for the case that it is killed, such as to give back what
// it held, so that nobody waits for that to run out. The guardian runs it through the program's
// [OrphanHandler] (the orphan is the guardian: its parent is dead), once it knows two things from
// the kernel. The supervisor is dead: it is no longer the guardian's parent. A supervisor that only
// sends nothing may be frozen, and counts as alive. The tree is gone: the guardian has no child
// left. If a process of the tree does not die, if the supervisor is only frozen, or if the guardian
// died too, the last action does not run.
//
// # Which file runs where
//
//	both processes   plan.go (when to stop and to kill), protocol_linux.go, poll_linux.go,
//	                 alarm_linux.go, tree_linux.go, terminal_linux.go, lastaction.go (the public
//	                 types)
//	supervisor       command.go, supervisor_linux.go, process_linux.go (any goroutine),
//	                 bind_linux.go (any goroutine), watcher_linux.go (one goroutine a Process)
//	guardian         guardian_linux.go, lastaction_linux.go (one loop, on a thread that it locks
//	                 with runtime.LockOSThread)
//	init             namespace_linux.go: the first process of a PID namespace, see Isolate
//	not on Linux     supervisor_other.go (New returns an error, so nothing is supervised)
//
// # Locks
//
// There are three mutexes: Supervisor.mu and Process.mu in the supervisor, and stderrCopy.mu in the
// guardian (a stderrCopy is the guardian's descriptor of the command's standard error). No
// goroutine ever locks one while it holds another. The caller of a method whose name ends in Locked
// holds the receiver's mutex. Every other method of these types is called without it. The state of
// a watcher and of a guardian has no mutex: one goroutine owns it.
//
// # Limits
//
// SIGKILL goes out a margin before the deadline, because guardian and supervisor must first get a
// processor. With ten times more to do than processors to do it, that has taken 130 ms: give a
// larger [Command].Margin on such machines. (Real-time priority does not help: the Go runtime's
// locks spin, and a thread of the highest priority spins until the kernel throttles it, while the
// thread that holds the lock waits. Tried: up to a second late.)
//
// The package cannot kill a process that somebody else started on the command's behalf (a container
// daemon, cron, systemd-run), one it has no permission to kill (set-user-ID, when we are not root),
// or one that hangs in the kernel (state D). [Status].Overrun shows the last two. If supervisor and
// guardian are killed at the same instant, the command dies with its parent (PDEATHSIG), but its
// own children live on, unless [Supervisor.Isolate] was called, or the command ends them itself on
// [Command].DeathSignal, for which it must run: a suspended one does not. A guardian without a
// deadline that is frozen by a cgroup notices its supervisor's death when it is thawed; one that is
// suspended, within a second. When a whole machine, or a cgroup
// without Isolate, is frozen and thawed, the command runs on until the guardian has woken: only the
// fencing token helps.
package supervise
