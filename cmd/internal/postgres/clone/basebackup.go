package clone

import (
	"context"
	"fmt"
)

// Clone makes the directory, which is missing, empty or unfinished, a copy of a primary, which can
// be started as its standby. progress gets lines such as "  23/2048 kB (1%), 0/1 tablespace"; it
// may be nil. When Clone fails, the directory is as it was if the error is an [ErrUnfit] or the
// primary did not answer, and else unfinished: the next Clone begins anew.
func (d *Dir) Clone(ctx context.Context, from Source, progress func(string)) error {
	state, err := d.Look()
	if err != nil {
		return err
	}
	a, err := from.copied(ctx, d.major)
	if err != nil {
		return err
	}
	if m, err := d.marker(); err != nil {
		return err
	} else if m != nil && m.What == byInitdb && m.SystemID == a.systemID {
		return unfit("%s holds the first server of the primary's own cluster: its initdb is to be finished (%v)",
			d.cfg.Data, state)
	}
	if err := d.begin(byClone, a.systemID); err != nil {
		return err
	}
	args := []string{"-D", d.cfg.Data, "-d", from.Conninfo, "-X", "stream", "--checkpoint=fast", "--progress",
		"--no-password"}
	if from.Slot != "" {
		args = append(args, "--slot", from.Slot)
	}
	if err := d.run(ctx, program{name: "pg_basebackup", args: args, each: progress}); err != nil {
		return err
	}
	if got, ok := d.systemID(); !ok || got != a.systemID { // the address led to somebody else meanwhile
		return fmt.Errorf("pg_basebackup copied database system %q, not %s", got, a.systemID)
	}
	if err := from.carryHistories(ctx, d.path("pg_wal")); err != nil {
		return err
	}
	return d.whole() // pg_basebackup has made the rest durable
}
