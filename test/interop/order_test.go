//go:build linux

package interop

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// kinds is everybody who waits in the line, and tries who does not wait.
var (
	kinds = []kind{ctlLock, ctlElect, lockService, electionService, etcdMutex, etcdElection,
		dropInMutex, dropInElection, ourElection, ourMutex, ourRun, ourLock}
	tries = []kind{etcdTry, dropInTry, ourTry, ourTryRead}
)

// fate is how a turn ends.
type fate int

const (
	leaves     fate = iota // holds, and gives the line to the next
	givesUp                // told to stop waiting
	diesInLine             // killed while it waits
	dies                   // killed, or never heard of again, while it holds
)

func (f fate) String() string {
	return [...]string{"leaves", "gives up", "dies in the line", "dies as the holder"}[f]
}

// role is a turn and what is to become of it.
type role struct {
	*turn
	fate fate
	when int // fates in the line: while which turn holds
}

// TestOrder: everybody stands in the line in an order that is known, some give up, are killed or
// die, and each of the others gets the line exactly in its turn. INTEROP_SEED plays one seed,
// -short the first of three.
func TestOrder(t *testing.T) {
	t.Parallel()
	seeds := []uint64{1, 2, 3}
	if testing.Short() {
		seeds = seeds[:1]
	}
	if text := os.Getenv("INTEROP_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("INTEROP_SEED=%q: want a number", text)
		}
		seeds = []uint64{n}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.ttl = shortTTL
			roles := w.enterAll(rand.New(rand.NewPCG(seed, 0)))
			for i, r := range roles {
				t.Logf("%2d %s %s", i, r.id, r.fate)
			}
			w.drain(roles)
			w.close()
			w.empty(limit)
			var got, want []string
			for _, term := range w.judge() {
				got = append(got, term.Who)
			}
			for _, r := range roles {
				if r.fate == leaves || r.fate == dies {
					want = append(want, r.id)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the line was held by %v, want %v", got, want)
			}
		})
	}
}

// enterAll puts two of each kind in the line, in an order of chance, each when the one before it
// stands.
func (w *world) enterAll(rng *rand.Rand) []*role {
	w.Helper()
	cast := slices.Concat(kinds, kinds)
	rng.Shuffle(len(cast), func(i, j int) { cast[i], cast[j] = cast[j], cast[i] })
	var roles []*role
	for i, k := range cast {
		id := w.nextID(k)
		r := &role{turn: w.begin(k, id, k.join(w, id))}
		roles = append(roles, r)
		eventually(w, limit, r.id+" to stand in the line", func() bool {
			select {
			case <-r.done:
				w.Fatalf("%s ended before it stood: %v", r.id, r.err)
			default:
			}
			line := w.line()
			if len(line) != i+1 {
				return false
			}
			r.claim = line[i]
			return true
		})
	}
	assign(rng, roles, dies, 2, func(r *role) bool { return r.kind.dies != never })
	assign(rng, roles[1:], diesInLine, 2, func(r *role) bool { return r.kind.isProgram() })
	assign(rng, roles[1:], givesUp, 4, func(*role) bool { return true })
	for i, r := range roles {
		if i > 0 {
			r.when = rng.IntN(i)
		}
	}
	for _, r := range roles { // somebody must hold at that time
		for roles[r.when].fate == givesUp || roles[r.when].fate == diesInLine {
			r.when--
		}
	}
	return roles
}

func (k kind) isProgram() bool {
	return k.name == ctlLock.name || k.name == ctlElect.name || k.name == ourRun.name
}

// assign gives n roles of those that fit a fate.
func assign(rng *rand.Rand, roles []*role, f fate, n int, fits func(*role) bool) {
	for _, i := range rng.Perm(len(roles)) {
		if n > 0 && roles[i].fate == leaves && fits(roles[i]) {
			roles[i].fate = f
			n--
		}
	}
}

