//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// cheat makes candidates of the torture that, once they have led, act on for ever. Only the test
// binary knows it.
const cheat = "TEST_CHEAT"

func init() {
	if os.Getenv(cheat) != "" {
		leads = func(context.Context, *primacy.Term) error { return nil }
		outlives = primacy.OverrunWait
	}
}

// ownServer returns a world on an etcd of its own, whose leases are nobody else's.
func ownServer(t *testing.T, o etcdtest.Options) *world {
	t.Parallel()
	shared.start(t) // also the folder with the program
	return newWorldOn(t, etcdtest.Start(t, o))
}

// leavesNothing checks that no key and no lease is left in the server.
func (w *world) leavesNothing() {
	w.Helper()
	w.leavesNoKey()
	if n := w.leases(); n > 0 {
		w.Errorf("%d leases are left", n)
	}
}

func (w *world) leavesNoKey() {
	w.Helper()
	if left := w.keys("\x00"); len(left) > 0 {
		w.Errorf("%d keys are left, such as %q", len(left), left[0].Key)
	}
}

// leavesNoKeyAndSoonNoLease is for processes that were killed: one that was just asking for a lease
// may leave it, without a key, for its ttl.
func (w *world) leavesNoKeyAndSoonNoLease() {
	w.Helper()
	w.leavesNoKey()
	w.eventually("no lease is left", func() bool { return w.leases() == 0 })
}

func (w *world) leases() int {
	w.Helper()
	var out struct {
		Leases []struct {
			ID string `json:"ID"`
		} `json:"leases"`
	}
	w.post("/v3/lease/leases", struct{}{}, &out)
	return len(out.Leases)
}

func TestDoctor(t *testing.T) {
	w := ownServer(t, etcdtest.Options{}).with("PRIMACY_TTL=2m") // see TestDoctorOfTheEmbeddedStore
	w.start("doctor", "--clock-window", "3s", "--name", "billing").ends(0).says("etcd "+etcdtest.Newest,
		"ok       member "+w.server.Addr(),
		"ok       boot clock", "ok       permissions", `election "billing": nobody leads`, "renewal: p50",
		"clock rate: the store's clock runs at",
		"left behind: nothing", "This store can promise:", "It cannot promise:", "checks: failed 0, warnings ")
	w.leavesNothing()
	p := w.start("doctor", "--clock-window", "3s", "-o", "json").ends(0)
	rep := decode[doctor.Report](w, p.out.String())
	for _, c := range rep.Checks {
		if c.Topic == "clock rate" && (c.Figures["rate_low"] > 1 || c.Figures["rate_high"] < 1) {
			t.Errorf("one machine, one clock, but %+v", c)
		}
		if c.Level == driver.Failed {
			t.Errorf("%+v", c)
		}
	}
	w.leavesNothing()
}

// The embedded store's doctor, and what it says where somebody entered a claim by hand.
func TestDoctorOfTheEmbeddedStore(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	w := plainWorld(t).with("PRIMACY_TTL=2m") // with a short one a store as slow as a busy machine's fails
	w.start("doctor", "--clock-window", "3s").ends(0).says("etcd.sock: etcd", "left behind: nothing")
	e := newWorld2(w).with("PRIMACY_TTL=2m")
	e.put("billing/hand", []byte("x"), "0")
	e.start("doctor", "--clock-window", "3s", "--name", "billing").ends(0).says("warning  election \"billing\"",
		"has no lease")
	e.start("doctor", "--clock-window", "3s", "--name", "billing", "--strict").ends(exitNo)
	e.delete("billing/hand")
}

// newWorld2 is w on the shared server.
func newWorld2(w *world) *world {
	e := newWorldOn(w.T, shared.server)
	return e
}

func TestDoctorInterruptedLeavesNothing(t *testing.T) {
	w := ownServer(t, etcdtest.Options{})
	for _, at := range []string{"transport", "permissions", "news of a change"} {
		p := w.start("doctor", "--clock-window", "1m").prints(at)
		p.signal(syscall.SIGINT).ends(130).complains("interrupted")
		w.leavesNothing()
	}
	// Killed, what it had goes with its leases.
	p := w.start("doctor", "--clock-window", "1m").prints("permissions")
	p.signal(syscall.SIGKILL).ends(128 + 9)
	w.eventually("no key is left", func() bool { return len(w.keys("\x00")) == 0 })
}

func TestDoctorOfAStoreThatIsNotThere(t *testing.T) {
	w := newWorld(t)
	hole := newHole(w)
	for _, more := range [][]string{nil, {"--torture", "1m"}} {
		p := w.start(append([]string{"doctor", "--store", "etcd://127.0.0.1:1", "--timeout", "2s"}, more...)...)
		p.ends(exitUnreachable).inOneLine().complains("127.0.0.1:1", "refused")
		p = w.start(append([]string{"doctor", "--store", "etcd://" + hole.Addr(), "--timeout", "1500ms"}, more...)...)
		p.ends(exitUnreachable).inOneLine().complains(hole.Addr(), "1.5s")
		if p.took > prompt {
			t.Errorf("%v took %v, want 1.5 s", p, p.took)
		}
	}
}

