//go:build linux

package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/servertest"
	"golang.org/x/sys/unix"
)

// unboundFamily is a family whose command has no deadline, and a pipe for orders to its supervisor.
type unboundFamily struct {
	*family
	orders *os.File
}

func newUnboundFamily(t *testing.T, change func(*setup)) *unboundFamily {
	t.Helper()
	orders := newPipe(t, t.TempDir())
	return &unboundFamily{newFamilyOf(t, ttl, func(s *setup) {
		s.TTL, s.Orders = 0, orders.Name()
		s.Command.Deadline, s.Command.Grace = NoDeadline, 100*time.Millisecond // all are deaf to the stop signal
		if change != nil {
			change(s)
		}
	}), orders}
}

// newPipe makes a named pipe.
func newPipe(t *testing.T, dir string) *os.File {
	t.Helper()
	name := filepath.Join(dir, "orders")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	return pipe
}

// tell gives the supervisor an order: see obeyOrders.
func (f *unboundFamily) tell(t *testing.T, order string) {
	t.Helper()
	if _, err := fmt.Fprintln(f.orders, order); err != nil {
		t.Fatal(err)
	}
}

// ask gives the supervisor an order and returns the error that it reports. After "bind" and
// "extend" it sets f.deadline.
func (f *unboundFamily) ask(t *testing.T, order string) (result string) {
	t.Helper()
	before, _ := os.ReadFile(f.report)
	f.tell(t, order)
	eventually(t, "the result of "+order, func() bool {
		text, _ := os.ReadFile(f.report)
		_, after, _ := strings.Cut(string(text[len(before):]), "did ")
		line, _, whole := strings.Cut(after, "\n")
		number, err1, _ := strings.Cut(line, " ")
		if d, err := strconv.ParseInt(number, 10, 64); err == nil && d != 0 && whole {
			f.deadline = time.Duration(d)
		}
		result = err1
		return whole
	})
	return result
}

// do is ask for an order that must succeed.
func (f *unboundFamily) do(t *testing.T, order string) {
	t.Helper()
	if result := f.ask(t, order); result != "<nil>" {
		t.Fatalf("%s: %s", order, result)
	}
}

// unconfirmed freezes the guardian and repeats an order until it fails for want of the guardian's
// answer. Without a deadline the guardian's alarm wakes it once a second: then the order may
// succeed.
func (f *unboundFamily) unconfirmed(t *testing.T, order string) {
	t.Helper()
	for range 20 {
		send(t, unix.SIGSTOP, f.guardian)
		if strings.Contains(f.ask(t, order+" shortly"), context.DeadlineExceeded.Error()) {
			return
		}
	}
	t.Fatal("a frozen guardian answered 20 times")
}

// awaitStamp returns when one of the tree has stamped after that instant. (Not all: on a busy
// machine one may get no processor for a second.)
func (f *unboundFamily) awaitStamp(t *testing.T, after time.Duration) {
	t.Helper()
	eventually(t, "a stamp", func() bool { return overlap(t, f.file, after) > 0 })
}

// A command that was started without a deadline and then bound is gone by the deadline, whichever
// of the three are killed or frozen.
func TestBound(t *testing.T) {
	t.Parallel()
	for name, hurt := range map[string]func(t *testing.T, f *family){
		"supervisor killed": func(t *testing.T, f *family) { send(t, unix.SIGKILL, f.supervisor) },
		"supervisor frozen": func(t *testing.T, f *family) { send(t, unix.SIGSTOP, f.supervisor) },
		"guardian frozen":   func(t *testing.T, f *family) { send(t, unix.SIGSTOP, f.guardian) },
		"all frozen":        func(t *testing.T, f *family) { send(t, unix.SIGSTOP, append(f.all, f.supervisor)...) },
		"supervisor killed, guardian frozen": func(t *testing.T, f *family) {
			send(t, unix.SIGSTOP, f.guardian)
			send(t, unix.SIGKILL, f.supervisor)
		},
		"supervisor frozen, guardian killed": func(t *testing.T, f *family) {
			send(t, unix.SIGSTOP, f.supervisor)
			send(t, unix.SIGKILL, f.guardian)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newUnboundFamily(t, nil)
			f.do(t, "bind "+ttl.String())
			hurt(t, f.family)
			wantDeadBy(t, f.file, f.deadline)
		})
	}
}

