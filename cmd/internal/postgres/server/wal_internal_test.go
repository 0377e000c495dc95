package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/walfile"
)

// A disk that does not answer once says nothing of what is on it. The file may have all that its
// timeline begins with, and what was acknowledged there.
func TestAFileThatCannotBeReadStays(t *testing.T) {
	const size = 16 << 20
	at := core.LSN(0x300_0100)
	d := wal{&directory{data: t.TempDir()}}
	own := d.path("pg_wal", walfile.SegmentName(3, at, size))
	if err := os.MkdirAll(own, 0o700); err != nil { // a folder can be opened, and not be read
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		walfile.HistoryName(2):           "1\t0/1500780\tx\n",
		walfile.HistoryName(3):           "1\t0/1500780\tx\n2\t0/3000100\tx\n",
		walfile.SegmentName(2, at, size): "old content",
	} {
		if err := os.WriteFile(d.path("pg_wal", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := d.dropParts(t.Context(), Control{Checkpoint: core.Position{Timeline: 2}, SegSize: size})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{own, d.path("pg_wal", walfile.HistoryName(3))} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
}
