//go:build linux

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
)

// strangers are the kinds that keep no session record of ours, as our drop-in for etcd's package
// does not.
func strangers() []kind {
	return []kind{ctlLock, ctlElect, lockService, electionService, etcdMutex, etcdElection, dropInMutex, dropInElection}
}

// TestForeignHoldersInWords: Election.State and `primacy status` say of each claim of another
// program that it is one, with its true lease, token and value, whether it holds or waits; and of
// ours whose it is.
func TestForeignHoldersInWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	session := w.newSession("watcher")
	for _, k := range strangers() {
		holder, waiter := w.nextID(k), w.nextID(ourElection)
		first := &role{turn: w.begin(k, holder, k.join(w, holder))}
		w.stands(first, 1)
		second := &role{turn: w.begin(ourElection, waiter, ourElection.join(w, waiter))}
		w.stands(second, 2)
		third := &role{turn: w.begin(k, w.nextID(k), k.join(w, holder+"-b"))}
		w.stands(third, 3)

		st, err := session.Election(lineName).State(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if st.Leader == nil || len(st.Waiting) != 2 {
			t.Fatalf("%s: state %+v, want one who leads and two who wait", k.name, st)
		}
		w.isForeign(*st.Leader, first)
		w.isForeign(st.Waiting[1], third)
		if o := st.Waiting[0]; o.ID != waiter || o.Note != "" || string(o.Value) != "of "+waiter {
			t.Errorf("our own behind %s: %+v", k.name, o)
		}
		w.statusSays(first, second, third, *st.Leader)
		for _, r := range []*role{first, second, third} {
			w.mustHold(r, nil)
			r.tellLeave()
			w.ended(r)
		}
	}
}

// stands waits until r stands, as the nth of the line.
func (w *world) stands(r *role, n int) {
	w.Helper()
	eventually(w, limit, r.id+" to stand in the line", func() bool {
		line := w.line()
		if len(line) != n {
			return false
		}
		r.claim = line[n-1]
		return true
	})
}

// isForeign checks what is shown of a claim that another program entered.
func (w *world) isForeign(s primacy.Entry, r *role) {
	w.Helper()
	if s.ID != "" || !strings.Contains(s.Note, "another program") {
		w.Errorf("%s is shown as %q, with the note %q", r.id, s.ID, s.Note)
	}
	if s.Lease != fmt.Sprintf("%x", r.claim.lease) || uint64(s.Token) != uint64(r.claim.rev) {
		w.Errorf("%s is shown with lease %s and token %d, want %x and %d", r.id, s.Lease, s.Token, r.claim.lease,
			r.claim.rev)
	}
}

// statusSays checks the program's own words: one line for each in the line, in its order, and the
// overview.
func (w *world) statusSays(first, second, third *role, leader primacy.Entry) {
	w.Helper()
	rows := strings.Split(w.status(lineName), "\n")
	rest := rows
	for _, want := range [][]string{
		{"lead", "another program", fmt.Sprint(first.claim.rev), fmt.Sprintf("%x", first.claim.lease)},
		{"waits 1", second.id, fmt.Sprint(second.claim.rev)},
		{"waits 2", "another program", fmt.Sprint(third.claim.rev), fmt.Sprintf("%x", third.claim.lease)},
	} {
		for len(rest) > 0 && !holdsAll(rest[0], want) {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			w.Errorf("status %s: want a row with %q in\n%s", lineName, want, strings.Join(rows, "\n"))
		}
	}
	all := w.status()
	if !holdsAll(all, []string{lineName, "another program", leader.Token.String(), " 2 "}) {
		w.Errorf("status: want the holder in\n%s", all)
	}
}

func holdsAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// status returns what `primacy status` prints.
func (w *world) status(args ...string) string {
	w.Helper()
	cmd := exec.Command(w.program(), append([]string{"status"}, args...)...)
	cmd.Env = append(os.Environ(), "PRIMACY_STORE="+w.storeURL())
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("status: %v\n%s", err, out)
	}
	w.Logf("primacy status %s\n%s", strings.Join(args, " "), out)
	return string(out)
}