// With a namespace the kernel itself keeps the deadline to which the command was bound: supervisor
// and guardian are frozen by a cgroup, where no alarm wakes them.
func TestBoundIsolated(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	if servertest.CgroupRoot() == "" {
		t.Skip("this process cannot make cgroups of version 2")
	}
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	needNamespaces(t, s)
	f := newUnboundFamily(t, func(s *setup) {
		s.Isolate = true
		s.Command.Margin = 3 * ttl // the kernel has a quarter of it: 3 s
	})
	f.do(t, "bind "+(4*ttl).String())
	servertest.NewCgroup(t, f.supervisor, f.guardian).Freeze()
	wantDeadBy(t, f.file, f.deadline)
}

// Without a deadline too the tree ends at once when it has lost its supervisor or its guardian. A
// guardian that is frozen is woken by its alarm.
func TestUnboundEndsWithItsKeepers(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	for name, hurt := range map[string]func(t *testing.T, f *family){
		"supervisor killed": func(t *testing.T, f *family) { send(t, unix.SIGKILL, f.supervisor) },
		"guardian killed":   func(t *testing.T, f *family) { send(t, unix.SIGKILL, f.guardian) },
		"supervisor killed, guardian frozen": func(t *testing.T, f *family) {
			send(t, unix.SIGSTOP, f.guardian)
			send(t, unix.SIGKILL, f.supervisor)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newUnboundFamily(t, nil)
			hurt(t, f.family)
			eventually(t, "the end of all who stamp", func() bool { return !stamping(t, f.file) })
		})
	}
}

