//go:build linux

package pgtorture

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// fault is one kind of harm. do returns when the harm is done and over; what it killed is started
// again by the harness.
type fault struct {
	name string
	do   func(r *round) (detail string, err error)
}

// round is one fault and the cluster that it meets, which was well before.
type round struct {
	*cluster
	rng      *rand.Rand
	primary  *machine
	standbys []*machine
	began    time.Duration // on the boot clock: when the fault came
	first    int           // of the rows that were acknowledged since
}

func (r *round) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(r.rng.Int64N(int64(max(0, hi-lo))+1))
}

// longer is longer than any right lives.
func (r *round) longer() time.Duration { return r.ttl + r.more }

// aWhile waits, half of the times longer than any right lives.
func (r *round) aWhile() {
	if r.rng.IntN(2) == 0 {
		time.Sleep(r.between(500*time.Millisecond, r.ttl))
		return
	}
	time.Sleep(r.between(r.ttl, r.longer()))
}

// untilTaken waits until another machine has acknowledged, and a moment more, so that what comes
// back meets a successor. It waits no longer than any right lives.
func (r *round) untilTaken() { r.untilTakenWithin(r.longer()) }

func (r *round) untilTakenWithin(limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if r.taken() {
			time.Sleep(r.between(0, 1500*time.Millisecond))
			return
		}
	}
}

// taken says whether another machine than the primary has acknowledged a row since the fault.
func (r *round) taken() bool {
	all := r.acks.since(r.first)
	for _, a := range slices.Backward(all[max(0, len(all)-50):]) {
		if a.node != r.primary.name && a.call > r.began {
			return true
		}
	}
	return false
}

func (r *round) standby() *machine { return r.standbys[r.rng.IntN(len(r.standbys))] }

func processFaults() []fault {
	all := []fault{
		{"primary's machine killed", func(r *round) (string, error) { return r.outage(r.primary, r.untilTaken) }},
		{"primary's machine off for a moment", func(r *round) (string, error) {
			return r.outage(r.primary, func() { time.Sleep(r.between(0, r.ttl)) })
		}},
		{"standby's machine killed", func(r *round) (string, error) { return r.outage(r.standby(), r.aWhile) }},
		{"primary's machine frozen", func(r *round) (string, error) {
			return r.frozenMachine(r.primary, r.untilTaken)
		}},
		{"standby's machine frozen", func(r *round) (string, error) {
			return r.frozenMachine(r.standby(), r.aWhile)
		}},
		{"agent killed", killed(agent)},
		{"agent killed, not started again", func(r *round) (string, error) {
			err := r.primary.kill(agent)
			r.untilTaken()
			return r.primary.name, err
		}},
		{"guardian killed", killed(guardian)},
		{"postmaster killed", killed(postmaster)},
		{"agent, guardian and postmaster killed", killed(agent, guardian, postmaster)},
		{"agent frozen", frozen(agent)},
		{"guardian frozen", func(r *round) (string, error) {
			return r.primary.name, r.hold(r.primary, guardian, r.aWhile)
		}},
		{"postmaster frozen", func(r *round) (string, error) {
			return r.primary.name, r.hold(r.primary, postmaster, r.aWhile)
		}},
		{"agent and guardian hit", pair(agent, guardian)},
		{"agent and postmaster hit", pair(agent, postmaster)},
		{"guardian and postmaster hit", pair(guardian, postmaster)},
		{"backend killed", killBackend},
		{"walreceiver killed", func(r *round) (string, error) { return "", r.standby().kill("walreceiver") }},
		{"walsender frozen", freezeWalsender},
		{"SSN changed under a frozen walsender", changeUnderFrozenWalsender},
		{"startup process of a standby frozen", func(r *round) (string, error) {
			m := r.standby()
			return m.name, r.hold(m, "startup", r.aWhile)
		}},
		{"startup process frozen during the seal", startupDuringSeal},
		{"the only other voter must rewind", onlyVoterMustRewind},
		{"standby's agent killed", func(r *round) (string, error) { return "", r.standby().kill(agent) }},
		{"standby's agent frozen", func(r *round) (string, error) {
			m := r.standby()
			return m.name, r.hold(m, agent, r.aWhile)
		}},
		{"agent ended by SIGTERM", func(r *round) (string, error) { return "", r.primary.terminate(30 * time.Second) }},
		{"standby's agent ended by SIGTERM", func(r *round) (string, error) {
			return "", r.standby().terminate(30 * time.Second)
		}},
		{"standby's directory wiped", wipe},
		{"standby promoted by hand", promoteByHand},
		{"whole cluster off and on", offAndOn},
	}
	return append(all, storeFaults()...)
}

