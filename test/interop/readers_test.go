//go:build linux

package interop

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// TestReadersAndStrangers: our readers hold together; one of etcd's own clients waits for all of
// them, and readers that come later wait behind it.
func TestReadersAndStrangers(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	w := newWorld(t)
	for _, k := range strangers() {
		t.Run(k.name, func(t *testing.T) {
			var cast []*role
			enter := func(k kind) *role {
				id := w.nextID(k)
				r := &role{turn: w.begin(k, id, k.join(w, id))}
				cast = append(cast, r)
				w.stands(r, len(cast))
				return r
			}
			leave := func(r *role) {
				r.tellLeave()
				w.ended(r)
			}
			one, two := enter(ourReader), enter(ourReader)
			w.mustHold(one, nil)
			w.mustAct(two)
			stranger := enter(k)
			late := enter(ourReader)
			later := enter(ourReader)
			w.mustWait(stranger, late, later)
			leave(one)
			w.mustWait(stranger, late, later)
			leave(two)
			w.mustHold(stranger, nil)
			w.mustWait(late, later)
			w.mustBeTaken(ourTryRead, ourTryRead.join(w, w.nextID(ourTryRead)), stranger)
			leave(stranger)
			w.mustAct(late)
			w.mustAct(later)
			w.mustBeTaken(etcdTry, etcdTry.join(w, w.nextID(etcdTry)), late)
			leave(later)
			leave(late)
		})
	}
	w.close()
	w.empty(limit)
	w.judge()
}

// mustAct waits until r holds, wherever it stands in the line.
func (w *world) mustAct(r *role) {
	w.Helper()
	select {
	case token := <-r.held:
		if token>>16 != uint64(r.claim.rev) {
			w.Errorf("%s acts under %d, but its claim was created at %d", r.id, token>>16, r.claim.rev)
		}
	case <-r.done:
		w.Fatalf("%s ended in the line: %v", r.id, r.err)
	case <-time.After(limit):
		w.Fatalf("%s does not get the line, which is %+v", r.id, w.line())
	}
}

// mustWait checks that none of them holds now or in a moment.
func (w *world) mustWait(roles ...*role) {
	w.Helper()
	time.Sleep(300 * time.Millisecond)
	for _, r := range roles {
		select {
		case <-r.held:
			w.Fatalf("%s holds, the line is %+v", r.id, w.line())
		case <-r.done:
			w.Fatalf("%s ended in the line: %v", r.id, r.err)
		default:
		}
	}
}
