//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/shards"
)

// beside is a shard's command that holds a lock of the kernel while it runs: two at once show,
// whatever clocks say. It writes down who runs, under which token. Where there is a file called
// stubborn, every other command ignores SIGTERM.
const beside = `exec 9>"lock-$PRIMACY_SHARD"; flock -n 9 || echo "$PRIMACY_SHARD $PRIMACY_ID" >>twice
echo "$PRIMACY_SHARD $PRIMACY_TOKEN $PRIMACY_ID" >>ran
if [ -e stubborn ] && [ $((PRIMACY_SHARD % 2)) = 1 ]; then trap '' TERM; else trap 'exit 0' TERM; fi
sleep 100000 9>&- & wait`

// member starts a member of the group n of 6 shards.
func (w *world) member(id string, more ...string) *prog {
	w.Helper()
	args := append([]string{"run", "--id", id, "--shards", "6"}, more...)
	return w.start(append(args, "n", "--", "sh", "-c", beside)...)
}

// group reads the group n.
func (w *world) group() (st shards.Status, ok bool) {
	w.Helper()
	p := w.start("shards", "n", "-o", "json")
	if p.wait() != 0 {
		return st, false
	}
	return decode[shards.Status](w, p.out.String()), true
}

// spread waits until each shard has an owner, and the members have so many.
func (w *world) spread(want string) shards.Status {
	w.Helper()
	var st shards.Status
	w.eventually("the shards are spread as "+want, func() bool {
		var ok bool
		if st, ok = w.group(); !ok || len(st.Unowned()) > 0 || len(st.Moves) > 0 {
			return false
		}
		var have []string
		for _, m := range st.Members {
			if m.Owns > 0 {
				have = append(have, fmt.Sprintf("%s:%d", m.ID, m.Owns))
			}
		}
		slices.Sort(have)
		return strings.Join(have, " ") == want
	})
	return st
}

// never checks that no two commands of a shard ran at once, and that the tokens of each grew.
func (w *world) never() {
	w.Helper()
	if text, err := os.ReadFile(filepath.Join(w.dir, "twice")); err == nil {
		w.Errorf("two commands of a shard at once:\n%s", text)
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "ran"))
	if err != nil {
		w.Fatal(err)
	}
	last := map[string]uint64{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		f := strings.Fields(line)
		token, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil || token <= last[f[0]] {
			w.Errorf("shard %s began under token %s after %d: %v", f[0], f[1], last[f[0]], err)
		}
		last[f[0]] = token
	}
}

func TestShardsJoinAndLeave(t *testing.T) {
	w := newWorld(t)
	a := w.member("a").tells("a joins n, 6 shards")
	w.spread("a:6")
	b := w.member("b", "--prefix", "--weight", "2")
	st := w.spread("a:2 b:4")
	if st.Assigner != "a" || len(st.Shards) != 6 {
		t.Errorf("%+v", st)
	}
	w.start("shards", "n").ends(0).says("MEMBER", "6 of 6 shards have an owner; the assigner is a")
	a.signal(syscall.SIGTERM).ends(0).complains("leaving n: others take its shards")
	w.spread("b:6") // a third that joined would wait until what has moved has rested, for a minute
	b.signal(syscall.SIGTERM).ends(0)
	var last shown.Term // that of the only member, which nobody takes over from
	out := w.start("history", "n/0001", "--limit", "1", "-o", "ndjson").ends(0).out.String()
	if last = decode[shown.Term](w, out); last.Reason != primacy.Resigned || last.ID != "b" {
		t.Errorf("the last term of a shard that b had: %+v", last)
	}
	w.never()
	w.killAll()
}

// TestShardsOfAProcessThatIsKilled: nothing acts beside the next owners. Some commands end at once
// and others do not, and all are under one lease: no guardian may end that for the others.
func TestShardsOfAProcessThatIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t).with("PRIMACY_TTL=15s")
	w.touch("stubborn")
	a := w.member("a")
	w.spread("a:6")
	w.member("b")
	w.spread("a:3 b:3")
	a.signal(syscall.SIGKILL)
	w.spread("b:6")
	w.never()
	w.remove("stubborn")
	w.killAll()
}

// TestShardsOfAProcessThatIsKilledWhileAHookRuns: the hook of one shard ends at once, the commands
// of others do not, and all are under one lease.
func TestShardsOfAProcessThatIsKilledWhileAHookRuns(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t).with("PRIMACY_TTL=60s")
	w.touch("stubborn")
	a := w.member("a", "--hook-timeout", "50s", "--stop-timeout", "20s",
		"--on-elected", `if [ "$PRIMACY_NAME" = n/0002 ]; then echo $$ >hook; exec sleep 1000; fi`)
	w.spread("a:6")
	w.eventually("the hook runs beside five commands", func() bool {
		return w.read("hook") != "" && len(w.lines("ran")) == 5
	})
	pid, err := strconv.Atoi(strings.TrimSpace(w.read("hook")))
	if err != nil {
		t.Fatal(err)
	}
	w.start("pause", "n", "--reason", "no balance").ends(0)
	w.member("b").tells("b joins n, 6 shards")
	a.signal(syscall.SIGKILL)
	w.eventually("the hook is gone", func() bool { return ended(pid) })
	time.Sleep(3 * time.Second) // b would have the shards of a within one
	w.never()
	w.remove("stubborn")
	w.killAll()
}

