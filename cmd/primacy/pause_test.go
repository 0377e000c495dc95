//go:build linux

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	pauses "github.com/primacy-go/primacy/pause"
)

// TestNobodyNewIsElectedWhilePaused: the leader dies, the one that waits gives the name back and
// says so, and leads once the pause is resumed.
func TestNobodyNewIsElectedWhilePaused(t *testing.T) {
	w := newWorld(t)
	line := w.crowd("n", "a", "b")
	watch := w.start("observe", "n").prints("a leads")
	other := w.start("run", "--id", "other", "--on-leader-change", "echo hears of $PRIMACY_LEADER", "n", "echo",
		"other").tells("hears of a")
	w.awaitLine("n", 3)
	w.start("pause", "n", "--no-elections", "--reason", "the database moves").ends(0).
		prints("n is paused by ").prints("nobody new is elected: the database moves\n")
	line["a"].signal(syscall.SIGTERM).ends(0)
	line["b"].tells("NOT LEADING: n is paused by ")
	other.tells("NOT LEADING: n is paused by ")
	w.awaitLine("n", 0)
	late := w.start("run", "--id", "late", "n", "echo", "late").tells("NOT LEADING")
	watch.prints("nobody leads")
	if said := watch.out.String() + other.err.String(); strings.Contains(said, "b leads") ||
		strings.Contains(said, "hears of b") || strings.Contains(said, "other leads") {
		t.Errorf("others heard of a leader that did not lead: %q", said)
	}
	w.start("history", "n").ends(0).prints(" a ").prints("PAUSED: n is paused by ")
	w.eventually("status has who waits", func() bool {
		out := w.start("status", "n").ends(exitNo).out.String()
		return strings.Contains(out, "NOT STANDING: b, since ") && strings.Contains(out, "NOT STANDING: late, since ")
	})
	if out := w.start("history", "n", "-o", "json").ends(0).out.String(); strings.Contains(out, `"b"`) {
		t.Errorf("b led, says the history: %s", out)
	}
	other.signal(syscall.SIGTERM).ends(128 + int(syscall.SIGTERM))
	if out := w.start("status", "n").ends(exitNo).out.String(); strings.Contains(out, "NOT STANDING: other") {
		t.Errorf("status has one that has ended: %s", out)
	}
	for _, p := range []*prog{line["b"], late} {
		if p.out.String() != "" {
			t.Errorf("its command ran: %q", p.out.String())
		}
	}
	w.start("status", "n").ends(exitNo).prints("PAUSED: n is paused by ")
	w.start("status").ends(0).prints("PAUSED: n is paused by ")
	w.start("top", "--once").ends(0)
	if p := decode[stateJSON](w, w.start("leader", "n", "-o", "json").ends(exitNo).out.String()).Paused; p == nil ||
		p.Scope != "n" || !p.NoElections || p.Reason != "the database moves" || p.Until == nil {
		t.Errorf("leader -o json has the pause %+v", p)
	}
	w.start("resume", "n", "--dry-run").ends(0).says("n: nobody leads; of 2 that wait one is elected: b, late\n")
	w.start("pause").ends(0).prints("n is paused by ")
	w.start("resume", "n").ends(0).prints("n is resumed")
	w.start("pause").ends(0).says("nothing is paused\n")
	w.start("resume", "n").ends(exitNo).inOneLine().complains("not paused")
	w.eventually("somebody leads", func() bool { return line["b"].out.String()+late.out.String() != "" })
	w.killAll()
}

// TestStatusTellsTheFailureOfWhoHasHandedOver, and not what kept it from that before.
func TestStatusTellsTheFailureOfWhoHasHandedOver(t *testing.T) {
	var out strings.Builder
	sick := []healthRecord{{ID: "a", Text: "exit status 1", Kept: true, Why: "n is paused by ann"}}
	tells := func(leader, want string) {
		out.Reset()
		printOutside(&app{stdout: &out}, primacy.State{Leader: &primacy.Entry{ID: leader}}, sick, []heldBack{{ID: "c"}})
		if !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "NOT STANDING: c, since ") {
			t.Errorf("while %s leads, status says %q, want %q", leader, out.String(), want)
		}
	}
	tells("b", ", and does not stand: exit status 1\n")
	tells("a", ", and leads on, since n is paused by ann: exit status 1\n")
}

// TestAnOperatorTransfersWhilePaused: what is paused is what nobody asked for.
func TestAnOperatorTransfersWhilePaused(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	line := w.crowd("n", "a", "b", "c")
	w.start("pause", "n", "--no-elections", "--reason", "drill").ends(0)
	w.start("transfer", "n", "--to", "c").ends(0).says("c\n")
	line["c"].prints("up")
	line["a"].ends(exitResigned)
	w.start("resign", "n").ends(exitUsage).inOneLine().complains("nobody would lead after it")
	w.start("resign", "n", "--force").ends(0)
	line["c"].ends(exitResigned)
	line["b"].tells("NOT LEADING")
	if out := line["b"].out.String(); out != "" {
		t.Errorf("b led: %q", out)
	}
	w.killAll()
}

