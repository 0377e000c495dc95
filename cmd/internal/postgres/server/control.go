package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Control is what the control file of a data directory says. For a server that runs it is as old as
// its last checkpoint.
type Control struct {
	State      string        // as pg_controldata says it: "in production", "shut down", …
	SystemID   string        // of the database system, as initdb made it
	Checkpoint core.Position // where the last checkpoint's record begins, and on which timeline
	MinEnd     core.Position // a standby is consistent from here on; 0: it does not need more than it has
	Checksums  bool
	HintLogged bool           // wal_log_hints; with it or Checksums, pg_rewind works
	Settings   map[string]int // those in which a standby must not be below its primary
	SegSize    uint64         // of a WAL segment, in bytes
}

// Clean says whether the server was shut down as a primary: then its WAL ends with the checkpoint.
func (c Control) Clean() bool { return c.State == "shut down" }

// Control runs pg_controldata.
func (d *directory) Control(ctx context.Context) (Control, error) {
	out, err := d.output(ctx, "pg_controldata", "-D", d.data)
	if err != nil {
		return Control{}, err
	}
	return parseControl(out)
}

// output runs a program of PostgreSQL that only reads.
func (d *directory) output(ctx context.Context, name string, args ...string) (string, error) {
	return d.outputWith(ctx, nil, name, args...)
}

// outputWith is output of a program that has these files as its descriptors from 3 on.
func (d *directory) outputWith(ctx context.Context, files []*os.File, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.program(name), args...)
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), "LC_ALL=C"), files
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := d.runner.StartOther(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func parseControl(text string) (Control, error) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			values[name] = strings.TrimSpace(value)
		}
	}
	var firstErr error
	number := func(name string) uint64 {
		n, err := strconv.ParseUint(values[name], 10, 64)
		if err != nil && firstErr == nil {
			firstErr = fmt.Errorf("pg_controldata says nothing of %q", name)
		}
		return n
	}
	lsn := func(name string) core.LSN {
		l, err := core.ParseLSN(values[name])
		if err != nil && firstErr == nil {
			firstErr = fmt.Errorf("pg_controldata: %s: %w", name, err)
		}
		return l
	}
	c := Control{
		State:    values["Database cluster state"],
		SystemID: values["Database system identifier"],
		Checkpoint: core.Position{
			Timeline: core.Timeline(number("Latest checkpoint's TimeLineID")), LSN: lsn("Latest checkpoint location"),
		},
		MinEnd: core.Position{
			Timeline: core.Timeline(number("Min recovery ending loc's timeline")),
			LSN:      lsn("Minimum recovery ending location"),
		},
		Checksums:  number("Data page checksum version") != 0,
		HintLogged: values["wal_log_hints setting"] == "on",
		SegSize:    number("Bytes per WAL segment"),
		Settings:   map[string]int{},
	}
	for setting, name := range map[string]string{
		"max_connections": "max_connections", "max_worker_processes": "max_worker_processes",
		"max_wal_senders": "max_wal_senders", "max_prepared_transactions": "max_prepared_xacts",
		"max_locks_per_transaction": "max_locks_per_xact",
	} {
		c.Settings[setting] = int(number(name + " setting"))
	}
	if c.State == "" || c.SystemID == "" {
		firstErr = fmt.Errorf("pg_controldata says neither state nor system identifier")
	}
	return c, firstErr
}

var recordLength = regexp.MustCompile(`len \(rec/tot\):\s*\d+/\s*(\d+),.*desc: CHECKPOINT_SHUTDOWN`)

// StoppedAt returns where the WAL of a server ends that was shut down as a primary, after the
// record of its last checkpoint. ok is false if it was not: of a server that crashed, or a standby,
// only a start tells.
func (d *directory) StoppedAt(ctx context.Context) (p core.Position, ok bool, err error) {
	c, err := d.Control(ctx)
	if err != nil || !c.Clean() {
		return core.Position{}, false, err
	}
	out, err := d.output(ctx, "pg_waldump", "-p", d.path("pg_wal"), "-t", strconv.Itoa(int(c.Checkpoint.Timeline)),
		"-s", c.Checkpoint.LSN.String(), "-n", "1")
	if err != nil {
		return core.Position{}, false, err
	}
	m := recordLength.FindStringSubmatch(out)
	if m == nil {
		return core.Position{}, false, fmt.Errorf("pg_waldump shows no shutdown checkpoint at %v: %s",
			c.Checkpoint.LSN, strings.TrimSpace(out))
	}
	length, err := strconv.ParseUint(m[1], 10, 64)
	c.Checkpoint.LSN = endOf(c.Checkpoint.LSN, length, c.SegSize)
	return c.Checkpoint, err == nil, err
}

// endOf returns where a WAL record ends that begins at start. Records begin at multiples of 8, and
// each page of 8 kB has a header, a longer one at the beginning of a segment.
func endOf(start core.LSN, length, segment uint64) core.LSN {
	const page, short, long = 8192, 24, 40
	at := uint64(start)
	for left := length; ; {
		room := page - at%page
		if left <= room {
			return core.LSN((at + left + 7) &^ 7)
		}
		left -= room
		at += room
		if at%segment == 0 {
			at += long
		} else {
			at += short
		}
	}
}