// A limit: a suspended supervisor of a command without a deadline has no alarm. If its guardian is
// killed, the command dies with the guardian, and its children when somebody continues the
// supervisor.
func TestUnboundBesideASuspendedSupervisor(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	f := newUnboundFamily(t, nil)
	send(t, unix.SIGSTOP, f.supervisor)
	awaitFrozen(t, f.supervisor)
	send(t, unix.SIGKILL, f.guardian)
	eventually(t, "the command dead", func() bool { return isDead(f.command) })
	f.awaitStamp(t, boottime.Now())
	send(t, unix.SIGCONT, f.supervisor)
	eventually(t, "the end of all who stamp", func() bool { return !stamping(t, f.file) })
	if got, want := f.status(t), (Status{Code: 137, Cause: CauseGuardianLost, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A command without a deadline runs on, also beside a supervisor that is frozen. A deadline that
// was taken away ends nothing. The next one holds, also one that is earlier than the one before,
// and Extend moves it on.
func TestUnbind(t *testing.T) {
	t.Parallel()
	f := newUnboundFamily(t, nil)
	f.do(t, "extend 1ms") // there is no deadline that could move
	f.do(t, "bind "+ttl.String())
	f.do(t, "unbind")
	send(t, unix.SIGSTOP, f.supervisor)
	f.awaitStamp(t, f.deadline)
	send(t, unix.SIGCONT, f.supervisor)
	f.do(t, "bind 1h")
	f.do(t, "bind "+ttl.String())
	first := f.deadline
	f.do(t, "extend "+(ttl*2).String())
	f.awaitStamp(t, first)
	wantDeadBy(t, f.file, f.deadline)
	if got, want := f.status(t), (Status{Code: 137, Cause: CauseDeadline, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A Bind that the guardian has not confirmed fails. The command is not left with a deadline that
// the guardian may not know: it is ended by that deadline, whatever extends it.
func TestBindUnconfirmed(t *testing.T) {
	t.Parallel()
	for _, thaw := range []bool{false, true} {
		t.Run(fmt.Sprint("thawed: ", thaw), func(t *testing.T) {
			t.Parallel()
			f := newUnboundFamily(t, nil)
			f.unconfirmed(t, "bind "+ttl.String())
			deadline := f.deadline
			if thaw {
				sendUnlessEnded(t, unix.SIGCONT, f.guardian)
			}
			for stamping(t, f.file) && boottime.Now() < deadline+100*time.Millisecond {
				f.tell(t, "extend 10s")
				time.Sleep(10 * time.Millisecond) // the pace of renewals
			}
			wantDeadBy(t, f.file, deadline)
		})
	}
}

// An Unbind that the guardian has not confirmed fails, and the deadline stays, also when the
// guardian's answer comes later.
func TestUnbindUnconfirmed(t *testing.T) {
	t.Parallel()
	for _, thaw := range []bool{false, true} {
		t.Run(fmt.Sprint("thawed: ", thaw), func(t *testing.T) {
			t.Parallel()
			f := newUnboundFamily(t, nil)
			f.do(t, "bind "+ttl.String())
			f.unconfirmed(t, "unbind")
			deadline := f.deadline
			if thaw {
				sendUnlessEnded(t, unix.SIGCONT, f.guardian)
			}
			f.do(t, "extend 1h")
			wantDeadBy(t, f.file, deadline)
			// The guardian has no deadline by now. It must not count as an end by itself.
			if got, want := f.status(t), (Status{Code: 137, Cause: CauseDeadline, Killed: true}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// A failed Bind or Unbind is undone by one that succeeds.
func TestBindAgain(t *testing.T) {
	t.Parallel()
	f := newUnboundFamily(t, nil)
	f.do(t, "bind "+ttl.String())
	f.unconfirmed(t, "unbind")
	send(t, unix.SIGCONT, f.guardian)
	f.do(t, "unbind")
	f.awaitStamp(t, f.deadline)
}

// A Bind without an end of its own returns when the command is gone.
func TestBindBesideAGuardianThatNeverAnswers(t *testing.T) {
	p := &Process{
		plan: plan{deadline: NoDeadline}, eventFD: -1, wakeSender: make(chan struct{}, 1),
		rebindTurn: make(chan struct{}, 1), done: make(chan struct{}),
	}
	time.AfterFunc(10*time.Millisecond, func() { close(p.done) })
	if err := p.Bind(t.Context(), boottime.Now()+time.Hour); !errors.Is(err, ErrEnding) {
		t.Errorf("Bind: %v", err)
	}
}

// What comes when the tree is to be killed changes nothing, and so does a deadline that is so near
// that the command would be stopped at once.
func TestALateBindChangesNothing(t *testing.T) {
	now := boottime.Now()
	far := now + time.Hour
	for _, test := range []struct {
		name string
		plan plan
		to   time.Duration
		want error
	}{
		{"within the margin", plan{deadline: now + time.Minute, margin: time.Hour}, far, ErrEnding},
		{"past the deadline", plan{deadline: now - 1}, far, ErrEnding},
		{"no more deadline, past it", plan{deadline: now - 1}, NoDeadline, ErrEnding},
		{"stopped", plan{deadline: NoDeadline, ending: true, graceEnd: far}, far, ErrEnding},
		{"too near for the grace", plan{deadline: NoDeadline}, now + time.Minute, ErrTooLate},
		{"over already", plan{deadline: far}, now - 1, ErrTooLate},
	} {
		p := &Process{
			plan: test.plan, orderedDeadline: test.plan.deadline, grace: 2 * time.Minute,
			eventFD: -1, wakeSender: make(chan struct{}, 1), rebindTurn: make(chan struct{}, 1),
			done: make(chan struct{}),
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := p.Bind(ctx, test.to)
		cancel()
		if !errors.Is(err, test.want) || p.plan != test.plan || len(p.takeQueue()) != 0 {
			t.Errorf("%s: Bind returned %v; plan %+v, was %+v", test.name, err, p.plan, test.plan)
		}
	}
}

// A command that has its stop signal is not revived by another deadline: its guardian refuses.
func TestBindWhileStopping(t *testing.T) {
	s := newSupervisor(t)
	ready := filepath.Join(t.TempDir(), "ready")
	c := command("trap 'echo told' TERM; : > " + ready + "; while :; do sleep 0.01; done")
	const left = 5 * time.Second
	c.Grace, c.Margin = 3*time.Second, 500*time.Millisecond
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Stdout = w
	defer w.Close()
	p := startWithin(t, s, &c, left)
	w.Close()
	extendUntil(t, p, &c, left, "the shell has its trap", exists(ready))
	if _, err := r.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	// If the machine is slow, it is gone already. Unbind first: the guardian refuses both.
	for what, err := range map[string]error{
		"Unbind": p.Unbind(t.Context()), "Bind": p.Bind(t.Context(), boottime.Now()+time.Hour),
	} {
		if !errors.Is(err, ErrEnding) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got, want := withoutOverrun(p.Wait()), (Status{Code: 137, Cause: CauseDeadline, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Orders, deliveries and calls that are given up, in any order. A deadline that was confirmed is
// kept by both sides until the next call; one of a call that was given up is moved by nothing; and
// when all was delivered, both sides keep the same one.
func TestRebindsInAnyOrder(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		hour := boottime.Now() + time.Hour
		p := &Process{eventFD: -1, wakeSender: make(chan struct{}, 1)}
		p.plan.deadline, p.orderedDeadline = NoDeadline, NoDeadline
		g := &guardian{plan: p.plan, alarm: &alarm{}, killAlarm: &alarm{}}
		var (
			call    *rebindCall   // under way
			wire    []order       // sent, and not read
			answers []report      // the same
			bound   bool          // the last call was a Bind, and has succeeded
			newest  time.Duration // the latest deadline since the last call began
			limit   time.Duration // the deadline that stands while the last call has not succeeded
		)
		for range 60 {
			switch d := hour + time.Duration(r.Int64N(int64(time.Hour))); r.IntN(7) {
			case 0, 1:
				p.Extend(d)
				newest = max(newest, d)
			case 2:
				if call != nil {
					continue
				}
				if r.IntN(2) == 0 {
					d = NoDeadline
				}
				if limit = p.plan.deadline; d != NoDeadline {
					limit = d
				}
				var err error
				if call, err = p.orderRebind(d); err != nil {
					t.Fatal(err)
				}
				newest, bound = d, false
			case 3:
				wire = append(wire, p.takeQueue()...)
			case 4:
				if len(wire) > 0 {
					n := 1 + r.IntN(len(wire))
					answers = append(answers, g.takeDeadlines(wire[:n])...)
					wire = wire[n:]
				}
			case 5:
				if len(answers) > 0 {
					p.rebindAnswered(*answers[0].Rebind)
					answers = answers[1:]
				}
				if call == nil || len(call.answer) == 0 {
					continue
				}
				if err := <-call.answer; err != nil {
					t.Fatal(err)
				}
				bound, call = call.deadline != NoDeadline, nil
			case 6:
				if call != nil && len(call.answer) == 0 { // its context has ended
					p.unconfirmed.over, call = true, nil
				}
			}
			if bound && (g.plan.deadline > newest || p.plan.deadline > newest) {
				t.Fatalf("seed %d: bound to %v at most, the guardian has %v, the supervisor %v",
					seed, newest, g.plan.deadline, p.plan.deadline)
			}
			if p.unconfirmed != nil && p.plan.deadline > limit {
				t.Fatalf("seed %d: unsettled, and moved from %v to %v", seed, limit, p.plan.deadline)
			}
		}
		g.takeDeadlines(append(wire, p.takeQueue()...))
		if p.unconfirmed == nil && g.plan.deadline != p.plan.deadline || bound && g.plan.deadline != newest {
			t.Fatalf("seed %d: the guardian has %v, the supervisor %v, want %v if bound (%v)",
				seed, g.plan.deadline, p.plan.deadline, newest, bound)
		}
	}
}

// A Bind replaces every deadline before it. What Extend got during an earlier Bind, which has
// failed, does not count any more: it may be later than the deadline to which the caller binds now.
func TestABindReplacesWhatWasHeldBack(t *testing.T) {
	now := boottime.Now()
	p := &Process{plan: plan{deadline: now + time.Hour}, eventFD: -1, wakeSender: make(chan struct{}, 1)}
	for _, test := range []struct {
		deadline, extended, want time.Duration
		confirmed                bool
	}{
		{deadline: now + 2*time.Hour, extended: now + 10*time.Hour, want: now + 2*time.Hour},
		{deadline: now + 3*time.Hour, extended: now + 4*time.Hour, want: now + 4*time.Hour, confirmed: true},
	} {
		call, err := p.orderRebind(test.deadline)
		if err != nil {
			t.Fatal(err)
		}
		p.Extend(test.extended)
		call.over = !test.confirmed // its context has ended
		p.rebindAnswered(rebindAnswer{ID: call.id, Held: true})
		if p.plan.deadline != test.want {
			t.Errorf("bound to %v, extended to %v: got %v, want %v", test.deadline-now, test.extended-now,
				p.plan.deadline-now, test.want-now)
		}
	}
}

// When Bind has succeeded, both processes may be frozen at the next instruction: their alarms are
// set already, not only when they go to sleep.
func TestAlarmsAreSetBeforeBindReturns(t *testing.T) {
	deadline := boottime.Now() + time.Hour
	g := &guardian{alarm: newAlarm(unix.SIGCONT), killAlarm: newAlarm(unix.SIGKILL), plan: plan{deadline: NoDeadline}}
	defer g.alarm.close()
	defer g.killAlarm.close()
	g.setAlarms()
	if left := remaining(t, g.alarm); left > idleWake {
		t.Errorf("without a deadline the guardian wakes in %v", left)
	}
	answers := g.takeDeadlines([]order{{Rebind: &rebindOrder{ID: 7, Deadline: deadline}}})
	if len(answers) != 1 || *answers[0].Rebind != (rebindAnswer{7, true}) {
		t.Errorf("the guardian answers %+v", answers)
	}
	w := &watcher{Process: &Process{plan: plan{deadline: deadline}, eventFD: -1}, alarm: newAlarm(unix.SIGCONT)}
	defer w.alarm.close()
	answer := make(chan error, 1)
	w.unconfirmed = &rebindCall{id: 7, deadline: deadline, answer: answer}
	w.wakeSender = make(chan struct{}, 1)
	line, err := json.Marshal(answers[0])
	if err != nil {
		t.Fatal(err)
	}
	w.handle(line)
	if err := <-answer; err != nil {
		t.Error("Bind returns", err)
	}
	all := map[string]*alarm{"guardian": g.alarm, "guardian, isolated": g.killAlarm, "supervisor": w.alarm}
	for name, a := range all {
		if left := remaining(t, a); left < 50*time.Minute || left > time.Hour {
			t.Errorf("the %s's alarm goes off in %v, want an hour", name, left)
		}
	}
}

// remaining returns in how long an alarm goes off.
func remaining(t *testing.T, a *alarm) time.Duration {
	t.Helper()
	if !a.has {
		t.Skip("the kernel gives no alarm")
	}
	var spec unix.ItimerSpec
	_, _, errno := unix.Syscall(unix.SYS_TIMER_GETTIME, uintptr(a.id), uintptr(unsafe.Pointer(&spec)), 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	return time.Duration(spec.Value.Nano())
}

// The last action of a killed supervisor is the one that it named last.
func TestTheLastActionIsReplaced(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"replaced", "given later", "removed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var first string
			f := newUnboundFamily(t, func(s *setup) {
				if name != "given later" {
					first = withLastAction(t, &s.Command, testAction{})
				}
			})
			var other Command
			second := withLastAction(t, &other, testAction{})
			if name == "removed" {
				other.LastAction = nil
			}
			text, err := json.Marshal(other.LastAction)
			if err != nil {
				t.Fatal(err)
			}
			f.tell(t, "action "+string(text))
			f.do(t, "bind "+ttl.String()) // when it has succeeded, the guardian has the order before
			send(t, unix.SIGKILL, f.supervisor)
			eventually(t, "the guardian's end", func() bool { return isDead(f.guardian) })
			if at, ok := actionDone(second); ok == (name == "removed") || ok && overlap(t, f.file, at) >= 0 {
				t.Errorf("the new one was done: %v, at %v", ok, at)
			}
			if _, ok := actionDone(first); ok {
				t.Error("the old one was done")
			}
		})
	}
}

// A last action that was given later has its say on the command's standard error.
func TestMessagesOfALaterAction(t *testing.T) {
	read, write := ends(t, "pipe", "")
	c, file := tree(t, ttl)
	c.Deadline, c.Grace, c.Stderr = NoDeadline, 50*time.Millisecond, write
	report, orders := filepath.Join(t.TempDir(), "report"), newPipe(t, t.TempDir())
	sup := supervisorCommand(t, setup{Command: c, Report: report, Orders: orders.Name()})
	sup.Stderr = write
	if err := sup.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	guardian, _ := awaitStart(t, report)
	waitTree(t, file)
	var other Command
	withLastAction(t, &other, testAction{Say: "the last words\n"})
	text, _ := json.Marshal(other.LastAction)
	fmt.Fprintf(orders, "action %s\nunbind\n", text)
	eventually(t, "the guardian's answer", func() bool {
		b, _ := os.ReadFile(report)
		return strings.Contains(string(b), "did 0 <nil>")
	})
	_ = sup.Process.Kill()
	_ = sup.Wait()
	eventually(t, "the guardian's end", func() bool { return isDead(guardian) })
	wantNobodyLeft(t)
	_ = read.SetReadDeadline(time.Now().Add(time.Minute))
	if got, err := io.ReadAll(read); err != nil || string(got) != "the last words\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

// What a killed command leaves behind has no grace where the caller wants none.
func TestKillRemaining(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"running", "stopping"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			f := newFamilyWith(t, time.Hour, func(c *Command) { // grace: 22 minutes
				c.KillRemaining = true
				if at == "stopping" { // the supervisor's death begins a grace, which the others have no more
					c.StopSignal = unix.SIGKILL
				}
			})
			if at == "stopping" {
				send(t, unix.SIGKILL, f.supervisor)
			} else {
				send(t, unix.SIGKILL, f.command)
				if got, want := f.status(t), (Status{Code: 137, Cause: CauseExited}); got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
			eventually(t, "the end of all who stamp", func() bool { return !stamping(t, f.file) })
		})
	}
}

// Supervisor and guardian are killed at one instant. A command that ends its own processes on the
// signal that the kernel then sends takes them along.
func TestDeathSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, report := filepath.Join(dir, "stamps"), filepath.Join(dir, "report")
	c := command("")
	script := `trap 'kill -KILL $!; exit' QUIT; "$1" __stamp "$2" child & while :; do wait; done`
	c.Args, c.Deadline = []string{"sh", "-c", script, "sh", self(), file}, NoDeadline
	c.DeathSignal = unix.SIGQUIT
	sup := supervisorCommand(t, setup{Command: c, Report: report})
	if err := sup.Start(); err != nil {
		t.Fatal(err)
	}
	guardian, pid := awaitStart(t, report)
	eventually(t, "a stamp", func() bool { return len(stamps(t, file)) == 1 })
	f := &family{guardian: guardian}
	f.all = append(f.pids(), guardian)
	send(t, unix.SIGSTOP, sup.Process.Pid, guardian)
	send(t, unix.SIGKILL, sup.Process.Pid, guardian)
	_ = sup.Wait()
	eventually(t, "the end of the command and its child", func() bool { return isDead(pid) && !stamping(t, file) })
	f.wantNobodyLeft(t)
}

// A command without a deadline whose guardian reports the start when the supervisor kills it
// already, after startLimit: Start fails, and the report does not end the killing.
func TestAStartThatIsReportedTooLateFails(t *testing.T) {
	s := newSupervisor(t)
	for _, killing := range []Cause{"", CauseDeadline} {
		guardian := exec.Command("sleep", "60")
		if err := s.StartOther(guardian); err != nil {
			t.Fatal(err)
		}
		limit := boottime.Now() - 1
		w := &watcher{alarm: &alarm{}, timer: -1, killedFor: killing, Process: &Process{
			supervisor: s, guardian: guardian, startResult: make(chan error, 1), done: make(chan struct{}),
			plan: plan{deadline: limit}, orderedDeadline: NoDeadline, eventFD: -1,
		}}
		w.handle([]byte(`{"started": 1073741824}`))
		if left := w.killAt() != limit; left != (killing == "") {
			t.Errorf("killed for %q: the report moved the limit: %v", killing, left)
		}
		w.handle([]byte(`{"gone": {"by": "exited", "wait": 9}}`))
		w.finish()
		if err := <-w.startResult; (err == nil) != (killing == "") {
			t.Errorf("killed for %q: Start returns %v", killing, err)
		}
		if want := (Status{Code: 137, Cause: CauseExited}); killing == "" && w.status != want {
			t.Errorf("a command that ended by itself: got %+v, want %+v", w.status, want)
		}
	}
}

// What the supervisor killed in the guardian's place did not end by itself, whatever a guardian
// says that does not know the deadline. What had ended before keeps its status.
func TestTheStatusOfWhatTheSupervisorKilled(t *testing.T) {
	const deadline = time.Hour
	for _, test := range []struct {
		name   string
		killed Cause
		report goneReport
		want   Status
	}{
		{"not killed", "", goneReport{WaitStatus: 9, Cause: CauseExited}, Status{Code: 137, Cause: CauseExited}},
		{"for the deadline", CauseDeadline, goneReport{WaitStatus: 9, Cause: CauseExited},
			Status{Code: 137, Cause: CauseDeadline, Killed: true}},
		{"for a stop", CauseStopped, goneReport{WaitStatus: 9, Cause: CauseExited},
			Status{Code: 137, Cause: CauseStopped, Killed: true}},
		{"it exited just then", CauseDeadline, goneReport{WaitStatus: 3 << 8, Cause: CauseExited},
			Status{Code: 3, Cause: CauseExited}},
		{"the guardian knows better", CauseDeadline,
			goneReport{WaitStatus: 9, Cause: CauseStopped, CommandKilled: true},
			Status{Code: 137, Cause: CauseStopped, Killed: true}},
		{"late", CauseDeadline, goneReport{WaitStatus: 9, Cause: CauseExited, At: deadline + time.Second},
			Status{Code: 137, Cause: CauseDeadline, Killed: true, Overrun: time.Second}},
	} {
		w := &watcher{killedFor: test.killed, Process: &Process{plan: plan{deadline: deadline}}}
		if got := w.reportedStatus(test.report); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}