// TestWhoWasNamedIsRestartedInAPause: it is elected if it is back before the leader has stopped. If
// it is not, nobody is, and that is said.
func TestWhoWasNamedIsRestartedInAPause(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	const waits = `trap 'kill $!; echo stopping; until [ -e go-%s ]; do sleep 0.05; done; exit 0' TERM; echo up
		sleep 1000 & wait`
	run := func(id, name, script string, place int) *prog {
		p := w.start("run", "--id", id, "--ttl", "60s", "--stop-timeout", "20s", name, "sh", "-c", script)
		w.awaitLine(name, place)
		return p
	}
	store := w.session("looks").Store()
	for _, name := range []string{"back", "gone"} {
		a := run("a", name, fmt.Sprintf(waits, name), 1).prints("up")
		c := run("c", name, stops, 2)
		w.start("pause", name, "--no-elections", "--reason", "drill").ends(0)
		p := w.start("transfer", name, "--to", "c", "--wait", "1m")
		a.prints("stopping")
		c.signal(syscall.SIGTERM).ends(128 + int(syscall.SIGTERM))
		w.awaitLine(name, 1)
		if name == "gone" {
			w.touch("go-" + name)
			p.ends(exitNo).inOneLine().complains("has stopped, but c does not lead: nobody leads gone, and nobody may",
				"primacy resume gone")
			w.eventually("status tells it", func() bool {
				out := w.start("status", name).ends(exitNo).out.String()
				return strings.Contains(out, "NOT ELECTED: c, whom ")
			})
			continue
		}
		c = run("c", name, stops, 2)
		w.eventually("c is admitted again", func() bool {
			now, err := pauses.Read(w.Context(), store)
			return err == nil && len(now.Admissions(name)) == 2
		})
		w.touch("go-" + name)
		p.ends(0).says("c\n")
		c.prints("up")
	}
	w.killAll()
}

// TestAPauseOfChangesLetsTheNextOneLead: without --no-elections a leader that dies is replaced.
func TestAPauseOfChangesLetsTheNextOneLead(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	line := w.crowd("n", "a", "b")
	p := w.start("pause", "n", "--for", shown.Forever, "--reason", "drill", "-o", "json").ends(0)
	if j := decode[shown.Pause](w, p.out.String()); j.Scope != "n" || j.Until != nil || j.NoElections {
		t.Errorf("set %+v", j)
	}
	w.start("run", "--id", "h", "--priority", "5", "--steady", "300ms", "n", "echo", "never")
	w.awaitLine("n", 3)
	line["a"].signal(syscall.SIGTERM).ends(0)
	line["b"].prints("up")
	w.start("resume", "n", "--dry-run").ends(0).prints("n: b leads on; 1 other waits, and may take over by priority")
	w.start("resume", "n").ends(0)
	line["b"].ends(exitResigned).complains("priority 5")
	w.killAll()
}

func TestWhoIgnoresPausesLeads(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	w.start("pause", "--all", "--no-elections", "--reason", "drill").ends(0)
	w.start("run", "n", "true").tells("NOT LEADING: everything is paused")
	w.start("run", "--ignore-pauses", "n", "echo", "led").ends(0).says("led\n")
	w.start("run", "--wait", "1s", "n", "true").ends(exitNotAcquired)
	w.killAll()
}

func TestWhatCannotBePausedIsSaidInOneLine(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"pause", "n"}, "give --reason"},
		{[]string{"pause", "n", "--reason", strings.Repeat("x", 201)}, "--reason has 201 bytes, more than 200"},
		{[]string{"pause", "n", "--reason", "x", "--for", "0s"}, `--for "0s": give a duration, such as 30m`},
		{[]string{"pause", "n", "--reason", "x", "--for", "ever"}, "give a duration, such as 30m, or forever"},
		{[]string{"pause", "n", "--all", "--reason", "x"}, "not two of them"},
		{[]string{"pause", "--reason", "x"}, "give a NAME, a PREFIX/ or --all"},
		{[]string{"pause", "--no-elections", "--for", "3h"}, "give a NAME, a PREFIX/ or --all"},
		{[]string{"pause", "billing...", "--reason", "x"}, "use PREFIX/"},
		{[]string{"pause", "", "--reason", "x"}, "the NAME is empty: use --all"},
		{[]string{"pause", "postgres/main", "--reason", "x"}, "use 'primacy postgres pause'"},
		{[]string{"resume"}, "give a NAME, a PREFIX/ or --all"},
	} {
		w.start(c.args...).ends(exitUsage).inOneLine().complains(c.want)
	}
}

// TestCronWaitsForTheEndOfAPause: no run begins, what is due is recorded as paused, and afterwards
// the job's rule for missed times decides.
func TestCronWaitsForTheEndOfAPause(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	w.start("pause", "cron/", "--reason", "the database moves").ends(0)
	job := w.start("cron", "tick", "@every 1s", "--", "echo", "ran").
		tells("tick: paused: everything below cron/ is paused by")
	w.eventually("a time is recorded as paused", func() bool {
		return strings.Contains(w.start("cron", "history", "tick").ends(0).out.String(), "paused")
	})
	w.eventually("status has it", func() bool {
		return strings.Contains(w.start("cron", "status").ends(0).out.String(), "held by a pause")
	})
	if out := job.out.String(); out != "" {
		t.Errorf("it ran: %q", out)
	}
	w.start("cron", "run", "tick").ends(0) // an operator asks for it
	job.prints("ran")
	if n := strings.Count(job.out.String(), "ran"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
	w.start("resume", "cron/", "--dry-run").ends(0).prints("cron/tick: its rule for missed times decides about ")
	w.start("resume", "cron/").ends(0)
	w.eventually("it runs again", func() bool { return strings.Count(job.out.String(), "ran") > 2 })
	job.signal(syscall.SIGTERM).ends(0)
}