// storeFaults are those of etcd, and switchovers, which go through it.
func storeFaults() []fault {
	return []fault{
		{"etcd's leader killed", func(r *round) (string, error) { return r.etcdLeader(false) }},
		{"etcd's leader frozen", func(r *round) (string, error) { return r.etcdLeader(true) }},
		{"all of etcd frozen", freezeEtcd},
		{"the store wiped", wipeStore},
		{"the store wiped, an empty disk first back", wipeStoreEmptyFirst},
		{"switchover", func(r *round) (string, error) { return r.switchover(nil) }},
		{"switchover, source killed in it", func(r *round) (string, error) {
			return r.switchover(func(*machine) error { return r.primary.off() })
		}},
		{"switchover, source's agent killed in it", func(r *round) (string, error) {
			return r.switchover(func(*machine) error { return r.primary.kill(agent) })
		}},
		{"switchover, the next primary killed in it", func(r *round) (string, error) {
			return r.switchover((*machine).off)
		}},
		{"switchover, the next primary's agent killed in it", func(r *round) (string, error) {
			return r.switchover(func(next *machine) error { return next.kill(agent) })
		}},
		{"switchover, etcd's leader killed in it", func(r *round) (string, error) {
			return r.switchover(func(*machine) error { _, err := r.etcdLeader(false); return err })
		}},
	}
}

// outage is a machine that loses power, and gets it back after some time.
func (r *round) outage(m *machine, meanwhile func()) (string, error) {
	if err := m.off(); err != nil {
		return "", err
	}
	meanwhile()
	off := boottime.Now() - r.began
	return fmt.Sprintf("%s, off for %v", m.name, off.Round(time.Millisecond)), m.on()
}

func (r *round) frozenMachine(m *machine, meanwhile func()) (string, error) {
	if err := m.freezeAll(); err != nil {
		return "", err
	}
	meanwhile()
	m.thaw()
	return m.name, nil
}

// killed kills processes of the primary's machine.
func killed(roles ...string) func(*round) (string, error) {
	return func(r *round) (string, error) {
		err := r.primary.kill(roles...)
		time.Sleep(r.between(0, time.Second)) // until the agent is started again
		return r.primary.name, err
	}
}

func frozen(role string) func(*round) (string, error) {
	return func(r *round) (string, error) { return r.primary.name, r.hold(r.primary, role, r.untilTaken) }
}

// hold freezes the processes of a role for a while.
func (r *round) hold(m *machine, role string, meanwhile func()) error {
	if err := m.freeze(m.roles(role)...); err != nil {
		return err
	}
	meanwhile()
	m.thaw()
	return nil
}

// pair kills or freezes each of two, in either order, the second a moment later.
func pair(one, other string) func(*round) (string, error) {
	return func(r *round) (string, error) {
		roles := []string{one, other}
		r.rng.Shuffle(2, func(i, j int) { roles[i], roles[j] = roles[j], roles[i] })
		found := [][]proc{r.primary.roles(roles[0]), r.primary.roles(roles[1])}
		var said []string
		freezes := false
		for i, role := range roles {
			if len(found[i]) == 0 {
				return "", errMissed
			}
			var err error
			if r.rng.IntN(2) == 0 {
				said = append(said, role+" killed")
				if err = r.primary.kill(role); i == 1 && errors.Is(err, errMissed) {
					err = nil // it has ended by the first
				}
			} else {
				said, freezes = append(said, role+" frozen"), true
				if err = r.primary.freeze(found[i]...); i == 1 && errors.Is(err, errMissed) {
					err = nil
				}
			}
			if err != nil {
				return "", err
			}
			if i == 0 {
				time.Sleep(r.between(0, 20*time.Millisecond))
			}
		}
		if freezes {
			r.untilTaken()
			r.primary.thaw()
		}
		return r.primary.name + ": " + strings.Join(said, ", "), nil
	}
}

