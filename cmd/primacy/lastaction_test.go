//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
)

// stubborn is a command of two workers that write to acts: one that ends on SIGTERM, and one in a
// session of its own, which only SIGKILL meets.
const stubborn = `setsid primacy worker acts & primacy worker acts & trap '' TERM
	echo up; sleep 1000`

// upAndSleep is a command that says when it is there: before that, the guardian may not be.
const upAndSleep = "echo up; exec sleep 1000"

// candidate starts a run of the stubborn command, with a ttl in which a test cannot wait for a
// lease to run out.
func (w *world) candidate(id string, flags ...string) *prog {
	return w.start(append(append([]string{"run", "--ttl", "60s", "--stop-timeout", "200ms", "--id", id}, flags...),
		"n", "sh", "-c", stubborn)...)
}

// guardian returns the process ID of a program's guardian.
func (p *prog) guardian() int {
	p.Helper()
	pid := 0
	p.eventually("a guardian", func() bool {
		children := parents()[p.cmd.Process.Pid]
		if len(children) > 0 {
			pid = children[len(children)-1]
		}
		return pid != 0
	})
	return pid
}

// ended says whether a process runs no more.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// mayTell waits for the end of what the program writes. The last line, where it is not the
// program's own, must be the guardian's; on a busy machine it may not come in time for a pipe.
func (p *prog) mayTell(line string) {
	p.Helper()
	<-p.exited
	lines := strings.Split(strings.TrimSpace(p.err.String()), "\n")
	if last := lines[len(lines)-1]; strings.Contains(last, "gone") && last != line {
		p.Errorf("%v: the guardian said %q, want %q", p, last, line)
	}
}

// kill kills the supervisor and returns when, on the boot clock.
func (p *prog) kill() time.Duration {
	p.Helper()
	at := boottime.Now()
	p.signal(syscall.SIGKILL)
	return at
}

func (w *world) periods() []period {
	w.Helper()
	r, err := readPeriods(filepath.Join(w.dir, "acts"))
	if err != nil && !os.IsNotExist(err) {
		w.Fatal(err)
	}
	return r
}

// wantOrder fails unless each term's workers wrote only after the last line of the term before.
func (w *world) wantOrder(terms int) {
	w.Helper()
	r := w.periods()
	if n, back := twoLeaders(r); n != 0 || back != 0 {
		w.Errorf("two acted at once at %d instants, and the token went back %d times: %+v", n, back, r)
	}
	if len(r) < terms {
		w.Errorf("got %d terms in the acts, want %d", len(r), terms)
	}
}

// TestAKilledSupervisorsLeadershipIsGivenUp: the lease would live for a minute. The next leads as
// soon as the last worker is gone, and no sooner.
func TestAKilledSupervisorsLeadershipIsGivenUp(t *testing.T) {
	w := newWorld(t)
	const rounds = 6
	var spare []string
	first := w.candidate("c0").prints("up")
	for i := range rounds {
		next := w.candidate(fmt.Sprintf("c%d", i+1)).tells("waits for n")
		w.awaitLine("n", 2)
		w.eventually("the worker acts", func() bool { return len(w.periods()) == i+1 })
		at := first.kill()
		next.prints("up")
		w.eventually("the next acts", func() bool { return len(w.periods()) == i+2 })
		r := w.periods()
		nobody, ended := r[i+1].first-r[i].last, r[i].last-at
		spare = append(spare, fmt.Sprint(nobody.Round(time.Millisecond), " after ", ended.Round(time.Millisecond)))
		first.mayTell("primacy: the supervisor is gone; its command was ended and leadership of n given up")
		first = next
	}
	w.wantOrder(rounds + 1)
	t.Logf("nobody acted for: %s", strings.Join(spare, ", "))
}

