package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgfile"
)

// TestPatronisResumeWithdrawsWhatWasAsked: a pause that somebody has asked for, and that the record
// does not say yet, would come after the resume. Where it is so already nothing is asked of
// anybody.
func TestPatronisResumeWithdrawsWhatWasAsked(t *testing.T) {
	w := newWorld(t)
	a := &app{stdout: io.Discard, stderr: io.Discard, store: w.store, ttl: 30 * time.Second, timeout: time.Minute}
	c := &cluster{app: a, name: filepath.Base(w.dir), namespace: "/service"}
	election := "postgres/" + c.name
	r, done, err := c.open(t.Context(), election)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	verbs, version := &patroniVerbs{name: "pg1", at: r}, uint64(0)
	is := func(paused *core.Pause) {
		t.Helper()
		text, err := json.Marshal(core.Record{Seq: 1, Primary: core.Identity{Name: "pg1"}, Paused: paused})
		if err != nil {
			t.Fatal(err)
		}
		next, ok, err := r.keeper.Keep(t.Context(), election, text, version, "", 0)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		version = next
	}
	asked := func(pause *core.Pause) {
		t.Helper()
		if _, err := r.record.Instruct(t.Context(), func(i *core.Instructions) error {
			i.Paused = pause
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	says := func(what string, seq uint64, paused bool) {
		t.Helper()
		i, err := r.record.Instructions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i == nil {
			i = &core.Instructions{}
		}
		if i.Seq != seq || (i.Paused != nil) != paused {
			t.Errorf("%s: the instructions are %+v", what, *i)
		}
	}
	is(nil)
	if err := verbs.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	says("a resume of what nobody has paused", 0, false)
	by := &core.Pause{By: "anna"}
	asked(by)
	if err := verbs.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	says("a resume of what is asked for", 2, false)
	asked(by)
	is(by)
	if err := verbs.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	says("a pause in a pause", 3, true)
	asked(nil)
	if _, err := r.shared.Write(t.Context(), pgconfig.Document{"pause": true}, 0); err != nil {
		t.Fatal(err)
	}
	if err := verbs.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	says("a pause in a pause by the configuration", 4, false)
	is(nil)
	if err := verbs.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	if d, _, err := r.shared.Read(t.Context()); err != nil || len(d) > 0 {
		t.Errorf("after a resume the configuration is %s, %v", d.JSON(), err)
	}
}

// TestOthersDoNotReadThePasswordsOfTheAPI: a file of [api] that everybody may read is told with
// what to type, and a password is taken as it stands.
func TestOthersDoNotReadThePasswordsOfTheAPI(t *testing.T) {
	path := filepath.Join(t.TempDir(), "auth")
	for _, x := range []struct {
		text, refused string
		mode          os.FileMode
	}{
		{"tools:" + strings.Repeat("x", 16), "", 0o600},
		{"tools:" + strings.Repeat("x", 16), "", 0o640}, // Kubernetes gives a volume of secrets to a group
		{"tools:" + strings.Repeat("x", 16), "chmod 0600 " + path, 0o644},
		{"tools:" + strings.Repeat("x", 16), "chmod 0600 " + path, 0o602},
	} {
		if err := os.WriteFile(path, []byte(x.text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, x.mode); err != nil {
			t.Fatal(err)
		}
		for key, api := range map[string]pgfile.API{"auth": {AuthFile: path}, "token": {TokenFile: path}} {
			_, err := guardOf(api)
			if (err != nil) != (x.refused != "") || err != nil && (!strings.Contains(err.Error(), x.refused) ||
				!strings.HasPrefix(err.Error(), "api."+key+"_file: ")) {
				t.Errorf("%s_file with mode %04o: %v, want %q", key, x.mode, err, x.refused)
			}
		}
	}
	if err := os.WriteFile(path, []byte("tools: p w \r\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if g, err := guardOf(pgfile.API{AuthFile: path}); err != nil || g.Basic != "tools: p w " {
		t.Errorf("the password is %q, %v", g.Basic, err)
	}
}
