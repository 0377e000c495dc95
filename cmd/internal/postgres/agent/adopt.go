package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// ErrForeign says that a server which this member has not started runs in its data directory.
var ErrForeign = errors.New("a server that primacy has not started runs in the data directory")

// adopting says whether the data were adopted, and no record is known yet.
func adopting(s core.State) bool { return s.Adopted != "" && s.Seq == 0 }

// foreign refuses a data directory of which this member knows nothing while a server runs in it:
// it would end the server of another manager, which would start it again.
func foreign(a *Agent, s core.State) error {
	pid, runs := server.Foreign(a.server)
	if !runs || s.Incarnation != "" {
		return nil
	}
	return fmt.Errorf("%w %s (process %d): end it, or have primacy take it over: 'primacy postgres adopt'", ErrForeign,
		a.cfg.Server.Data, pid)
}

// beginAdoption has a member that was adopted as the primary look once more whether the former
// manager is gone. Before that its server writes a checkpoint, which makes its end short.
func beginAdoption(ctx context.Context, a *Agent) error {
	s := a.member.State()
	if a.cfg.TakeOver == nil || s.Seq > 0 || s.Adopted == core.AdoptedStandby ||
		s.Adopted == core.AdoptedAnew {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, a.cfg.TTL)
	defer cancel()
	rec, lost, err := recordOf(limit, a)
	if err != nil || rec != nil || lost != nil || s.Adopted == "" {
		if err == nil && rec == nil && lost == nil {
			err = a.cfg.TakeOver(ctx, "", "", 0)
		}
		return err
	}
	if _, runs := server.Foreign(a.server); runs {
		if err := a.server.Checkpoint(ctx); err != nil {
			a.cfg.Log.Warn("the checkpoint before the takeover", "err", err)
		}
	}
	c, err := a.server.Control(ctx)
	if err != nil {
		return err
	}
	if s.Adopted == core.AdoptedPrimary {
		// Patroni may have had it again meanwhile: then another member may be the primary by now.
		_, signal := os.Stat(filepath.Join(a.cfg.Server.Data, "standby.signal"))
		if signal == nil || strings.Contains(c.State, "recovery") {
			return fmt.Errorf("%w: %s was adopted as the primary's, and is a standby's now (%s): "+
				"'primacy postgres adopt --undo', and adopt it anew", ErrForeign, a.cfg.Server.Data, c.State)
		}
	}
	return a.cfg.TakeOver(ctx, s.Adopted, c.SystemID, max(c.Checkpoint.Timeline, c.MinEnd.Timeline))
}

// start starts the server. That of a former manager is shut down before, so that nothing is to be
// recovered, and the standbys have all. One that does not end in time is ended by the start.
func start(ctx context.Context, a *Agent, adopted bool) error {
	if adopted {
		limit, cancel := context.WithTimeout(ctx, stopLimit)
		defer cancel()
		if err := server.Retire(limit, a.server); err != nil {
			a.cfg.Log.Warn("the former manager's server", "err", err)
		}
	}
	return a.server.Start(ctx)
}

// StateOf returns what the member of a data directory knows durably.
func StateOf(data string) (core.State, error) {
	s, _, err := readState(beside(data))
	return s, err
}

// knows says whether what lies on the disk of the shared configuration is of the member's cluster,
// or of its life before the store was lost.
func knows(s core.State) bool { return s.Seq > 0 || s.Noted != (core.Noted{}) }

// Adopted returns what a member is to know that takes over data which were there before.
func Adopted(data, systemID, directory string, as core.Adoption) (core.State, error) {
	former, err := Left(data)
	return former.Readopt(incarnation(), systemID, directory, as), err
}

// Keep writes what a member knows. The caller holds the lock of the data directory.
func Keep(data string, s core.State) error {
	return durable.WriteJSON(filepath.Join(beside(data), stateFile), s)
}

// KeptConfig returns the shared configuration that was in force on a member when it ran last, nil
// if there was none.
func KeptConfig(data string) (config.Document, error) {
	d, err := keptConfig(configPath(beside(data)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return d, err
}

// leftFile holds the state of a member that has left: what its cluster called it, and no more.
const leftFile = "left.json"

// Left returns the state of a member that has left, or that is about to.
func Left(data string) (s core.State, err error) {
	if s, err = StateOf(data); err != nil || s.Incarnation != "" {
		return s, err
	}
	_, err = durable.ReadJSON(filepath.Join(beside(data), leftFile), &s, "start Patroni without it")
	return s, err
}

// Leave forgets, durably, what the member knew, before somebody else's server writes to the data:
// from then on an answer of this incarnation would be of data that it has not voted with. The
// caller holds the lock of the data directory.
func Leave(data string) error {
	dir := beside(data)
	err := os.Rename(filepath.Join(dir, stateFile), filepath.Join(dir, leftFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range []string{positionFile, configFile, "slots.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return durable.SyncDir(dir)
}

func beside(data string) string { return data + ".primacy" }