// TestShardsOfAProcessThatIsFrozen: others take its shards when its lease is over. The kernel wakes
// it by then, so it may be back before they have all.
func TestShardsOfAProcessThatIsFrozen(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t).with("PRIMACY_TTL=15s")
	a := w.member("a")
	w.spread("a:6")
	w.member("b")
	w.spread("a:3 b:3")
	a.signal(syscall.SIGSTOP)
	w.eventually("its shards are lost", func() bool {
		st, ok := w.group()
		owns := slices.ContainsFunc(st.Members, func(m shards.Member) bool { return m.ID == "a" && m.Owns > 2 })
		return ok && !owns || strings.Contains(a.err.String(), "was not renewed in time")
	})
	w.never()
	a.signal(syscall.SIGCONT)
	w.spread("a:3 b:3")
	w.never()
	w.killAll()
}

// TestShardsOfAnUnhealthyProcess go to one that is healthy, and while moves are paused they stay.
func TestShardsOfAnUnhealthyProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	patient := []string{"--health-interval", "200ms", "--health-timeout", "20s"} // the machine may be busy
	w.member("a", append(patient, "--health", "[ ! -e sick-a ]")...)
	w.spread("a:6")
	w.member("b", append(patient, "--health", "true")...)
	w.spread("a:3 b:3")
	w.start("pause", "n", "--reason", "drill").ends(0)
	w.touch("sick-a")
	w.eventually("a is unhealthy", func() bool {
		st, _ := w.group()
		return slices.ContainsFunc(st.Members, func(m shards.Member) bool { return m.ID == "a" && !m.Ready })
	})
	time.Sleep(2 * time.Second) // it would move within half a second
	w.spread("a:3 b:3")
	w.start("resume", "n").ends(0)
	w.spread("b:6")
	w.never()
	w.killAll()
}

// TestNoShardsCommandBeginsWhileElectionsArePaused, and all do when that is over.
func TestNoShardsCommandBeginsWhileElectionsArePaused(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	w.start("pause", "n", "--no-elections", "--reason", "drill").ends(0)
	a := w.member("a").tells("OURS, AND NOT RUNNING: n/0005: n is paused by ")
	w.spread("a:6")
	if text, err := os.ReadFile(filepath.Join(w.dir, "ran")); err == nil {
		t.Errorf("commands began:\n%s", text)
	}
	w.start("pause", "n/0003", "--reason", "another").ends(0)
	w.start("shards", "n").ends(0).says("PAUSED: n is paused by ", "PAUSED: n/0003 is paused by ",
		"meanwhile no command of 'primacy run' begins in a paused shard")
	w.start("resume", "n", "--dry-run").ends(0).says("n: its shards may move for balance and health again; " +
		"a command of 'run --shards' that waits for the end begins")
	w.start("resume", "n").ends(0)
	w.eventually("all run", func() bool {
		text, _ := os.ReadFile(filepath.Join(w.dir, "ran"))
		return strings.Count(string(text), "\n") == 6
	})
	w.never()
	a.signal(syscall.SIGTERM).ends(0)
}

// TestAShardsCommandThatEndsGivesItsShardUp, and finds in its environment what it needs.
func TestAShardsCommandThatEndsGivesItsShardUp(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	p := w.start("run", "--id", "a", "--shards", "2", "--prefix", "--events", "events", "--on-elected", "echo hook",
		"n", "--", "sh", "-c", `echo "$PRIMACY_NAME $PRIMACY_SHARD of $PRIMACY_SHARDS $PRIMACY_ROLE"; `+
			`primacy leader "$PRIMACY_NAME" --valid && echo valid; exit 3`)
	p.prints("[n/0001] n/0001 1 of 2 leader\n").prints("[n/0000] n/0000 0 of 2 leader\n").prints("[n/0000] valid\n")
	w.eventually("it is started again, under a larger token", func() bool {
		return strings.Count(p.out.String(), "[n/0001] n/0001 1 of 2") > 1
	})
	w.eventually("the history tells why", func() bool {
		return strings.Contains(w.start("history", "n/0001").ends(0).out.String(), "the command ended with status 3")
	})
	text, err := os.ReadFile(filepath.Join(w.dir, "events"))
	if err != nil || !regexp.MustCompile(`"event":"exited","election":"n/0001"`).Match(text) {
		t.Errorf("events: %v\n%s", err, text)
	}
	p.signal(syscall.SIGTERM).ends(0)
	w.start("shards", "n").ends(exitNo).inOneLine().complains("no member runs")
}

func TestFlagsThatDoNotGoWithShards(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--shards", "2", "--standby", "x"}, "--standby does not go with --shards"},
		{[]string{"--shards", "2", "--priority", "1"}, "--priority does not go with --shards: shards are"},
		{[]string{"--shards", "2", "--wait", "1s"}, "--wait does not go with --shards"},
		{[]string{"--shards", "-1"}, "--shards -1: use 1 to 10000"},
		{[]string{"--shards", "2", "--weight", "0"}, "--weight 0: use 1 to 1000"},
		{[]string{"--weight", "2"}, "--weight is for --shards only"},
	} {
		args := append(append([]string{"run"}, c.args...), "n", "true")
		w.start(args...).ends(exitUsage).inOneLine().complains(c.want)
	}
	// The commands have a variable of the name that --shards would have.
	w.with("PRIMACY_SHARDS=7").start("run", "-q", "n", "echo", "one").ends(0).says("one\n")
	a := w.member("a")
	w.spread("a:6")
	w.start("run", "-q", "--shards", "7", "n", "true").ends(exitUsage).inOneLine().complains("it has 6")
	a.signal(syscall.SIGTERM).ends(0)
}