// drain sees each of them through.
func (w *world) drain(roles []*role) {
	w.Helper()
	var try []stander
	for _, k := range tries {
		try = append(try, k.join(w, k.name))
	}
	for i, r := range roles {
		if r.fate == givesUp || r.fate == diesInLine {
			continue // it has gone
		}
		w.mustHold(r, roles[i+1:])
		for j, stand := range try {
			w.mustBeTaken(tries[j], stand, r)
		}
		for _, other := range roles[i+1:] {
			if other.when == i && (other.fate == givesUp || other.fate == diesInLine) {
				w.takeOut(other)
			}
		}
		time.Sleep(10 * time.Millisecond)
		w.mustBeAlone(r, roles[i+1:])
		if r.fate == dies {
			r.die()
		} else {
			r.tellLeave()
		}
		w.ended(r)
	}
}

// mustHold waits for r's turn and checks that it holds the place that it entered.
func (w *world) mustHold(r *role, later []*role) {
	w.Helper()
	select {
	case token := <-r.held:
		if token>>16 != uint64(r.claim.rev) {
			w.Errorf("%s acts under %d, but its claim was created at %d", r.id, token>>16, r.claim.rev)
		}
	case <-r.done:
		w.Fatalf("%s ended in the line: %v", r.id, r.err)
	case <-time.After(limit + shortTTL*time.Second):
		w.Fatalf("%s does not get the line, which is %+v", r.id, w.line())
	}
	if line := w.line(); len(line) == 0 || line[0].key != r.claim.key {
		w.Errorf("%s holds, but the line is %+v", r.id, line)
	}
	w.mustBeAlone(r, later)
}

// mustBeAlone checks that nobody behind r holds.
func (w *world) mustBeAlone(r *role, later []*role) {
	w.Helper()
	for _, other := range later {
		select {
		case <-other.held:
			w.Fatalf("%s holds beside %s", other.id, r.id)
		default:
		}
	}
}

// mustBeTaken checks that one that does not wait is refused, and leaves the line as it was.
func (w *world) mustBeTaken(k kind, stand stander, holder *role) {
	w.Helper()
	before := w.line()
	tn := w.begin(k, w.nextID(k), stand)
	<-tn.done
	if !errors.Is(tn.err, errTaken) {
		w.Fatalf("%s while %s holds: %v, want that it is taken", tn.id, holder.id, tn.err)
	}
	if after := w.line(); !slices.Equal(standing(before, after), after) {
		w.Errorf("%s was refused, and the line is %+v, was %+v", tn.id, after, before)
	}
}

// standing returns those of before that are in after: others may have died meanwhile.
func standing(before, after []claim) []claim {
	var both []claim
	for _, c := range before {
		if slices.Contains(after, c) {
			both = append(both, c)
		}
	}
	return both
}

// takeOut ends a turn that waits. One that gives up leaves no trace; one that is killed leaves its
// claim until the lease runs out.
func (w *world) takeOut(r *role) {
	w.Helper()
	if r.fate == diesInLine {
		r.die()
		w.ended(r)
		return
	}
	r.quit()
	w.ended(r)
	eventually(w, limit, r.id+" to have left the line", func() bool { return !slices.Contains(w.line(), r.claim) })
}

// ended waits for the end of a turn and checks that it was the right one.
func (w *world) ended(r *role) {
	w.Helper()
	select {
	case <-r.done:
	case <-time.After(limit):
		w.Fatalf("%s %s, and has not ended after %v", r.id, r.fate, limit)
	}
	mourned := r.fate == dies || r.fate == diesInLine
	if mourned != errors.Is(r.err, errDied) || !mourned && r.err != nil {
		w.Errorf("%s %s: %v", r.id, r.fate, r.err)
	}
	if mourned && r.kind.dies == hardly {
		w.revoke(r.claim.lease)
	}
}

func (w *world) revoke(lease clientv3.LeaseID) {
	w.Helper()
	if _, err := w.client.Revoke(soon(w), lease); err != nil {
		w.Errorf("revoke of a dead lease: %v", err)
	}
}