// A store that falls silent in the middle is told as such, in time.
func TestDoctorOfAStoreThatFallsSilent(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	proxy := etcdtest.NewProxy(t, w.server.Addr())
	p := w.start("doctor", "--store", "etcd://"+proxy.Addr()+"/"+w.prefix, "--timeout", "2s", "--clock-window",
		"10s").prints("permissions")
	proxy.Hold()
	p.ends(exitNo).says("failed ")
	if p.took > limit {
		t.Errorf("took %v", p.took)
	}
}

func TestDoctorOfAStoreThatRefusesUs(t *testing.T) {
	onlyInVerify(t)
	w := ownServer(t, etcdtest.Options{Args: cheapLogins})
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	w.post("/v3/auth/role/add", map[string]any{"name": "elsewhere"}, nil)
	w.post("/v3/auth/role/grant", map[string]any{"name": "elsewhere",
		"perm": map[string]any{"permType": "READWRITE", "key": b64("x/"), "range_end": b64("x0")}}, nil)
	for _, user := range []string{"root", "stranger"} {
		w.post("/v3/auth/user/add", map[string]any{"name": user, "password": "SWORDFISH"}, nil)
	}
	w.post("/v3/auth/role/add", map[string]any{"name": "root"}, nil)
	w.post("/v3/auth/user/grant", map[string]any{"user": "root", "role": "root"}, nil)
	w.post("/v3/auth/user/grant", map[string]any{"user": "stranger", "role": "elsewhere"}, nil)
	w.post("/v3/auth/enable", struct{}{}, nil)

	at := "@" + w.server.Addr()
	w.start("doctor", "--store",
		"etcd://root:wrong"+at).ends(exitUnreachable).inOneLine().complains("invalid user ID or password")
	p := w.start("doctor", "--store", "etcd://stranger:SWORDFISH"+at, "--clock-window", "3s", "--ttl", "2m").
		ends(exitNo).says("failed   permissions", "etcdctl role grant-permission ROLE --prefix=true readwrite primacy/")
	q := w.start("doctor", "--store", "etcd://stranger:SWORDFISH"+at, "--torture",
		"10s").ends(exitUnreachable).complains("cannot campaign", "permission denied")
	for _, out := range []string{p.out.String(), p.err.String(), q.out.String(), q.err.String()} {
		if strings.Contains(out, "SWORDFISH") {
			t.Errorf("the password is in %q", out)
		}
	}
	w.start("doctor", "--store", "etcd://root:SWORDFISH"+at, "--clock-window", "3s", "--ttl",
		"2m").ends(0).says("etcd asks for a user")
}

func TestDoctorOptionsThatCannotWork(t *testing.T) {
	w := newWorld(t).with("PRIMACY_STORE=etcd://127.0.0.1:1")
	for want, args := range map[string][]string{
		"--torture 1s: use 5s at least":       {"--torture", "1s"},
		"--candidates 1: use 2 to 32":         {"--torture", "1m", "--candidates", "1"},
		"--clock-window 1s: use 3s to 4m":     {"--clock-window", "1s"},
		"need --torture":                      {"--seed", "7"},
		"the name is empty":                   {"--name", ""},
		`unknown command "x"`:                 {"x"},
		`invalid argument "soon"`:             {"--torture", "soon"},
		"is for `primacy doctor --torture`":   {"candidate"},
		"--timeout 0s: use a positive":        {"--timeout", "0"},
		"--ttl -1s: use a positive":           {"--torture", "9s", "--ttl", "-1s"},
		`--output "xml": use table`:           {"-o", "xml"},
		`invalid argument "x" for "--seed"`:   {"--torture", "9s", "--seed", "x"},
		`unknown flag: --tortur`:              {"--tortur", "9s"},
		`invalid argument "" for "--torture"`: {"--torture", ""},
	} {
		w.start(append([]string{"doctor"}, args...)...).ends(exitUsage).inOneLine().complains(want)
	}
	w.with("PRIMACY_STORE=" + w.store) // what only the store can say
	newWorld2(w).start("doctor", "--torture", "9s", "--ttl", "100ms").ends(exitUsage).complains("--ttl 100ms: etcd")
}

// The promise, proved on a real cluster through links that fail.
func TestTorture(t *testing.T) {
	t.Parallel()
	shared.start(t)
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	w := newWorldOn(t, cluster.Members[0])
	var hosts []string
	for _, m := range cluster.Members {
		hosts = append(hosts, m.Addr())
	}
	p := w.start("doctor", "--store", "etcd://"+strings.Join(hosts, ","), "--torture", "15s", "--seed", "3", "-o",
		"json").ends(0)
	v := decode[doctor.Verdict](w, p.out.String())
	if v.Outcome != doctor.Held || v.Terms < 3 || len(v.Faults) < 4 || v.Acked < 10 || v.Acts < 100 || !v.Recovered ||
		len(v.Left) > 0 || v.Seed != 3 {
		t.Errorf("%+v", v)
	}
	if len(v.Without) != 0 || v.Why != "" {
		t.Errorf("left out %q, since %q", v.Without, v.Why)
	}
	w.leavesNoKeyAndSoonNoLease()
}

