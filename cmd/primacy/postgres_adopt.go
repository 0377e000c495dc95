package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	pgagent "github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
	"github.com/primacy-go/primacy/cmd/internal/postgres/patroni"
	pgserver "github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/etcdstore"
)

// adopting is `primacy postgres adopt`.
type adopting struct {
	*cluster
	patroni, secrets string
	primary, undo    bool
	anew, accept     bool
	yes              bool // do not ask
	wait             time.Duration
}

func postgresAdoptCommand(a *app) *cobra.Command {
	v := &adopting{cluster: &cluster{app: a}}
	c := &cobra.Command{
		Use:   "adopt -f FILE [--primary | --undo | --anew] | --patroni FILE",
		Short: "Take over the database of a cluster that Patroni has kept, or whose store was lost",
		Long: `Take over an existing database from Patroni, on one machine, while its server goes on. Nothing is copied.
The steps are in docs/postgres-migration.md.

  primacy postgres adopt --patroni patroni.yml --secrets /etc/primacy > pg.toml
  primacy postgres adopt -f pg.toml                on a standby
  primacy postgres adopt -f pg.toml --primary      on the primary

With --patroni it writes a member's file, made of Patroni's, to standard output, and to standard error a line for each
thing that it could not take over. --secrets names the directory of the files with the passwords, which it writes there.

With -f it looks whether the member can take the data over, and notes that it is to. Patroni must be paused, and then
stopped: on this machine for a standby, on all machines for the primary. The server is not touched. The member that is
started next shuts it down and starts it again, once the primary's was adopted too.

With --undo, as long as there is no record of the cluster, that note goes: Patroni may have the data again. The member
must be stopped. Patroni is paused then, as before.

Where the store was lost ("The store's data are gone" in docs/postgres-failover.md):

  primacy postgres adopt -f FILE --anew                  on each machine: what its stopped member has
  primacy postgres adopt -f FILE --anew --accept-loss    on the one with most: it is to begin the cluster anew
  primacy postgres adopt -f FILE                         on the others: they are to join that

With --anew it starts the member's server as a standby that follows nobody, has it read all of its WAL, and stops it.
With --accept-loss it then writes into the store that this member alone may begin the cluster anew. What other members
have and this one lacks is lost then. Nobody else looks what they have: that is the choice of whoever types it.

Exit 1 if something has to be done first: nothing was noted then.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case v.patroni != "" && v.path != "":
				return errors.New("postgres adopt: give --patroni FILE to make a file, or -f FILE to take over")
			case v.patroni != "":
				return v.convert()
			case v.path == "":
				return errors.New("postgres adopt: give -f FILE, or --patroni FILE")
			}
			switch {
			case v.anew && (v.primary || v.undo):
				return errors.New("postgres adopt: --anew goes without --primary and --undo")
			case v.accept && !v.anew:
				return errors.New("postgres adopt: --accept-loss goes with --anew")
			case v.anew:
				return v.beginAnew(cmd.Context())
			case v.undo:
				return v.revoke(cmd.Context())
			}
			return v.adopt(cmd.Context())
		},
	}
	c.Flags().StringVarP(&v.path, "file", "f", "", "the file of this member")
	c.Flags().BoolVar(&v.primary, "primary", false, "this is the primary; Patroni is stopped on all machines")
	c.Flags().BoolVar(&v.undo, "undo", false, "forget that this member was adopted: Patroni may have its data")
	c.Flags().BoolVar(&v.anew, "anew", false, "the store was lost: say what this member has; see --accept-loss")
	c.Flags().BoolVar(&v.accept, "accept-loss", false, "with --anew: begin the cluster anew with this member's data")
	c.Flags().BoolVar(&v.yes, "yes", false, "do not ask")
	c.Flags().StringVar(&v.patroni, "patroni", "", "Patroni's file of this member, to make one of ours from")
	c.Flags().StringVar(&v.secrets, "secrets", "", "with --patroni: write the passwords into files there")
	c.Flags().DurationVar(&v.wait, "wait", time.Minute, "how long to wait until a Patroni that was stopped is gone "+
		"from the store; with --anew, for a server that reads no more WAL")
	return c
}

// convert makes a file of ours.
func (v *adopting) convert() error {
	text, err := os.ReadFile(v.patroni)
	if err != nil {
		return err
	}
	dir := "/etc/primacy"
	if v.secrets != "" {
		if dir, err = filepath.Abs(v.secrets); err != nil {
			return err
		}
	}
	c, err := patroni.Convert(text, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", v.patroni, err)
	}
	for _, path := range slices.Sorted(maps.Keys(c.Secrets)) {
		if v.secrets == "" {
			c.Notes = append(c.Notes, "passwords: give --secrets DIR, which writes "+path)
			continue
		}
		if err := writeSecret(path, c.Secrets[path]); err != nil {
			return err
		}
	}
	for _, one := range c.Notes {
		fmt.Fprintln(v.stderr, printable(one))
	}
	_, err = fmt.Fprint(v.stdout, c.TOML)
	return err
}

// writeSecret writes a file that its owner alone can read, and none over another one.
func writeSecret(path, text string) error {
	old, err := os.ReadFile(path)
	if err == nil && string(old) == text {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o077 == 0 {
			return err
		}
		return os.Chmod(path, 0o600)
	}
	if err == nil {
		return fmt.Errorf("%s is there, with other content: remove it, or give another --secrets", path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// adopt looks whether this member can take the data over, and notes that it is to.
func (v *adopting) adopt(ctx context.Context) error {
	r, done, err := v.reach(ctx)
	if err != nil {
		return err
	}
	defer done()
	server, disk, err := v.hold(nil)
	if err != nil {
		return err
	}
	defer disk.Close()
	former, err := pgagent.StateOf(v.file.Data)
	if err != nil {
		return err
	}
	if rec, joins, err := v.joins(ctx, r, former); err != nil {
		return err
	} else if joins {
		return v.join(ctx, rec, former, server, disk)
	}
	if why := waitsForAnew(former); why != nil {
		return fail(exitNo, "not adopted: %w", why)
	}
	as := core.AdoptedStandby
	if v.primary {
		as = core.AdoptedPrimary
	}
	if err := v.fits(ctx, r, server, disk); err != nil {
		var coded *exitError
		if errors.As(err, &coded) || errors.Is(err, context.Canceled) {
			return err
		}
		return fail(exitNo, "not adopted: %w", err)
	}
	directory, system := disk.Identity()
	s, err := pgagent.Adopted(v.file.Data, system, directory, as)
	if err == nil {
		err = pgagent.Keep(v.file.Data, s)
	}
	if err != nil {
		return err
	}
	v.say("%s is adopted as a %s: start it now: primacy postgres -f %s", v.file.Name, as, v.path)
	return nil
}

// hold returns the server and the data directory of a member that does not run: nobody else works
// there until the directory is closed. What the server prints goes to output, nil: to standard
// error.
func (v *adopting) hold(output *os.File) (*pgserver.Server, *clone.Dir, error) {
	member := v.postgresMember(v.file)
	member.Server.Output = output
	server, err := pgserver.New(member.Server, pgserver.Exec{})
	if err != nil {
		return nil, nil, err
	}
	disk, err := clone.Open(member.Clone)
	return server, disk, err
}

// revoke forgets an adoption that did not come about.
func (v *adopting) revoke(ctx context.Context) error {
	r, done, err := v.reach(ctx)
	if err != nil {
		return err
	}
	defer done()
	disk, err := clone.Open(v.postgresMember(v.file).Clone) // the member does not run meanwhile
	if err != nil {
		return err
	}
	defer disk.Close()
	s, err := pgagent.StateOf(v.file.Data)
	if err != nil {
		return err
	}
	rec, err := r.record.Read(ctx)
	switch {
	case err != nil:
		return err
	case rec != nil || s.Seq > 0:
		return fail(exitNo, "nothing was changed: there is a record of %s: 'primacy postgres leave' gives it back",
			v.name)
	case s.Adopted == "":
		return fail(exitNo, "nothing was changed: %s was not adopted", v.file.Data)
	case s.Adopted == core.AdoptedAnew:
		return fail(exitNo, "nothing was changed: %s was not adopted from Patroni: to begin with another member "+
			"choose that one", v.file.Data)
	}
	if s.Adopted != core.AdoptedStandby {
		p := former{r, v.file.Name, s.SystemID, 0}
		// First: else a Patroni on another machine would elect.
		there, err := p.pause(ctx, true)
		if err != nil {
			return err
		}
		if !there {
			v.say("Patroni's configuration is not in the store any more, so Patroni is not paused")
		}
		if err := p.initialize(ctx, s.SystemID); err != nil {
			return err
		}
		if err := freeCommits(v.file.Data); err != nil {
			return err
		}
	}
	if err := pgagent.Leave(v.file.Data); err != nil {
		return err
	}
	v.say("%s is adopted no more: start Patroni on the primary first", v.file.Name)
	return nil
}

// freeCommits takes out of postgresql.auto.conf for whom commits wait, where a takeover had begun:
// its server was started with a name that no standby has. Patroni leaves that file as it is, and
// under it too each commit would wait for ever.
func freeCommits(data string) error {
	path := filepath.Join(data, "postgresql.auto.conf")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var next strings.Builder
	for line := range strings.Lines(string(text)) {
		ours := strings.Contains(line, pgserver.Sync{}.String())
		if !ours || !strings.HasPrefix(line, "synchronous_standby_names = ") {
			next.WriteString(line)
		}
	}
	if next.Len() == len(text) {
		return nil
	}
	return durable.Replace(path, []byte(next.String()))
}

// fits says why the data cannot be taken over.
func (v *adopting) fits(ctx context.Context, r *reached, server *pgserver.Server, disk *clone.Dir) error {
	data := v.file.Data
	if s, err := pgagent.StateOf(data); err != nil || s.Incarnation != "" && (s.Adopted == "" || s.Seq > 0) {
		return cmp.Or(err, fmt.Errorf("%s is a member's already: %s.primacy/state.json", data, data))
	}
	if state, err := disk.Look(); err != nil || state != core.DataReady {
		return cmp.Or(err, fmt.Errorf("there is no database in %s", data))
	}
	if _, runs := pgserver.Foreign(server); !runs {
		return fmt.Errorf("no server runs in %s: start Patroni, pause it (patronictl pause --wait), and stop it again",
			data)
	}
	rec, err := r.record.Read(ctx)
	switch {
	case err != nil:
		return err
	case rec != nil && v.primary:
		return fmt.Errorf("%s is the primary of %s already: without --primary this member is adopted as a standby",
			rec.Primary.Name, v.name)
	}
	m, err := v.manner(ctx, server)
	if err != nil {
		return err
	}
	p := former{r, v.file.Name, m.SystemID, m.Timeline}
	if err := p.fits(ctx, rec == nil); err != nil {
		return err
	}
	if err := v.parameters(ctx, r, server, m); err != nil {
		return err
	}
	if err := p.awaitGone(ctx, v.primary, v.wait, v.say); err != nil {
		return err
	}
	if v.primary {
		if err := pgserver.Prepare(ctx, server); err != nil {
			return err
		}
	}
	return layout(data, m)
}

// manner asks the running server how it was set up.
func (v *adopting) manner(ctx context.Context, server *pgserver.Server) (pgserver.Manner, error) {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	m, err := pgserver.MannerOf(ctx, server)
	if err != nil {
		return m, fmt.Errorf("user %s does not get in over the socket in %s: %w. Let it in, for replication too: "+
			"\"local "+
			"all,replication %[1]s peer\" as the first line of pg_hba.conf, and reload", v.file.Superuser,
			v.file.SocketDir, err)
	}
	here, err := os.Stat(v.file.Data)
	if err != nil {
		return m, err
	}
	there, err := os.Stat(m.DataDirectory)
	switch {
	case err != nil || !os.SameFile(here, there):
		return m, fmt.Errorf("the server at %s works in %s, and not in %s", v.file.SocketDir, m.DataDirectory,
			v.file.Data)
	case m.Primary && !v.primary:
		return m, errors.New("its server is a primary: give --primary, if no other member is the cluster's primary")
	case !m.Primary && v.primary:
		return m, errors.New("its server is a standby, and --primary was given")
	}
	return m, nil
}

// parameters says why the shared configuration does not do for this server.
func (v *adopting) parameters(ctx context.Context, r *reached, server *pgserver.Server, m pgserver.Manner) error {
	d, _, err := r.readConfig(ctx)
	if err != nil {
		return err
	}
	s, _, err := d.Read()
	if err == nil {
		err = m.Lacks(s.Parameters)
	}
	if err == nil {
		err = server.Try(ctx, s.Parameters)
	}
	if err != nil {
		return fmt.Errorf("the shared configuration, %s: %w", r.shared.Key(), err)
	}
	return nil
}

// layout has the data directory hold the files that primacy's server reads. Debian keeps them
// elsewhere.
func layout(data string, m pgserver.Manner) error {
	write := func(name string, text []byte) error {
		path := filepath.Join(data, name)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			there, err := os.ReadFile(path)
			if err == nil && !bytes.Equal(there, text) {
				err = fmt.Errorf("%s is not the file that the server uses, and primacy's would use it: move it away",
					path)
			}
			return err
		}
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		return errors.Join(err, f.Sync(), f.Close())
	}
	for _, one := range []struct{ name, from string }{{"pg_hba.conf", m.HBAFile}, {"pg_ident.conf", m.IdentFile}} {
		if filepath.Clean(one.from) == filepath.Join(data, one.name) {
			continue
		}
		text, err := os.ReadFile(one.from)
		if err == nil {
			err = write(one.name, text)
		}
		if err != nil {
			return err
		}
	}
	text := fmt.Sprintf("# Written by 'primacy postgres adopt'.\ninclude '%s'\n", strings.ReplaceAll(m.ConfigFile,
		"'", "''"))
	if filepath.Clean(m.ConfigFile) == filepath.Join(data, "postgresql.conf") {
		return nil
	}
	return write("postgresql.conf", []byte(text))
}

// former is the Patroni that has kept a cluster, as its keys show it.
type former struct {
	*reached
	me, systemID string
	timeline     core.Timeline // of a primary
}

// kept says who keeps the database of a member whose cluster has no record: Patroni, or nobody.
func (c *cluster) kept(ctx context.Context, r *reached) (well string, err error) {
	s, err := pgagent.StateOf(c.file.Data)
	if err == nil && s.Adopted == core.AdoptedAnew {
		return "", errors.New("this member was chosen to begin the cluster anew, and the store does not say so: " +
			"choose again: 'primacy postgres adopt --anew'")
	}
	if err != nil || s.Adopted != "" {
		return fmt.Sprintf("adopted as a %s", s.Adopted), err
	}
	system, err := clone.SystemID(c.postgresMember(c.file).Clone)
	if err != nil {
		return "", err
	}
	keys, err := former{r, c.file.Name, system, 0}.keys(ctx)
	if p := (former{systemID: system}); err != nil || p.ours(keys["initialize"]) {
		return "kept by Patroni; 'primacy postgres adopt' takes it over", err
	}
	return "", fmt.Errorf("%s holds a database, and the store knows no cluster %s, nor does Patroni there: give an "+
		"empty "+
		"directory", c.file.Data, c.file.Cluster)
}

// keys reads Patroni's keys, by their names.
func (p former) keys(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	dir := pgconfig.Dir(p.namespace, p.name)
	all, err := p.keeper.Raw().Beside(ctx, dir)
	if err != nil {
		return nil, fail(exitUnreachable, "%w", err)
	}
	keys := map[string]string{}
	for _, k := range all {
		keys[strings.TrimPrefix(k.Key, dir)] = string(k.Value)
	}
	return keys, err
}

// fits says why this is not the cluster that Patroni keeps there, or its primary.
func (p former) fits(ctx context.Context, paused bool) error {
	keys, err := p.keys(ctx)
	if err != nil {
		return err
	}
	dir := pgconfig.Dir(p.namespace, p.name)
	var dynamic struct {
		Pause bool `json:"pause"`
	}
	_ = json.Unmarshal([]byte(keys["config"]), &dynamic)
	var history [][]any
	_ = json.Unmarshal([]byte(keys["history"]), &history)
	switch is := keys["initialize"]; {
	case is == "":
		return fmt.Errorf("there is no cluster of Patroni at %s in this store: are cluster, namespace and store right?",
			dir)
	case !p.ours(is):
		return fmt.Errorf("the cluster of Patroni at %s is database system %s, and the data are of %s", dir, is,
			p.systemID)
	case paused && !dynamic.Pause && is == p.systemID: // else a takeover had ended the pause, and was killed
		return errors.New("the cluster is not paused by Patroni: patronictl pause --wait, and stop Patroni then")
	}
	if n := len(history); p.timeline > 0 && n > 0 && len(history[n-1]) > 0 {
		if ended, ok := history[n-1][0].(float64); ok && core.Timeline(ended) >= p.timeline {
			return fmt.Errorf("the data are on timeline %d, which has ended by Patroni's history: is another member "+
				"the "+
				"primary?", p.timeline)
		}
	}
	return nil
}

// running says which Patroni still holds a key, or is said to lead. all says that none may.
func (p former) running(ctx context.Context, all bool) (string, error) {
	keys, err := p.keys(ctx)
	if err != nil {
		return "", err
	}
	var left []string
	for key := range keys {
		if name, ok := strings.CutPrefix(key, "members/"); ok && (all || name == p.me) {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	leader := keys["leader"]
	switch {
	case len(left) > 0:
		return "Patroni runs on " + strings.Join(left, ", ") + ", or was stopped a moment ago", nil
	case all && leader != "" && leader != p.me:
		return leader + " holds Patroni's leader key", nil
	}
	return "", nil
}

// awaitGone waits until Patroni's keys are gone: after it was stopped in a pause they stay for its
// ttl.
func (p former) awaitGone(ctx context.Context, all bool, wait time.Duration, say func(string, ...any)) error {
	end := time.Now().Add(wait)
	for told := false; ; told = true {
		why, err := p.running(ctx, all)
		switch {
		case err != nil || why == "":
			return err
		case time.Now().After(end):
			return fmt.Errorf("%s: stop it (systemctl disable --now patroni) on %s, and wait until its keys in %s are "+
				"gone",
				why, map[bool]string{true: "all machines", false: "this machine"}[all], pgconfig.Dir(p.namespace,
					p.name))
		case !told:
			say("%s: waiting until its keys in the store are gone", why)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// takeOver is asked before a member begins where primacy has no record of the cluster. For one that
// was adopted as the primary it looks once more whether Patroni is gone, and ends the pause. One
// that was not adopted would make a new database.
func (p former) takeOver(ctx context.Context, adopted core.Adoption) error {
	if adopted == "" {
		keys, err := p.keys(ctx)
		if is := keys["initialize"]; err == nil && is != "" {
			err = fmt.Errorf("there is a cluster of Patroni at %s: take it over (docs/postgres-migration.md), or give "+
				"this one another name or namespace", pgconfig.Dir(p.namespace, p.name))
		}
		return err
	}
	if why, err := p.running(ctx, true); err != nil || why != "" {
		return cmp.Or(err, fail(exitUsage, "not taken over, and nothing was touched: %s: stop it on all machines", why))
	}
	if err := p.fits(ctx, adopted == core.AdoptedPrimary); err != nil {
		var coded *exitError
		if errors.As(err, &coded) {
			return err
		}
		return fail(exitUsage, "not taken over, and nothing was touched: %w", err)
	}
	// First: once the pause is over, a Patroni whose machine was off would elect another primary.
	if err := p.initialize(ctx, patroni.Guarded(p.systemID)); err != nil {
		return err
	}
	_, err := p.pause(ctx, false)
	return err
}

// initialize writes whose database Patroni keeps, over what is there of this database.
func (p former) initialize(ctx context.Context, value string) error {
	key := etcdstore.BesideWrite{Key: pgconfig.Dir(p.namespace, p.name) + "initialize", Value: []byte(value)}
	key.Only = func(now etcdstore.BesideKey) bool { return p.ours(string(now.Value)) }
	for {
		ok, err := p.keeper.Raw().WriteBeside(ctx, "", 0, key)
		if ok || err != nil {
			return err
		}
	}
}

// ours says whether that is the key initialize of this database, also while primacy keeps it.
func (p former) ours(initialize string) bool {
	return initialize == p.systemID || initialize == patroni.Guarded(p.systemID)
}

// pause begins or ends the pause that Patroni sees. It does neither where there is no configuration
// of the cluster any more: a new one that says nothing else would take the place of what Patroni
// has on disk.
func (p former) pause(ctx context.Context, on bool) (there bool, err error) {
	_, is, _, err := p.shared.Change(ctx, func(d pgconfig.Document) (pgconfig.Document, error) {
		if delete(d, "pause"); on && d != nil {
			d["pause"] = true
		}
		return d, nil
	})
	return is != nil, err
}