func killBackend(r *round) (string, error) {
	all := r.primary.backends()
	if len(all) == 0 {
		return "", errMissed
	}
	p := all[r.rng.IntN(len(all))]
	return r.primary.name, syscall.Kill(p.pid, syscall.SIGKILL)
}

func freezeWalsender(r *round) (string, error) {
	all := r.primary.roles("walsender")
	if len(all) == 0 {
		return "", errMissed
	}
	p := all[r.rng.IntN(len(all))]
	if err := r.primary.freeze(p); err != nil {
		return "", err
	}
	r.aWhile()
	r.primary.thaw()
	return p.command, nil
}

// startupDuringSeal freezes what has to end the walreceiver when a standby is sealed, and the whole
// primary, which comes back while that standby still listens to it.
func startupDuringSeal(r *round) (string, error) {
	m := r.standby()
	if err := m.freeze(m.roles("startup")...); err != nil {
		return "", err
	}
	if err := r.primary.freezeAll(); err != nil {
		return "", err
	}
	time.Sleep(r.ttl + r.between(0, 2*time.Second))
	r.primary.thaw()
	time.Sleep(r.between(0, 2*time.Second))
	m.thaw()
	return m.name, nil
}

// changeUnderFrozenWalsender has the voters change while one of the primary's walsenders cannot
// take the change in, and then takes the primary away: which standby that walsender's commits wait
// for is what it has loaded, not what the file says.
func changeUnderFrozenWalsender(r *round) (string, error) {
	r.rng.Shuffle(2, func(i, j int) { r.standbys[i], r.standbys[j] = r.standbys[j], r.standbys[i] })
	stays, goes := r.standbys[0], r.standbys[1]
	all := slices.DeleteFunc(r.primary.roles("walsender"), func(p proc) bool {
		return !strings.Contains(p.command, " "+stays.host+"(")
	})
	if err := r.primary.freeze(all...); err != nil {
		return "", err
	}
	if err := goes.off(); err != nil {
		return "", err
	}
	time.Sleep(r.between(time.Second, 5*time.Second)) // after 3 s it is to be no voter any more
	detail := goes.name + " off, walsender to " + stays.name + " frozen, "
	if r.rng.IntN(2) == 0 {
		r.primary.thaw()
		time.Sleep(r.between(0, 300*time.Millisecond))
		detail += "thawed, "
	}
	if r.rng.IntN(2) == 0 {
		err := errors.Join(r.primary.off(), goes.on())
		r.untilTaken()
		return detail + r.primary.name + " off", err
	}
	err := errors.Join(r.primary.freezeAll(), goes.on())
	r.untilTaken()
	r.primary.thaw()
	return detail + r.primary.name + " frozen", err
}

// onlyVoterMustRewind has a standby promoted that is alone with the former primary, which has WAL
// that nobody else has: commits wait until that is rewound, and whatever the rewind needs must not
// wait for a commit.
func onlyVoterMustRewind(r *round) (string, error) {
	r.rng.Shuffle(2, func(i, j int) { r.standbys[i], r.standbys[j] = r.standbys[j], r.standbys[i] })
	next, goes := r.standbys[0], r.standbys[1]
	if err := goes.off(); err != nil {
		return "", err
	}
	time.Sleep(r.between(5*time.Second, 6*time.Second)) // the next is the only voter
	if err := next.freeze(next.roles("walreceiver")...); err != nil {
		return "", err
	}
	time.Sleep(r.between(50*time.Millisecond, 500*time.Millisecond)) // what is written now waits
	if err := r.primary.off(); err != nil {
		return "", err
	}
	next.thaw()
	time.Sleep(r.between(0, r.ttl+2*time.Second))
	if err := r.primary.on(); err != nil {
		return "", err
	}
	if p, err := r.written(); err != nil {
		return "", fmt.Errorf("with %s and %s, and without %s: %w", r.primary.name, next.name, goes.name, err)
	} else if p == r.primary.name {
		return "nobody was promoted: " + p + " goes on", goes.on()
	}
	return next.name + ", then " + r.primary.name, goes.on()
}

