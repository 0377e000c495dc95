package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	pgagent "github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/patroni"
	"github.com/primacy-go/primacy/cmd/internal/postgres/record"
	pgserver "github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// anewJSON is what the stopped member of a cluster has whose store was lost.
type anewJSON struct {
	Member string `json:"member"`
	core.Position
	// The last record that it has seen: its number, 0 if that is not known, and the primary.
	Seen            uint64        `json:"seen,string"`
	Primary         string        `json:"primary"`
	PrimaryTimeline core.Timeline `json:"primary_timeline"`
	// Of the cluster: positions are to be compared only among members of one life.
	Life string `json:"life"`
}

// beginAnew has this member begin the cluster anew, whose store was lost, where a person has chosen
// it. Without --accept-loss it says what the member has.
func (v *adopting) beginAnew(ctx context.Context) error {
	r, done, err := v.reach(ctx)
	if err != nil {
		return err
	}
	defer done()
	log := filepath.Join(v.file.Data+".primacy", "server.log")
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%s is of no member that could begin a cluster anew: %w", v.file.Data, err)
	}
	defer output.Close()
	server, disk, err := v.hold(output)
	if err != nil {
		return err
	}
	defer disk.Close()
	s, err := pgagent.StateOf(v.file.Data)
	if err != nil {
		return err
	}
	place, err := v.place(ctx, r)
	if err != nil {
		return err
	}
	if why := cmp.Or(v.whole(s, server, disk), v.gone(ctx, r, s, place)); why != nil {
		return fail(exitNo, "not adopted: %w", why)
	}
	at, err := v.walEnd(ctx, server)
	if err != nil {
		return fmt.Errorf("where the WAL of %s ends: %w; %s may say why", v.file.Name, err, log)
	}
	if n := s.Noted.Timeline; n > 0 && (at.Timeline-n)%2 != 0 {
		return fail(exitNo, "not adopted: the WAL of %s ends at %v, and nobody was given that timeline: somebody has "+
			"promoted it by hand", v.file.Name, at)
	}
	return v.choose(ctx, r, s, place, disk, at)
}

// place reads what stands in the place of the record.
func (v *adopting) place(ctx context.Context, r *reached) (record.Place, error) {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	return r.record.Place(ctx)
}

// whole says why nothing can begin with the data of this machine.
func (v *adopting) whole(s core.State, server *pgserver.Server, disk *clone.Dir) error {
	data := v.file.Data
	switch has, err := disk.Look(); {
	case err != nil:
		return err
	case has != core.DataReady:
		return fmt.Errorf("there is no whole database in %s: choose another member", data)
	case s.Incarnation == "" || s.Noted == (core.Noted{}):
		return fmt.Errorf("%s is of no member of this cluster: %[1]s.primacy/state.json knows of no record", data)
	case s.ByHand:
		return fmt.Errorf("the server in %s was promoted by hand: what it has is not the cluster's: choose another "+
			"member", data)
	}
	_, system := disk.Identity()
	if err := sameSystem(s, data, system); err != nil {
		return err
	}
	if pid, runs := pgserver.Foreign(server); runs {
		return fmt.Errorf("a server runs in %s (process %d): end it", data, pid)
	}
	return nil
}

// sameSystem says that the data are not of the database system of this member's cluster.
func sameSystem(s core.State, data, system string) error {
	if known := cmp.Or(s.Noted.SystemID, s.SystemID); system != known {
		return fmt.Errorf("the data in %s are of database system %s, and this member is of %s: choose another member",
			data, cmp.Or(system, "?"), known)
	}
	return nil
}

// gone says why the store was not lost, as far as this member knows.
func (v *adopting) gone(ctx context.Context, r *reached, s core.State, p record.Place) error {
	system := cmp.Or(s.Noted.SystemID, s.SystemID)
	switch rec := p.Record; {
	case p.Left:
		return fmt.Errorf("the members of %s have left it: another manager may keep the data", v.name)
	case p.Lost != nil && p.Lost.SystemID != "" && p.Lost.SystemID != system:
		return fmt.Errorf("what was lost is a cluster %s of database system %s, and this member is of %s: is `store` "+
			"right in the file?", v.name, p.Lost.SystemID, system)
	case rec == nil:
	case rec.Succeeds(s.Noted):
		return fmt.Errorf("%s was adopted anew already, and %s is its primary: without --anew this member joins it",
			v.name, rec.Primary.Name)
	case rec.SystemID != system:
		return fmt.Errorf("the store has another cluster %s, of database system %s, and this member is of %s: is "+
			"`store` right in the file? If it is, give the cluster another name there", v.name, rec.SystemID, system)
	case s.Forgotten(v.file.Name, rec) == nil:
		return fmt.Errorf("the store has record %d of %s, and this member knows of nothing newer: start the members",
			rec.Seq, v.name)
	}
	keys, err := former{r, v.file.Name, system, 0}.keys(ctx)
	if is := keys["initialize"]; err == nil && is != "" && is != patroni.Guarded(system) {
		err = fmt.Errorf("there is a cluster of Patroni at %s", pgconfig.Dir(v.namespace, v.name))
	}
	return cmp.Or(err, v.quiet(ctx, r))
}