// The judge bites: candidates that act on after their term are found out, whatever ended it.
func TestTortureFindsACheat(t *testing.T) {
	w := ownServer(t, etcdtest.Options{})
	// This seed begins with leaders that are frozen, or cut off, past the ttl.
	p := w.with(cheat+"=1").start("doctor", "--torture", "12s", "--ttl", "2s", "--seed", "527", "--candidates",
		"3").ends(exitNo)
	p.says("DISPROVED", "two leaders at once for", "led \"primacy-doctor/")
	w.leavesNoKeyAndSoonNoLease()
}

func TestTortureOfTheEmbeddedStore(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	w := plainWorld(t)
	w.start("doctor", "--torture", "10s", "--ttl", "2s", "--seed", "1", "--candidates", "2").ends(0).
		says("The promise held", "Left out, since the store is reached without a network", "lost 0")
}

// The path of the store's socket may be too long for the kernel. Its short name is good in the
// process that hosts it, and nowhere else.
func TestCandidatesFindAnEmbeddedStoreWhosePathIsLong(t *testing.T) {
	t.Parallel()
	w := plainWorld(t)
	dir := filepath.Join(w.dir, strings.Repeat("l", 120))
	p := w.start("doctor", "--store", "embedded:"+dir, "--torture", "5s", "--ttl", "2s", "--candidates", "2", "-o",
		"json")
	if code := p.wait(); code != 0 && code != exitNotAcquired { // too little may happen on a busy machine
		t.Errorf("exit %d, %q", code, p.err.String())
	}
	if v := decode[doctor.Verdict](w, p.out.String()); v.Acts == 0 {
		t.Errorf("nobody led: %+v", v)
	}
}

func TestTortureOverTLS(t *testing.T) {
	onlyInVerify(t)
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	w := ownServer(t, etcdtest.Options{TLS: cert})
	p := w.start("--timeout", "5s", "--store", "etcds://"+w.server.Addr()+"?ca="+certOf(w, w.server), "doctor",
		"--torture", "6s", "--ttl", "2s", "-o", "json")
	if code := p.wait(); code != 0 && code != exitNotAcquired {
		t.Errorf("exit %d, %q", code, p.err.String())
	}
	if v := decode[doctor.Verdict](w, p.out.String()); v.Acts < 100 || len(v.Without) != 1 ||
		v.Why != "there is one server" {
		t.Errorf("through links with TLS: %+v", v)
	}
	w.leavesNoKeyAndSoonNoLease()
}

func TestTortureInterrupted(t *testing.T) {
	onlyInVerify(t)
	w := ownServer(t, etcdtest.Options{})
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := w.start("doctor", "--torture", "1h", "--ttl", "2s").tells("s: ")
		p.signal(sig).ends(130).says("duration", "two leaders at once  0").complains("interrupted")
		w.leavesNoKeyAndSoonNoLease()
	}
	// Killed: its candidates go with it, and their leases run out.
	p := w.start("doctor", "--torture", "1h", "--ttl", "2s").tells("s: ")
	p.signal(syscall.SIGKILL).ends(128 + 9)
	w.eventually("its candidates are gone", func() bool { return len(w.processes()) == 0 })
	w.eventually("no key and no lease is left", func() bool { return len(w.keys("\x00")) == 0 && w.leases() == 0 })
	if left, _ := filepath.Glob(filepath.Join(w.dir, "*")); len(left) > 0 {
		t.Errorf("left in its folder: %q", left)
	}
}

// On a terminal of 80 columns no line wraps, one line tells the progress, and it is gone at the
// end.
func TestDoctorOnATerminal(t *testing.T) {
	onlyInVerify(t)
	m := newTmux(newWorld(t))
	m.do("resize-window", "-x", "80", "-y", "50")
	m.clears()
	m.types("primacy doctor --clock-window 3s --ttl 2m", "Enter")
	if code := m.status(); code != 0 {
		t.Errorf("exit %d", code)
	}
	m.shows("checks: failed 0, warnings")
	m.clears()
	m.types("primacy doctor --torture 6s --ttl 2s --seed 1", "Enter")
	m.shows(" of 6s  terms ")
	if code := m.status(); code != 0 && code != exitNotAcquired {
		t.Errorf("exit %d", code)
	}
	if s := m.screen(); strings.Contains(s, " of 6s  terms ") || !strings.Contains(s, "two leaders at once  0") {
		t.Errorf("the screen at the end:\n%s", s)
	}
}