// written returns who acknowledges rows that are sent from now on, once somebody does.
func (r *round) written() (string, error) {
	from := boottime.Now()
	for end := time.Now().Add(settleWithin); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		r.restart()
		all := r.acks.since(max(r.first, r.acks.len()-20))
		if len(all) > 0 && all[len(all)-1].call > from {
			return all[len(all)-1].node, nil
		}
	}
	return "", fmt.Errorf("no row was acknowledged within %v", settleWithin)
}

// wipe empties a standby's disk, or its data directory alone.
func wipe(r *round) (string, error) {
	m := r.standby()
	if err := m.kill(agent); err != nil {
		return "", err
	}
	if err := m.clear(); err != nil {
		return "", err
	}
	gone := []string{m.data()}
	detail := m.name + ", its data"
	if r.rng.IntN(2) == 0 {
		detail = m.name + ", its whole disk"
		gone, _ = filepath.Glob(m.data() + "*")
	}
	for _, path := range gone {
		if err := os.RemoveAll(path); err != nil {
			return "", err
		}
	}
	return detail, m.start()
}

func promoteByHand(r *round) (string, error) {
	m := r.standby()
	_, err := r.ask(m, "SELECT pg_promote(false)")
	err = errors.Join(err, r.tells("promoted by hand|copying data"))
	time.Sleep(r.between(0, 2*time.Second))
	return m.name, err
}

// offAndOn ends all machines at once, and starts them one by one.
func offAndOn(r *round) (string, error) {
	failed := make(chan error)
	for _, m := range r.machines {
		go func() { failed <- m.off() }()
	}
	var err error
	for range r.machines {
		err = errors.Join(err, <-failed)
	}
	var order []string
	for _, i := range r.rng.Perm(members) {
		err = errors.Join(err, r.machines[i].on())
		order = append(order, r.machines[i].name)
		time.Sleep(r.between(0, 2*time.Second))
	}
	return strings.Join(order, ", "), err
}

func (r *round) etcdLeader(freeze bool) (string, error) {
	leader := r.etcd.Leader()
	if leader == nil {
		return "", errMissed
	}
	m := r.machines[0]
	for _, x := range r.machines {
		if x.etcd == leader {
			m = x
		}
	}
	detail := "on " + m.name
	if m == r.primary {
		detail += ", the primary"
	}
	if freeze {
		leader.Stop()
		r.aWhile()
		leader.Cont()
		return detail, nil
	}
	leader.Kill()
	time.Sleep(r.between(0, 3*time.Second))
	return detail, m.on()
}

func freezeEtcd(r *round) (string, error) {
	for _, s := range r.etcd.Members {
		s.Stop()
	}
	d := r.between(500*time.Millisecond, r.longer())
	time.Sleep(d)
	for _, s := range r.etcd.Members {
		s.Cont()
	}
	return fmt.Sprintf("for %v", d.Round(time.Millisecond)), nil
}

// switchover asks the primary to hand over, and does harm in the middle.
func (r *round) switchover(harm func(next *machine) error) (string, error) {
	next, err := r.keeper.next(r)
	if err != nil {
		return "", err
	}
	type answer struct {
		text string
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		text, err := r.keeper.switchover(r, next)
		done <- answer{text, err}
	}()
	if harm == nil {
		a := <-done
		if a.err != nil {
			return "", fmt.Errorf("switchover to %s: %w: %s", next.name, a.err, a.text)
		}
		return r.primary.name + " to " + next.name, nil
	}
	after := r.between(0, 500*time.Millisecond) // the request itself takes a part of it
	time.Sleep(after)
	err = harm(next)
	<-done // it may have failed
	return fmt.Sprintf("%s to %s, %v after the request", r.primary.name, next.name, after.Round(time.Millisecond)), err
}