// quiet says which other member's agent runs, or was killed a moment ago. It would act meanwhile:
// as a primary, or by a rule of a former version.
func (v *adopting) quiet(ctx context.Context, r *reached) error {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	line, err := r.election.State(ctx)
	if err != nil {
		return err
	}
	return othersStand(line, v.file.Name)
}

// othersStand says who but this member has a claim in the cluster's election.
func othersStand(line primacy.State, me string) error {
	entries := line.Waiting
	if line.Leader != nil {
		entries = append([]primacy.Entry{*line.Leader}, entries...)
	}
	var names []string
	for _, e := range entries {
		if e.ID != me {
			names = append(names, clean(e.ID))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("stop the agent of %s first; after a kill its claim stands until its lease is over",
		strings.Join(names, ", "))
}

// walEnd starts the server as a standby that follows nobody, and returns where all of its WAL ends.
// The server is stopped when it returns.
func (v *adopting) walEnd(ctx context.Context, server *pgserver.Server) (at core.Position, err error) {
	d, err := pgagent.KeptConfig(v.file.Data)
	if err != nil {
		return at, fmt.Errorf("the configuration that was in force last: %w", err)
	}
	if d != nil { // else it has those of the file
		shared, _, err := d.Read()
		if err == nil {
			err = server.Configure(ctx, shared.Parameters)
		}
		if err != nil {
			return at, err
		}
	}
	if err := server.Start(ctx); err != nil {
		return at, err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if server.Stop(clean, pgserver.Fast) != nil {
			err = errors.Join(err, server.Stop(context.WithoutCancel(ctx), pgserver.Quit))
		}
	}()
	const every, patience = 50 * time.Millisecond, 10 * time.Second
	file, since, told := "", time.Now(), time.Now()
	for {
		x, err := server.Position(ctx)
		if err == nil && x.Complete && !x.Primary {
			return x.Position, nil
		}
		if _, runs := server.Running(); !runs {
			return at, errors.New("the server has ended")
		}
		switch now := server.Recovering(); {
		case now != file:
			file, since = now, time.Now()
		case time.Since(since) > v.wait: // what was copied last needs WAL of that primary, and has not got all
			return at, fmt.Errorf("for %v the server has read nothing more, and takes no SQL: its data are no whole "+
				"copy, or are damaged: choose another member", v.wait)
		case time.Since(told) > patience:
			told = time.Now()
			v.say("%s: its server reads WAL: %s", v.file.Name, cmp.Or(file, "it has just begun"))
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
}

// choose says what the member has, and has it begin the cluster anew if a person accepts what is
// lost.
func (v *adopting) choose(ctx context.Context, r *reached, s core.State, p record.Place, disk *clone.Dir,
	at core.Position,
) error {
	j := anewJSON{v.file.Name, at, s.Seq, s.Noted.Primary, s.Noted.Timeline, s.Noted.Life()}
	if err := v.tell(j); err != nil {
		return err
	}
	text := fmt.Sprintf("%s has WAL up to %v. What other members have and it lacks is lost.", j.Member, at)
	if at.Before(s.Last) {
		text += fmt.Sprintf(" Its WAL once reached %v: its data were put back from a backup, or are damaged.", s.Last)
	}
	if p.Lost != nil && p.Lost.Anew.Name != "" {
		text += fmt.Sprintf(" %s was chosen before, and will begin nothing then.", clean(p.Lost.Anew.Name))
	}
	if p.Lost == nil && p.Record == nil {
		text += " The store is empty, and no member has marked it: is `store` right in the file?"
	}
	directory, system := disk.Identity()
	if s.Directory != "" && s.Directory != directory {
		text += " Its data directory is another one than it had: it was put back from a backup, or moved."
	}
	if !v.accept {
		return fail(exitNo, "nothing was done. %s If no other has more: --accept-loss", text)
	}
	if err := (&asking{cluster: v.cluster, yes: v.yes}).confirm(text); err != nil {
		return err
	}
	if err := v.quiet(ctx, r); err != nil { // reading WAL, and the question, may have taken long
		return fail(exitNo, "nothing was done: %w", err)
	}
	next, err := pgagent.Adopted(v.file.Data, system, directory, core.AdoptedAnew)
	if err != nil {
		return err
	}
	l := core.Lost{By: v.file.Name, Seen: s.Seq, SystemID: system}
	switch {
	case p.Lost != nil:
		l = *p.Lost
	case p.Record != nil:
		l.Found = p.Record.Seq
	}
	l.Anew = core.Identity{Name: v.file.Name, Incarnation: next.Incarnation}
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	switch err := r.record.Choose(ctx, p, l); { // first: where it is not written, nothing has changed
	case errors.Is(err, record.ErrConflict):
		return fail(exitNo, "nothing was done: somebody else has written to the cluster's record meanwhile: look again")
	case err != nil:
		return fmt.Errorf("%w; to try again: the same command", err)
	}
	if err := pgagent.Keep(v.file.Data, next); err != nil {
		return fmt.Errorf("%w; to try again: the same command", err)
	}
	v.say("%s is to begin %s anew: start it now: primacy postgres -f %s", v.file.Name, v.name, v.path)
	return nil
}

// tell writes what the member has to standard output.
func (v *adopting) tell(j anewJSON) error {
	if v.output != "table" {
		return v.writeJSON(j)
	}
	last := fmt.Sprintf("%s on timeline %d", clean(j.Primary), j.PrimaryTimeline)
	if j.Seen > 0 {
		last = fmt.Sprintf("%d: %s", j.Seen, last)
	}
	return table(v.stdout, []string{"MEMBER", "TIMELINE", "WAL ENDS", "LIFE", "LAST RECORD SEEN"},
		[]string{clean(j.Member), fmt.Sprint(j.Timeline), j.LSN.String(), cmp.Or(clean(j.Life), "-"), last})
}

// joins says whether the cluster was adopted anew since this member ran last, and returns its
// record.
func (v *adopting) joins(ctx context.Context, r *reached, s core.State) (*core.Record, bool, error) {
	p, err := v.place(ctx, r)
	switch {
	case err != nil:
		return nil, false, err
	case p.Lost != nil:
		return nil, false, fail(exitNo, "not adopted: %w", p.Lost)
	case p.Record == nil || !p.Record.Succeeds(s.Noted):
		return nil, false, nil
	case v.primary:
		return nil, false, fail(exitNo, "not adopted: %s was adopted anew, and %s is its primary: without --primary "+
			"this member joins it", v.name, p.Record.Primary.Name)
	}
	return p.Record, true, nil
}

// waitsForAnew says why a member is not to be adopted from Patroni: it was adopted after the store
// was lost, and the cluster that it is for is not in the store.
func waitsForAnew(s core.State) error {
	if s.Seq > 0 || s.Adopted != core.AdoptedAnew && s.Joins == "" {
		return nil
	}
	return errors.New("this member was adopted after the store was lost, and the store has no record of a cluster " +
		"that was begun anew since: remove no data; docs/postgres-failover.md, \"The store's data are gone\", step 4")
}

// join has a member of the former life join. What it alone has is discarded once it runs.
func (v *adopting) join(ctx context.Context, rec *core.Record, s core.State, server *pgserver.Server, disk *clone.Dir,
) error {
	data := v.file.Data
	if pid, runs := pgserver.Foreign(server); runs {
		return fail(exitNo, "not adopted: a server runs in %s (process %d): end it", data, pid)
	}
	switch has, err := disk.Look(); {
	case err != nil:
		return err
	case has == core.DataReady: // else the primary's are copied
		last, err := pgserver.LastTimeline(ctx, server)
		if err != nil {
			return err
		}
		if !rec.Keeps(s.Noted, last) {
			return fail(exitNo, "not adopted: the data in %s are on timeline %d, and another member may have come to "+
				"a timeline of the same number: have the primary's copied: set %[1]s aside, remove "+
				"%[1]s.primacy/state.json, and start the member", data, last)
		}
	}
	directory, system := disk.Identity()
	next, err := pgagent.Adopted(data, cmp.Or(system, rec.SystemID), directory, core.AdoptedStandby)
	next.Joins = rec.Lives
	if err == nil {
		err = pgagent.Keep(data, next)
	}
	if err != nil {
		return err
	}
	v.say("%s is to join %s, whose primary is %s. What the primary lacks is kept in %s.primacy/lost. Start it now: "+
		"primacy postgres -f %s", v.file.Name, v.name, rec.Primary.Name, data, v.path)
	return nil
}
