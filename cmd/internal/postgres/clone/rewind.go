package clone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// Rewind makes the directory of a stopped server, which has WAL that the primary has not, one that
// can follow the primary (pg_rewind). Before anything changes, what the primary has not is saved
// and listed: see [Lost]. It waits until the primary has written a checkpoint on its timeline, and
// has no time limit of its own: only ctx ends it.
//
// The loss is nil if no commit is lost. It is returned with an error too, once it is saved. When
// Rewind fails, [Dir.Look] tells what is next: a directory that is ready was not changed, for the
// primary did not answer, or ctx ended; one that is partial is to be cloned.
func (d *Dir) Rewind(ctx context.Context, from Source, progress func(string)) (*Loss, error) {
	if progress == nil {
		progress = func(string) {}
	}
	state, err := d.Look()
	switch {
	case err != nil:
		return nil, err
	case state != core.DataReady:
		return nil, errors.New("there is no whole data directory to rewind: clone it")
	}
	if pid, ok := d.busy(); ok {
		return nil, unfit("a server runs in %s (process %d): end it first", d.cfg.Data, pid)
	}
	control, err := d.control(ctx)
	if err != nil {
		return nil, err
	}
	system := control["Database system identifier"]
	if from.SystemID == "" {
		from.SystemID = system
	}
	if system != from.SystemID {
		return nil, unfit("%s holds database system %s, and this cluster is %s", d.cfg.Data, system, from.SystemID)
	}
	if _, err := from.examine(ctx, d.major); err != nil {
		return nil, err
	}
	if err := from.checkpointed(ctx, progress); err != nil {
		return nil, err
	}
	loss, err := salvage(ctx, d, from, control)
	if err != nil {
		return nil, fmt.Errorf("save what the rewind discards: %w", err)
	}
	if err := d.mark(byRewind, system); err != nil {
		return loss, err
	}
	if control["Data page checksum version"] == "0" && control["wal_log_hints setting"] != "on" {
		return loss, errors.New("cannot be rewound, for it has neither checksums nor wal_log_hints: it is to be cloned")
	}
	touched, err := d.rewind(ctx, from, control, progress)
	switch {
	case err == nil:
		return loss, d.whole()
	case !touched && (ctx.Err() != nil || unreachable.MatchString(err.Error())):
		return loss, errors.Join(err, durable.Remove(d.markerPath()))
	}
	return loss, err
}

var (
	// What pg_rewind says before it changes the first byte.
	begins = regexp.MustCompile(`need to copy \d+ MB`)
	// What it says where the primary does not answer.
	unreachable = regexp.MustCompile(`could not connect|connection to server|server closed the connection`)
)

// rewind says whether anything was changed.
func (d *Dir) rewind(ctx context.Context, from Source, control map[string]string, progress func(string),
) (touched bool, err error) {
	if !strings.HasPrefix(control["Database cluster state"], "shut down") || behind(control) {
		progress("the server did not shut down, or not since it was promoted: it recovers first")
		// A standby that recovers writes WAL on the timeline of its primary, which nobody else has.
		touched = control["Database cluster state"] != "in production"
		if err := d.recover(ctx, control); err != nil {
			return touched, err
		}
	}
	args := []string{"-D", d.cfg.Data, "--source-server=" + from.Conninfo + " dbname=postgres", "--progress"}
	err = d.run(ctx, program{name: "pg_rewind", args: args, each: func(line string) {
		touched = touched || begins.MatchString(line)
		progress(line)
	}})
	if err == nil {
		err = from.carryHistories(ctx, d.path("pg_wal"))
	}
	return touched, err
}

// behind says whether the last checkpoint is of an older timeline than the last WAL: a server that
// was promoted by hand, and stopped before it wrote a checkpoint. Before PostgreSQL 16 pg_rewind
// looks at the checkpoint alone, and finds nothing to rewind.
func behind(control map[string]string) bool {
	last, err := strconv.ParseUint(control["Min recovery ending loc's timeline"], 10, 32)
	checkpoint, err2 := strconv.ParseUint(control["Latest checkpoint's TimeLineID"], 10, 32)
	return err == nil && err2 == nil && last > checkpoint
}

// recover has a server that crashed replay its WAL, and ends it. pg_rewind would do so too, but
// with the settings of the configuration files only: ours stand on the command line, and without
// them there is no recovery of, say, prepared transactions.
func (d *Dir) recover(ctx context.Context, control map[string]string) error {
	signal := d.path("standby.signal")
	if exists(signal) { // then it would not run as a single user
		if err := durable.Remove(signal); err != nil {
			return err
		}
		defer func() { _ = durable.Replace(signal, nil) }() // a start by hand makes no second primary
	}
	args := []string{"--single", "-D", d.cfg.Data, "-c", "archive_mode=off", "-c", "max_replication_slots=1000",
		"-c", "log_destination=stderr", "-c", "logging_collector=off",
		// pg_rewind reads the directory's own WAL back to where both were the same: the checkpoints
		// at the end of this recovery would remove it.
		"-c", "wal_keep_size=1000000"}
	for setting, name := range map[string]string{
		"wal_level": "wal_level", "max_connections": "max_connections", "max_worker_processes": "max_worker_processes",
		"max_wal_senders": "max_wal_senders", "max_prepared_transactions": "max_prepared_xacts",
		"max_locks_per_transaction": "max_locks_per_xact",
	} {
		args = append(args, "-c", setting+"="+control[name+" setting"])
	}
	return d.run(ctx, program{name: "postgres", args: append(args, "template1")})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
