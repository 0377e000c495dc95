package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgdemo"
	"github.com/primacy-go/primacy/cmd/internal/postgres/record"
)

const (
	pgDemoDir   = "primacy-postgres-"
	pgDemoLimit = 3 * time.Minute
)

// postgresDemoOptions are the flags of `primacy postgres demo`.
type postgresDemoOptions struct {
	bin, keep string
	dir       string // for root's child: where everything lies
}

func postgresDemoCommand(a *app) *cobra.Command {
	var o postgresDemoOptions
	c := &cobra.Command{
		Use:   "demo",
		Short: "See it work: three PostgreSQL servers and a writer, under four faults",
		Long: `Run three PostgreSQL servers and a writer on this machine, from nothing: on an embedded store, in a
temporary directory, with fsync. The primary is killed with all its processes, the next one is frozen, of the third only
the agent is killed, the fourth hands over as before an upgrade. The writer inserts a numbered row every 20 ms and
remembers which ones were acknowledged. At the end each of the three servers must have them all.

PostgreSQL does not run as root: root's demo runs as the user postgres, or nobody. It leaves nothing behind.

Exit codes: 0 no acknowledged row was lost, and all three servers have them; 1 not so; 125 it could not run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("ttl") {
				a.ttl = demoTTL
			}
			if a.ttl < 300*time.Millisecond || a.ttl > 10*time.Second {
				return fmt.Errorf("--ttl %v: use 300ms to 10s", a.ttl)
			}
			return o.run(cmd.Context(), a)
		},
	}
	c.Flags().StringVar(&o.bin, "bin", "", "where PostgreSQL's programs are (default: the newest installed)")
	c.Flags().StringVar(&o.keep, "keep", "", "keep the members' logs in this directory")
	c.Flags().StringVar(&o.dir, "dir", "", "")
	_ = c.Flags().MarkHidden("dir")
	return c
}

func (o *postgresDemoOptions) run(ctx context.Context, a *app) error {
	if o.keep != "" {
		if err := os.MkdirAll(o.keep, 0o755); err != nil {
			return fmt.Errorf("--keep: %w", err)
		}
	}
	if os.Geteuid() == 0 {
		return o.dropped(ctx, a)
	}
	ctx, stop := untilInterrupted(ctx)
	defer stop()
	dir, parent := o.dir, os.Getppid()
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", pgDemoDir); err != nil {
			return err
		}
	}
	defer func() {
		if o.dir == "" || os.Getppid() != parent { // else root's process removes it
			os.RemoveAll(dir)
		}
	}()
	defer func() {
		if err := o.keepLogs(dir, os.Geteuid()); err != nil {
			a.say("--keep: %s", oneLine(err))
		}
	}()
	err := o.play(ctx, a, dir)
	if ctx.Err() != nil {
		return &exitError{code: 130, err: errors.New("the demo was interrupted")}
	}
	return err
}

// keepLogs copies the logs in a directory of that user's.
func (o *postgresDemoOptions) keepLogs(dir string, uid int) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if o.keep == "" || err != nil {
		return err
	}
	for _, path := range logs {
		text, readErr := readOwn(path, uid)
		if readErr == nil {
			readErr = os.WriteFile(filepath.Join(o.keep, filepath.Base(path)), text, 0o600)
		}
		err = errors.Join(err, readErr)
	}
	return err
}

// readOwn reads a plain file of that user's. Root reads in a directory where the user may have put
// a link to any file of this machine.
func readOwn(path string, uid int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.Mode().IsRegular() || int(st.Uid) != uid {
		return nil, fmt.Errorf("%s is no plain file of user %d", path, uid)
	}
	return io.ReadAll(f)
}

// play runs the demo in a directory, and ends with nothing running.
func (o *postgresDemoOptions) play(ctx context.Context, a *app, dir string) error {
	for _, kv := range os.Environ() { // libpq's variables are the user's, for servers of his own
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "PG") {
			_ = os.Unsetenv(name)
		}
	}
	d := &postgresDemo{app: a, memory: pgdemo.NewMemory(), started: map[int]bool{}}
	if err := d.members(o, dir); err != nil {
		return err
	}
	if err := pgdemo.Adopt(); err != nil {
		return err
	}
	a.store, a.id = embeddedScheme+filepath.Join(dir, "store"), "demo"
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	keeper, ok := st.(record.Store)
	if !ok {
		return errors.New("the embedded store cannot keep a cluster's record")
	}
	name := agent.Prefix + demoName
	d.e, d.record = s.Election(name), record.New(keeper, name)
	var wg sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		wg.Wait()
		for _, n := range d.nodes {
			d.memory.Note(filepath.Join(n.dir, "data"))
		}
		if !pgdemo.Sweep(20*time.Second, d.memory) {
			a.say("processes of the demo are still there: see ps")
		}
	}()
	d.view = newView(a.stdout, d.picture)
	wg.Go(func() { d.watch(watching) })
	for _, n := range d.nodes {
		wg.Go(func() { d.look(watching, n) })
	}
	err = d.script(watching, &wg)
	d.view.close()
	if err != nil {
		return err
	}
	return d.verdict()
}

// pgNode is one member: an agent, its guardian and its server.
type pgNode struct {
	*node
	server pgdemo.Server
	last   atomic.Int64 // the largest row that its server has shown
}

// postgresDemo holds what the script needs.
type postgresDemo struct {
	*app
	view    *view
	nodes   []*pgNode
	e       *primacy.Election
	record  *record.Record
	writer  *pgdemo.Writer
	memory  *pgdemo.Memory
	bin     string
	version string
	now     reign
	told    [][]string
	rows    map[string]map[int64]bool

	mu   sync.Mutex
	line primacy.State // as last seen

	starting sync.Mutex
	started  map[int]bool // the process IDs of agents
}

// reign is who is the primary, under which token and timeline.
type reign struct {
	*pgNode
	token    primacy.Token
	timeline core.Timeline
}

func (r reign) String() string { return fmt.Sprintf("token %d, timeline %d", r.token, r.timeline) }

// watch follows the election for the picture, and takes note of the servers' shared memory.
func (d *postgresDemo) watch(ctx context.Context) {
	go func() {
		for st, err := range d.e.Observe(ctx, primacy.WholeLine) {
			if err == nil {
				d.mu.Lock()
				d.line = st
				d.mu.Unlock()
			}
		}
	}()
	for ctx.Err() == nil {
		for _, n := range d.nodes {
			d.memory.Note(filepath.Join(n.dir, "data"))
		}
		d.starting.Lock()
		pgdemo.Reap(func(pid int) bool { return d.started[pid] })
		d.starting.Unlock()
		_ = sleep(ctx, 200*time.Millisecond)
	}
}

// look asks one server for its last row, for the picture.
func (d *postgresDemo) look(ctx context.Context, n *pgNode) {
	for d.view.live && ctx.Err() == nil {
		if last, err := pgdemo.LastRow(ctx, n.server, time.Second); err == nil {
			n.last.Store(last)
		}
		_ = sleep(ctx, 250*time.Millisecond)
	}
}

// script is the story.
func (d *postgresDemo) script(ctx context.Context, wg *sync.WaitGroup) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pgDemoLimit,
		fmt.Errorf("the demo took more than %v: is the machine busy? --keep DIR keeps the members' logs", pgDemoLimit))
	defer cancel()
	d.view.line("three servers of PostgreSQL %s, fsync on; an embedded etcd, lease %v", d.version, d.ttl)
	d.view.line("they start from nothing; a commit will need one of two standbys")
	for _, n := range d.nodes {
		if err := d.up(n); err != nil {
			return err
		}
	}
	if err := d.primary(ctx, 0); err != nil {
		return err
	}
	d.view.line("%s has made the database and is the primary: %v", d.now.id, d.now)
	if err := d.whole(ctx); err != nil {
		return err
	}
	d.view.line("%s are copies of it; a writer begins: a row every 20ms", d.others())
	if err := d.await(ctx, "the writer's table", func() bool {
		return pgdemo.Prepare(ctx, d.servers(), 5*time.Second) == nil
	}); err != nil {
		return err
	}
	d.writer = pgdemo.NewWriter(d.servers(), d.ttl)
	writing, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	wg.Go(func() { d.writer.Run(writing); close(ended) })
	defer stop()
	for _, f := range []fault{{"machine lost", d.lose}, {"machine frozen", d.freezeOne}, {"agent killed", d.killAgent},
		{"switchover", d.switchOver}} {
		if err := d.suffer(ctx, f); err != nil {
			return err
		}
	}
	stop()
	<-ended
	return d.collect(ctx)
}

// fault is what happens to a primary. It returns what is to be done once another one leads.
type fault struct {
	name string
	do   func(ctx context.Context, n *pgNode) (after func() error, err error)
}

// suffer has one fault happen, tells what came of it, and waits until all is well again.
func (d *postgresDemo) suffer(ctx context.Context, f fault) error {
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	for {
		// On a busy machine another one may lead by now.
		if err := d.primary(ctx, d.now.token-1); err != nil {
			return err
		}
		former, began := d.now, time.Now()
		after, err := f.do(ctx, former.pgNode)
		if errors.Is(err, primacy.ErrNoLeader) || errors.Is(err, primacy.ErrNotInLine) {
			continue
		} else if err != nil {
			return err
		}
		if err := d.primary(ctx, former.token); err != nil {
			return err
		}
		gap := d.writer.Gap(began).Round(10 * time.Millisecond)
		d.view.line("   %s is the primary: %v; no row for %v", d.now.id, d.now, gap)
		d.told = append(d.told, []string{f.name, former.id, d.now.id, fmt.Sprint(d.now.token),
			fmt.Sprint(d.now.timeline), gap.String()})
		if after != nil {
			if err := after(); err != nil {
				return err
			}
		}
		back := time.Now()
		if err := d.whole(ctx); err != nil {
			return err
		}
		d.view.line("   %s follow %s, %v later", d.others(), d.now.id, time.Since(back).Round(10*time.Millisecond))
		return nil
	}
}

func (d *postgresDemo) lose(_ context.Context, n *pgNode) (func() error, error) {
	d.view.line("1. %s loses power: SIGKILL to agent, guardian, server: %d processes", n.id,
		pgdemo.TreeOf(n.pid()).Kill())
	n.awaitExit(time.Second)
	n.set("no power")
	return func() error {
		d.view.line("   %s starts again, with the data that it had", n.id)
		return d.up(n)
	}, nil
}

func (d *postgresDemo) freezeOne(ctx context.Context, n *pgNode) (func() error, error) {
	insert, err := d.writer.Pin(ctx, n.server)
	if err != nil {
		return nil, primacy.ErrNoLeader // its server has just ended
	}
	n.set("frozen")
	t := pgdemo.TreeOf(n.pid())
	all := t.Freeze()
	d.view.line("2. %s freezes: SIGSTOP to agent, guardian, server: %d processes", n.id, all)
	frozen, thaw := context.WithCancel(ctx)
	held, acknowledged := make(chan struct{}), make(chan bool, 1)
	go func() { t.Hold(frozen); close(held) }()
	go func() { acknowledged <- insert(pgDemoLimit) }()
	return func() error {
		thaw()
		<-held
		how := "SIGCONT"
		if ended := all - t.Thaw(); ended > 0 {
			how = fmt.Sprintf("its guardian had ended %d of its processes in time", ended)
		}
		n.set("")
		d.view.line("   %s thaws: %s", n.id, how)
		said := "not acknowledged"
		if <-acknowledged {
			said = "acknowledged"
		}
		d.view.line("   the row of a client that was still connected to it: %s", said)
		return nil
	}, nil
}

func (d *postgresDemo) killAgent(_ context.Context, n *pgNode) (func() error, error) {
	if err := n.signal(syscall.SIGKILL); err != nil {
		return nil, err
	}
	d.view.line("3. only the agent of %s is killed: its guardian ends the server", n.id)
	n.awaitExit(time.Second)
	n.set("agent killed")
	return func() error {
		d.view.line("   %s's agent starts again", n.id)
		return d.up(n)
	}, nil
}

func (d *postgresDemo) switchOver(ctx context.Context, n *pgNode) (func() error, error) {
	d.view.line("4. %s is asked to hand over, as before an upgrade", n.id)
	_, err := d.e.Ask(ctx, primacy.Request{Reason: "the demo asks"})
	return nil, err
}

// primary waits for a term newer than the token whose leader is the primary, with the writer's last
// row acknowledged there.
func (d *postgresDemo) primary(ctx context.Context, after primacy.Token) error {
	return d.await(ctx, "a primary", func() bool {
		r := d.leading(ctx)
		if r.pgNode == nil || r.token <= after {
			return false
		}
		if d.writer != nil {
			if _, _, by, at := d.writer.Counts(); by != r.id || time.Since(at) > time.Second {
				return false
			}
		}
		d.now = r
		return true
	})
}

// leading returns who is the primary according to both, the election and the cluster's record.
func (d *postgresDemo) leading(ctx context.Context) (r reign) {
	l, err := d.e.Leader(ctx)
	if err != nil {
		return r
	}
	rec, err := d.record.Read(ctx)
	if err != nil || rec == nil || primacy.Token(rec.Token) != l.Token || rec.Primary.Name != l.ID {
		return r
	}
	for _, n := range d.nodes {
		if n.id == l.ID {
			r = reign{n, l.Token, rec.Timeline}
		}
	}
	return r
}

// whole waits until both others are standbys that a commit may rest on.
func (d *postgresDemo) whole(ctx context.Context) error {
	return d.await(ctx, "both standbys", func() bool {
		if r := d.leading(ctx); r.pgNode == nil {
			return false
		} else if r.token != d.now.token {
			d.view.line("   %s is the primary now: %v. Is this machine busy?", r.id, r)
			d.now = r
		}
		rec, err := d.record.Read(ctx)
		return err == nil && rec != nil && primacy.Token(rec.Token) == d.now.token && len(rec.Voters) == len(d.nodes)-1
	})
}

// collect reads what each server has, once all have what the primary has.
func (d *postgresDemo) collect(ctx context.Context) error {
	d.view.line("the writer stops; what has each server?")
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("30s"))
	defer cancel()
	err := d.await(ctx, "the same rows on all three servers", func() bool {
		d.rows = map[string]map[int64]bool{}
		for _, n := range d.nodes {
			rows, err := pgdemo.Rows(ctx, n.server, 5*time.Second)
			if err != nil {
				return false
			}
			d.rows[n.id] = rows
		}
		v := d.writer.Judge(d.now.id, d.rows)
		return len(v.Lost) > 0 || len(v.Missing) == 0
	})
	if len(d.rows) == len(d.nodes) {
		return nil // the verdict tells
	}
	return err
}

// verdict tells what became of the rows.
func (d *postgresDemo) verdict() error {
	fmt.Fprintln(d.stdout)
	rows := append([][]string{{"FAULT", "OF", "THEN PRIMARY", "TOKEN", "TIMELINE", "NO ROW FOR"}}, d.told...)
	if err := table(d.stdout, rows...); err != nil {
		return err
	}
	v := d.writer.Judge(d.now.id, d.rows)
	missing := 0
	for _, m := range v.Missing {
		missing = max(missing, len(m))
	}
	fmt.Fprintf(d.stdout, "\nrows acknowledged: %d\nlost: %d\non all three servers: %d\n", v.Acknowledged, len(v.Lost),
		v.Acknowledged-missing)
	fmt.Fprintf(d.stdout, "without an answer: %d, of which %d were committed\n", v.Unknown, v.UnknownThere)
	switch {
	case len(v.Lost) > 0:
		return fail(exitNo, "acknowledged rows were lost: %s; please report it, with the logs of --keep DIR",
			some(v.Lost))
	case v.Acknowledged == 0:
		return fail(exitNo, "no row was acknowledged")
	}
	for _, n := range d.nodes {
		if m := v.Missing[n.id]; len(m) > 0 {
			return fail(exitNo, "%s does not have the rows %s after 30s", n.id, some(m))
		}
	}
	return nil
}

func some(rows []int64) string {
	if len(rows) > 20 {
		return fmt.Sprintf("%d … %d, %d in all", rows[0], rows[len(rows)-1], len(rows))
	}
	return strings.Trim(fmt.Sprint(rows), "[]")
}

func (d *postgresDemo) await(ctx context.Context, what string, ok func() bool) error {
	for !ok() {
		if err := sleep(ctx, 30*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
	}
	return nil
}

func (d *postgresDemo) servers() (all []pgdemo.Server) {
	for _, n := range d.nodes {
		all = append(all, n.server)
	}
	return all
}

// others names those who are not the primary.
func (d *postgresDemo) others() string {
	var names []string
	for _, n := range d.nodes {
		if n != d.now.pgNode {
			names = append(names, n.id)
		}
	}
	return strings.Join(names, " and ")
}

// picture is what the members say of themselves, and the writer.
func (d *postgresDemo) picture() []string {
	d.mu.Lock()
	line := d.line
	d.mu.Unlock()
	rows := []string{fmt.Sprintf("  %-8s %-24s %8s %10s", "MEMBER", "STATE", "TOKEN", "LAST ROW")}
	for _, n := range d.nodes {
		state, token, last := cmp.Or(n.say(), saidOf(line, n.id)), "", "-"
		if line.Leader != nil && line.Leader.ID == n.id {
			token = fmt.Sprint(line.Leader.Token)
		}
		if row := n.last.Load(); row > 0 {
			last = fmt.Sprint(row)
		}
		rows = append(rows, fmt.Sprintf("  %-8s %-24s %8s %10s", n.id, state, token, last))
	}
	if d.writer != nil {
		n, unknown, _, at := d.writer.Counts()
		text := fmt.Sprintf("  writer: %d rows acknowledged, %d without an answer", n, unknown)
		if since := time.Since(at); n > 0 && since > 200*time.Millisecond {
			text += "; none for " + bar(min(since, 2*d.ttl), 2*d.ttl)
		}
		rows = append(rows, "", text)
	}
	return rows
}

// phases are what members do, in PostgreSQL's words.
var phases = map[core.Phase]string{
	core.PhaseEmpty: "no data yet", core.PhaseStopped: "server stopped", core.PhaseSealed: "standby, not connected",
	core.PhaseFollowing: "standby, streams", core.PhaseRejoining: "rejoins: rewind or clone",
	core.PhaseSurveying: "asks who is to be primary", core.PhasePromoting: "is promoted", core.PhaseLeading: "PRIMARY",
	core.PhaseBroken: "broken: see its log",
}
