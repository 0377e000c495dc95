//go:build linux

package main

import (
	"bytes"
	"crypto/rand"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// What other programs, or an operator's hand, may leave in a line. It holds the line by etcd's own
// rules.
func foreignKeys() map[string]func(w *world, name string) (key string, value []byte, lease string) {
	binary := make([]byte, 4096)
	_, _ = rand.Read(binary)
	copy(binary, "\x1b[2J\x00\r\n\t")
	return map[string]func(*world, string) (string, []byte, string){
		"without-lease": func(w *world, n string) (string, []byte, string) {
			return n + "/something",
				[]byte("by hand"), "0"
		},
		"no-lease-in-key": func(w *world, n string) (string, []byte, string) {
			return n + "/not hex at all", []byte("x"), w.grant(60)
		},
		"someone-elses-lease": func(w *world, n string) (string, []byte, string) {
			l := w.grant(60)
			return n + "/" + asHex(w.grant(60)), []byte("x"), l
		},
		"binary": func(w *world, n string) (string, []byte, string) {
			return n + "/" + string(binary[:40]), binary,
				"0"
		},
		"megabyte": func(w *world, n string) (string, []byte, string) {
			return n + "/big", bytes.Repeat([]byte("M"), 1<<20), "0"
		},
		"empty": func(w *world, n string) (string, []byte, string) { return n + "/", nil, "0" },
		"deep":  func(w *world, n string) (string, []byte, string) { return n + "/a/b/../c", []byte("x"), "0" },
		"etcdctl": func(w *world, n string) (string, []byte, string) {
			l := w.grant(60)
			return n + "/" + asHex(l), []byte("web-1"), l
		},
		"bad-value": func(w *world, n string) (string, []byte, string) {
			return n + "/x", []byte("{\"owner\": \"\x1b]0;x\x07\xff"), "0"
		},
	}
}

func asHex(lease string) string {
	n, err := strconv.ParseInt(lease, 10, 64)
	if err != nil {
		return lease
	}
	return strconv.FormatInt(n, 16)
}

func TestAForeignKeyLeadsAsAnUnknownAndIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	for name, claim := range foreignKeys() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			key, value, lease := claim(w, name)
			w.put(key, value, lease)
			token := w.line(name)[0].CreateRevision
			shows := func(p *prog) *prog {
				t.Helper()
				p.ends(0).says("another program")
				for _, r := range p.out.String() {
					if r != '\n' && !unicode.IsPrint(r) {
						t.Errorf("%v prints the control character %U", p, r)
					}
				}
				if len(p.out.String()) > 2000 || strings.Count(p.out.String(), "\n") > 30 {
					t.Errorf("%v prints %d bytes", p, len(p.out.String()))
				}
				return p
			}
			shows(w.start("status")).says(token)
			shows(w.start("status", name)).says("leads", token)
			shows(w.start("leader", name))
			got := decode[stateJSON](w, w.start("leader", "-o", "json", name).ends(0).out.String())
			if got.Leader == nil || got.Leader.ID != "" || got.Leader.Token.String() != token || got.Leader.Note == "" {
				t.Errorf("leader -o json: %+v", got.Leader)
			}
			w.start("leader", "--is", "x", name).ends(exitNo)
			o := w.start("observe", name).prints("another program").prints(token)

			// One that is asked to resign cannot: told, not waited for. Nothing is lost, and nobody
			// jumps the line.
			if p := w.start("resign", name); p.wait() == 0 || p.wait() == exitNo {
				t.Errorf("resign: exit %d", p.wait())
			} else {
				p.inOneLine().complains("another program")
			}
			p := w.start("run", "--id", "me", name, "sh", "-c", "echo up; sleep 1000").tells("another program")
			w.awaitLine(name, 2)
			w.start("run", "-q", "--wait", "300ms", name, "echo", "never").ends(exitNotAcquired).inOneLine()
			line := w.awaitLine(name, 2)
			if !bytes.Equal(line[0].Value, value) || string(line[0].Key) != w.prefix+key {
				t.Errorf("the foreign claim has changed: %q", clip(string(line[0].Value)))
			}
			if p.out.String() != "" {
				t.Error("the command runs beside it")
			}
			w.delete(key)
			p.prints("up")
			o.prints("me leads")
			o.signal(2).ends(0)
			p.signal(15).ends(128 + 15)
		})
	}
}

// in returns the world for a subtest: what it starts ends with that.
func (w *world) in(t *testing.T) *world {
	n := *w
	n.T = t
	return &n
}

// A line of more than 4 MB (gRPC reads no more unless told), and records of sessions that are not
// ours.
func TestAForeignLineIsReadWhole(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		w.put("n/"+strconv.Itoa(i), bytes.Repeat([]byte{byte(i)}, 1<<20), "0")
	}
	w.start("status", "n").ends(0).says("waits 4", "another program")
	w.start("status").ends(0).says("n ", " 4 ")
	got := decode[stateJSON](w, w.start("status", "-o", "json", "n").ends(0).out.String())
	if len(got.Waiting) != 4 || len(got.Waiting[3].Value) < 1<<20 {
		t.Errorf("status -o json: %d wait", len(got.Waiting))
	}
	p := w.start("run", "n", "echo", "up").tells("another program")
	w.awaitLine("n", 6)
	for i := range 5 {
		w.delete("n/" + strconv.Itoa(i))
	}
	p.ends(0).says("up")
}

func TestASessionRecordThatIsGarbage(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--id", "me", "n", "sleep", "1000").tells("leads n")
	for _, k := range w.keys(w.prefix) {
		if key := strings.TrimPrefix(string(k.Key), w.prefix); !strings.HasPrefix(key, "n/") {
			w.put(key, []byte("\xff\x00{"), k.Lease)
		}
	}
	w.start("status", "n").ends(0).says("session record cannot be read")
	w.start("status").ends(0).says("another program, lease")
	p.signal(15).ends(128 + 15)
}