// An executor that did not wait would let the test above fail: it ends the lease while the guardian
// still gives the command its time.
func TestAGuardianThatDoesNotWaitIsSeen(t *testing.T) {
	w := newWorld(t)
	first := w.candidate("c0", "--stop-timeout", "20s").prints("up")
	next := w.candidate("c1").tells("waits for n")
	w.eventually("the worker acts", func() bool { return len(w.periods()) == 1 })
	text, err := json.Marshal(lastAction{Store: w.store, Lease: hexLease(w.awaitLine("n", 2)[0]), Dir: "."})
	if err != nil {
		t.Fatal(err)
	}
	first.kill()
	executeLastAction(t.Context(), text, &buffer{}) // as if nothing were left
	next.prints("up")
	w.eventually("two acts at once to be seen", func() bool { n, _ := twoLeaders(w.periods()); return n > 0 })
	w.killAll()
}

// TestAFrozenSupervisorsLeaseRunsOut: nobody can know that it will not go on, so nothing is given
// up before the deadline.
func TestAFrozenSupervisorsLeaseRunsOut(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--ttl", "12s", "--id", "c0", "n", "sh", "-c", stubborn).prints("up")
	next := w.start("run", "--ttl", "60s", "--id", "c1", "n", "sh", "-c", stubborn).tells("waits for n")
	w.awaitLine("n", 2)
	at := boottime.Now()
	p.signal(syscall.SIGSTOP)
	next.prints("up")
	w.eventually("the next acts", func() bool { return len(w.periods()) == 2 })
	// Renewed at most a fifth of the ttl and an answer before, the lease has most of its time left;
	// on a busy machine less.
	if d := w.periods()[1].first - at; d < 2*time.Second {
		t.Errorf("the next acted %v after the supervisor was frozen", d)
	}
	w.wantOrder(2)
	p.ends(exitLost) // the kernel has woken it
	if strings.Contains(p.err.String(), "supervisor is gone") {
		t.Errorf("stderr %q tells of a supervisor that is gone", p.err.String())
	}
}

// TestSupervisorAndGuardianKilled: nobody is left who knows. The lease stands until it runs out.
func TestSupervisorAndGuardianKilled(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	p := w.start("run", "--ttl", "60s", "n", "sh", "-c", upAndSleep).prints("up")
	line := w.awaitLine("n", 1)
	guardian := p.guardian()
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		p.signal(sig)
		if err := syscall.Kill(guardian, sig); err != nil {
			t.Fatal(err)
		}
	}
	<-p.exited
	w.eventually("the command is gone", func() bool { return len(w.processes()) == 0 })
	if got := w.awaitLine("n", 1); got[0].CreateRevision != line[0].CreateRevision {
		t.Errorf("got %+v in the line, want %+v", got, line)
	}
	w.revoke(line[0].Lease)
}

// TestAGuardianWithoutAStoreEnds: the way to the store is silent, or leads nowhere. The guardian
// tries for a ttl, says nothing, and is gone.
func TestAGuardianWithoutAStoreEnds(t *testing.T) {
	onlyInVerify(t)
	for _, kind := range []string{"silent", "refused"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			proxy := etcdtest.NewProxy(w, w.server.Addr())
			p := w.start("run", "--ttl", "10s", "--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "n", "sh", "-c",
				upAndSleep).prints("up")
			guardian := p.guardian()
			if kind == "silent" {
				proxy.Hold()
			} else {
				proxy.Cut()
			}
			began := time.Now()
			p.kill()
			w.eventually("the guardian is gone", func() bool { return ended(guardian) })
			<-p.exited
			t.Logf("the guardian was gone %v after its supervisor", time.Since(began).Round(time.Millisecond))
			if s := p.err.String(); strings.Count(s, "\n") != 1 {
				t.Errorf("stderr %q, want no word of the guardian", s)
			}
			w.awaitLine("n", 0) // the lease runs out
		})
	}
}

