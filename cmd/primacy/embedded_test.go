package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A process for which the embedded store is gone ends and says why: it would answer nothing any
// more, take over from nobody, and keep others from hosting.
func TestWhoHasLostTheEmbeddedStoreEnds(t *testing.T) {
	w := plainWorld(t)
	dir := filepath.Join(w.dir, "s")
	w.env = append(w.env, "PRIMACY_STORE=embedded:"+dir)
	host := w.serve("host")
	beside := w.serve("beside")
	dev := w.start("dev", "--", "sleep", "1000")
	dev.until(func() bool { return len(w.processes()) >= 4 }, "has started its command")
	leads := w.start("run", "--id", "leads", "--ttl", "5s", "--on-deposed", "echo the hook ran", "n", "--",
		"sleep", "1000").tells("leads n under token")
	waits := w.start("run", "--id", "waits", "n", "--", "sleep", "1000").tells("waits for n")
	shard := w.start("run", "--id", "shard", "--ttl", "5s", "--shards", "1", "--on-deposed", "echo the hook ran", "s",
		"--", "sleep", "1000").tells("leads s/0000 under token")
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*prog{host.prog, beside.prog, dev} {
		p.ends(exitUnreachable).complains("the directory was removed or replaced while in use")
	}
	// It leads for a moment, where it and the host see the loss later than the leader gives up.
	if code := waits.wait(); code != exitUnreachable && code != exitLost {
		t.Errorf("%v: exit %d, want %d or %d", waits, code, exitUnreachable, exitLost)
	}
	waits.complains("the directory was removed or replaced while in use")
	// a term ends as it does without a store
	leads.ends(exitLost).complains("the directory was removed or replaced", "given up: the embedded store is gone",
		"the hook ran")
	if shard.wait(); !strings.Contains(shard.out.String()+shard.err.String(), "the hook ran") {
		t.Errorf("%v: the hook of a shard did not run", shard)
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	w.serve("again")
}
