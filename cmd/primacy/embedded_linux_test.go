package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A host whose disk is full ends: until then nobody could host the store, also when there is room
// again.
func TestAHostWhoseDiskIsFullMakesWay(t *testing.T) {
	w := plainWorld(t)
	disk := filepath.Join(w.dir, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "mode=700,size=40m"); err != nil {
		t.Skipf("cannot mount here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	w.env = append(w.env, "PRIMACY_STORE=embedded:"+filepath.Join(disk, "s"))
	host := w.serve("host")
	leads := host.campaignFor("n", "one").next("elected")
	fill := filepath.Join(disk, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 1<<16); err == nil; {
		_, err = f.Write(block)
	}
	body := `{"value":"` + strings.Repeat("v", 4000) + `"}`
	host.until(func() bool {
		for range 100 {
			host.ask("POST", "/v1/elections/n/proclaim", body, "Primacy-Token", leads.Token)
		}
		select {
		case <-host.exited:
			return true
		default:
			return false
		}
	}, "has filled its log")
	host.ends(exitUnreachable).complains("no space left")
	f.Close()
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	w.serve("next")
}