// A store that answers again within the ttl is asked again.
func TestAGuardianTriesAgain(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	proxy := etcdtest.NewProxy(w, w.server.Addr())
	p := w.start("run", "--ttl", "60s", "--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "n", "sh", "-c",
		upAndSleep).prints("up")
	proxy.Hold()
	p.kill()
	w.eventually("the guardian has dialled", func() bool { return proxy.Holds(etcdtest.Up, []byte("PRI * HTTP/2")) })
	proxy.Heal()
	w.awaitLine("n", 0)
	// Before the proxy goes: a guardian that has not heard of its success asks for it again, for a
	// ttl.
	w.eventually("the guardian is gone", func() bool { return len(w.processes()) == 0 })
}

// TestAKilledLockIsGivenBack, quietly where it was asked to be quiet, and with the files of the URL
// found where the run was started.
func TestAKilledLockIsGivenBack(t *testing.T) {
	w := newWorld(t)
	p := w.start("lock", "--ttl", "60s", "n", "sh", "-c", upAndSleep).prints("up")
	p.kill()
	w.awaitLine("n", 0)
	p.mayTell("primacy: the supervisor is gone; its command was ended and the lock on n given up")
	p = w.start("lock", "-q", "--ttl", "60s", "n", "sh", "-c", upAndSleep).prints("up")
	p.kill()
	w.awaitLine("n", 0)
	w.eventually("the guardian is gone", func() bool { return len(w.processes()) == 0 })
	if p.err.String() != "" {
		t.Errorf("stderr %q, want nothing", p.err.String())
	}
}

// The guardian reaches the store as its supervisor did, by what stood in the environment: here a
// password.
func TestTheGuardianHasTheEnvironmentForTheStore(t *testing.T) {
	t.Parallel()
	w := onStore(t, strings.Replace(withLogin(pgtest.Start(t, pgtest.Options{Password: swordfish}).URL()),
		":"+swordfish+"@", "@", 1))
	w.env = append(w.env, "PGPASSWORD="+swordfish)
	if strings.Contains(w.store, swordfish) {
		t.Fatal("the password is in the URL")
	}
	p := w.start("run", "--ttl", "5m", "n", "sh", "-c", upAndSleep).prints("up")
	p.kill()
	w.start("run", "n", "true").ends(0) // within a minute, not five
}

// TestAKilledHostsLeadershipIsGivenUp: the embedded store goes down with the supervisor that hosts
// it. Another process takes it over, and the guardian asks that one.
func TestAKilledHostsLeadershipIsGivenUp(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	w := plainWorld(t)
	first := w.candidate("c0").prints("up")
	next := w.candidate("c1").tells("waits for n")
	w.eventually("the worker acts", func() bool { return len(w.periods()) == 1 })
	first.kill()
	next.prints("up")
	w.eventually("the next acts", func() bool { return len(w.periods()) == 2 })
	w.wantOrder(2)
	next.kill() // nobody hosts the store any more; the guardian must not
	w.eventually("its guardian alone is left", func() bool {
		return ended(next.cmd.Process.Pid) && len(w.processes()) == 1
	})
	time.Sleep(3 * time.Second) // were it to host the store, it would by now
	if s, err := os.ReadFile(filepath.Join(w.dir, "state", "primacy", "primacy.lock")); err != nil ||
		strings.TrimSpace(string(s)) != fmt.Sprint(next.cmd.Process.Pid) {
		t.Errorf("the store's host is %q (%v), want it to be the killed one", s, err)
	}
	w.killAll() // it would go on for a ttl
}

// A last action that nobody can carry out ends at once.
func TestALastActionThatCannotBe(t *testing.T) {
	for _, text := range []string{"", "{", `{"store":"nowhere://x","lease":"1"}`, `{"store":"","lease":"1"}`} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		var out buffer
		executeLastAction(ctx, []byte(text), &out)
		if ctx.Err() != nil || out.String() != "" {
			t.Errorf("%q: said %q, took too long: %v", text, out.String(), ctx.Err())
		}
		cancel()
	}
}
