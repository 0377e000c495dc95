// Package supervise runs a command for as long as its owner has the right to it, and never longer.
//
// It knows nothing of elections. The caller gives it a deadline on the boot clock and moves the
// deadline on with [Process.Extend]. When the deadline is near and has not moved, the command and
// everything it started are killed, so that they are gone BY the deadline. That holds also when
// this process is killed or frozen, because a second process, the guardian, keeps the deadline too:
//
//	supervisor   ── orders: start, deadline, rebind, ───────▶  guardian ── starts ──▶ COMMAND
//	(the caller)    signal, stop, last action                     │                       │
//	     │       ◀── reports: started, failed, ───────────────    │                 its children
//	     │           answer to rebind, suspended, gone            │
//	     └── guardian killed or frozen:                           └── at the end: TERM, then KILL
//	         KILL to the tree                                         by the deadline
//
// (The order "rebind" replaces the deadline: see [Process.Bind] below.)
//
// The guardian is this same executable again, with [GuardianArg] as its first argument. It guards
// while this package is initialized, and the program's main calls [GuardianMain] before anything
// else. The guardian is the parent of the command
// and a child subreaper: the kernel makes it the parent of every process below it that loses its
// own, also after setsid and a double fork. (After [Supervisor.Isolate] that parent is init: the
// first process of the command's PID namespace, which is a child of the guardian.) The supervisor
// is a subreaper too, so what a killed guardian leaves falls to the supervisor. "The tree" is the
// command and everything else below the guardian.
//
// A command may also have no deadline ([NoDeadline]), as a server that needs no right as long as it
// is a standby. [Process.Bind] gives it one: when Bind has returned nil, the guardian has confirmed
// the deadline, and the caller may let the server become the leader. Without a deadline too the
// tree ends with either of its two processes: when the supervisor has died, the guardian stops the
// tree; when the guardian has died, the supervisor kills it.
//
// # Words
//
//   - To stop a command is to ask it to end: by the stop signal, which is SIGTERM unless
//     [Command].StopSignal names another.
//   - To suspend a process is what a shell's job control does with SIGTSTP (^Z) or SIGSTOP; SIGCONT
//     (fg, bg) continues it. A suspension moves no deadline.
//   - A process is frozen while it runs no code: it is suspended, or a cgroup has frozen it, or the
//     whole machine stands still. A frozen process keeps no deadline. So supervisor and guardian
//     each have an alarm: a timer of the kernel that sends SIGCONT to the process at the instant
//     when it must kill. That ends a suspension; a cgroup's freeze goes on. A tree that is
//     suspended whole is killed while it is suspended.
//   - The grace is how long the command may take to end after the stop signal, whenever that is
//     sent. (In docs/glossary.md it is the time before the deadline.) If nobody stops the command
//     earlier, the stop signal is sent at deadline − grace. Without a grace there is no stop
//     signal.
//   - The margin is the time that killing may take. SIGKILL is sent when the grace is over, or at
//     deadline − margin if that is earlier.
//   - A guardian is lost when it is dead, or when it has not reported the end of the tree soon
//     after it had to kill. The supervisor then kills the tree. Nobody notices earlier that a
//     guardian is frozen.
//
// # The life of a tree, as the guardian sees it
//
//	running   the command runs
//	stopping  the stop signal was sent, and the grace runs. Why: Stop, deadline − grace, the
//	          supervisor is gone, or the command has exited and left processes behind
//	killing   SIGKILL to the group and to every descendant, round after round. Why: the grace is
//	          over, deadline − margin has come, Stop(0), or with KillRemaining the command has
//	          exited. A running tree may come here directly, without a stop signal
//	gone      nothing is left, and everything is reaped
//
// The order of a [Process.Bind] or [Process.Unbind] is carried out while the tree is running, and
// refused afterwards. Only when the tree is gone does [Process.Wait] return, and only then may a
// [LastAction] run.
//
// # The last action
//
// A supervisor may leave a [LastAction] for the case that it is killed. With it the guardian gives
// back what the supervisor held, such as a lease, and nobody has to wait until the lease runs out.
// The guardian calls the program's [OrphanHandler] for it when the kernel has told it both:
//
//   - The supervisor is dead: it is no longer the guardian's parent. A supervisor that only sends
//     nothing may be frozen, and counts as alive.
//   - The tree is gone: the guardian has no child left.
//
// So the last action does not run if a process of the tree does not die, if the supervisor is only
// frozen, or if the guardian died too.
//
// # Which file runs where
//
// Read them in this order: plan.go and command.go; process_linux.go and watcher_linux.go, which are
// the supervisor's side; guardian_linux.go with protocol_linux.go; bind_linux.go. The others as
// they come up.
//
//	both processes   plan.go (when to stop and to kill), protocol_linux.go, poll_linux.go,
//	                 alarm_linux.go, tree_linux.go, terminal_linux.go, lastaction.go (the public
//	                 types)
//	supervisor       command.go, supervisor_linux.go, process_linux.go, bind_linux.go: on any
//	                 goroutine. Each Process has three of its own: sendOrders (process_linux.go),
//	                 and run and noteSignals of its watcher (watcher_linux.go)
//	guardian         guardian_linux.go, lastaction_linux.go, namespace_linux.go: one loop, on a
//	                 thread that it locks with runtime.LockOSThread. (startGuardian in the
//	                 supervisor also calls three functions of namespace_linux.go:
//	                 mayMakeNamespaces, inUserNamespace, noNamespace.)
//	init             namespaceInit and mountProc of namespace_linux.go
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
// larger [Command].Margin on such machines. After [Supervisor.Isolate], where the kernel must kill
// a guardian that a cgroup has frozen, that begins only a quarter of the margin before the
// deadline; with forty times more to do, at nice 10, it has taken 1.8 s. (Real-time priority does
// not help: the Go runtime's locks spin, and a thread of the highest priority spins until the
// kernel throttles it, while the thread that holds the lock waits. Tried: up to a second late.)
//
// The package cannot kill a process that somebody else started on the command's behalf (a container
// daemon, cron, systemd-run), one it has no permission to kill (set-user-ID, when we are not root),
// or one that hangs in the kernel (state D). [Status].Overrun shows the last two.
//
// If supervisor and guardian are killed at the same instant, the command dies with its parent
// (PDEATHSIG), but its own children live on, unless [Supervisor.Isolate] was called, or the command
// ends them itself on [Command].DeathSignal. A suspended command cannot.
//
// Without a deadline no instant is known at which a frozen process must wake. A suspended guardian
// looks for its supervisor every second; one that a cgroup has frozen, when it is thawed. A
// suspended supervisor sleeps until somebody continues it. If its guardian is killed meanwhile, the
// command dies with the guardian, but the command's children live until somebody continues the
// supervisor.
//
// The alarm of one command continues the whole supervisor. If the supervisor is suspended with a
// command (^Z) while another one runs that has NoJobControl, the first is continued in the
// background, as by bg, when that other one's time to be killed comes. (If the supervisor were
// suspended again at once, that would hold up the kill.)
//
// A cgroup may freeze supervisor, guardian and command together, and so may a machine that stands
// still. If they are thawed after the deadline, the command runs until the guardian has got a
// processor and killed it: only a fence helps. [Supervisor.Isolate] helps where a cgroup does this,
// not where the machine does.
package supervise
