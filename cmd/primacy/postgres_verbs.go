package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgfile"
	"github.com/primacy-go/primacy/cmd/internal/postgres/record"
)

// cluster is what a verb about a cluster needs: its store and its name, from the file of a member
// or from flags.
type cluster struct {
	*app
	path, name string
	namespace  string       // of the shared configuration
	file       *pgfile.File // nil without -f
}

func (c *cluster) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&c.path, "file", "f", "", "the file of any member: it says which store and which cluster")
	cmd.Flags().StringVar(&c.name, "cluster", "", "the cluster's name, in place of -f; --store says where it is")
	cmd.Flags().StringVar(&c.namespace, "namespace", pgconfig.Namespace, "with --cluster: the members' namespace")
}

// election returns the name of the cluster's election.
func (c *cluster) election() (string, error) {
	if c.path != "" {
		f, err := pgfile.Load(c.path)
		if err == nil { // --id is who asks
			err = c.saidByFile(c.path, "store", "ttl", "cluster", "namespace")
		}
		if err != nil {
			return "", err
		}
		c.file, c.store, c.name, c.namespace = f, f.Store, f.Cluster, f.Namespace
	}
	if c.name == "" {
		return "", errors.New("postgres: give -f FILE, or --cluster NAME and --store")
	}
	return agent.Prefix + c.name, nil
}

func postgresListCommand(a *app) *cobra.Command {
	c := &cluster{app: a}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the members of a cluster: role, state, timeline, lag, voters",
		Long: `Show the members of a PostgreSQL cluster, and in one sentence what a commit needs and what a
failover needs. Exit 1 if nobody is the primary.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.list(cmd.Context()) },
	}
	c.flags(cmd)
	return cmd
}

// memberJSON is one member, for people and programs.
type memberJSON struct {
	Name     string        `json:"name"`
	Address  string        `json:"address"`
	Role     string        `json:"role"` // primary, standby, or empty: not known
	State    core.Phase    `json:"state"`
	Why      string        `json:"why,omitempty"`
	Voter    bool          `json:"voter"`
	Timeline core.Timeline `json:"timeline,omitempty"`
	LSN      core.LSN      `json:"lsn,omitempty"`
	// The last task of a person that it has carried out.
	Instructed  uint64 `json:"instructed,string,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`
	NoSync      bool   `json:"nosync,omitempty"`  // commits do not wait for it
	Leaving     bool   `json:"leaving,omitempty"` // that is so for it is to be made anew
	NoFailover  bool   `json:"nofailover,omitempty"`
	// The version of the shared configuration that it has judged last; why that is not in force.
	Config         uint64   `json:"config,string,omitempty"`
	Refused        string   `json:"config_refused,omitempty"`
	PendingRestart []string `json:"pending_restart,omitempty"` // parameters that wait for one
	Held           []string `json:"held,omitempty"`            // those that stay larger than they were asked for
	// Settings of primacy that its server has from elsewhere, each as NAME (FILE:LINE).
	Overridden []string `json:"overridden,omitempty"`
	DiskFull   []string `json:"disk_full,omitempty"` // directories whose file system is full, or nearly so
	heard      core.Position
}

// clusterJSON is what list tells.
type clusterJSON struct {
	Cluster string       `json:"cluster"`
	Primary string       `json:"primary"` // empty: nobody
	Token   uint64       `json:"token,string"`
	Record  *core.Record `json:"record"`
	Members []memberJSON `json:"members"`
	Text    string       `json:"text"`
}

// reached is a cluster, as its store shows it.
type reached struct {
	*cluster
	election *primacy.Election
	record   *record.Record
	shared   *pgconfig.Config
	keeper   postgresStore
}

// reach opens the store. Call done when it is no longer needed.
func (c *cluster) reach(ctx context.Context) (r *reached, done func(), err error) {
	name, err := c.election()
	if err != nil {
		return nil, nil, err
	}
	return c.open(ctx, name)
}

// open is reach of the store that --store names, for that election.
func (c *cluster) open(ctx context.Context, election string) (r *reached, done func(), err error) {
	s, st, done, err := c.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return nil, nil, err
	}
	keeper, ok := st.(postgresStore)
	if !ok {
		done()
		return nil, nil, fmt.Errorf("postgres: the store %s keeps no cluster: use that of the members",
			doctor.Public(c.store))
	}
	return &reached{c, s.Election(election), record.New(keeper, election),
		pgconfig.Of(keeper.Raw(), pgconfig.Key(c.namespace, c.name)), keeper}, done, nil
}

// now reads how the cluster is. Its error is of exit code 1 where there is none.
func (r *reached) now(ctx context.Context) (clusterJSON, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	line, err := r.election.State(ctx)
	if err != nil {
		return clusterJSON{}, err
	}
	rec, err := r.read(ctx)
	if err != nil {
		return clusterJSON{}, err
	}
	if rec == nil && line.Leader == nil && len(line.Waiting) == 0 {
		return clusterJSON{}, fail(exitNo, "there is no cluster %s in this store", clean(r.name))
	}
	return describeCluster(r.name, line, rec), nil
}

// read reads the record. Its error is of exit code 1 where the store was lost. This machine's
// member may know that, and not have said so.
func (r *reached) read(ctx context.Context) (*core.Record, error) {
	var s core.State
	if r.file != nil {
		s, _ = agent.StateOf(r.file.Data) // before the record; another user may not be able to read it
	}
	rec, err := r.record.Read(ctx)
	var lost *core.Lost
	if err == nil && r.file != nil {
		lost = s.Forgotten(r.file.Name, rec)
	}
	if lost != nil || errors.As(err, &lost) {
		return nil, fail(exitNo, "%w", lost)
	}
	return rec, err
}

func (c *cluster) list(ctx context.Context) error {
	r, done, err := c.reach(ctx)
	if err != nil {
		return err
	}
	defer done()
	j, err := r.now(ctx)
	if err != nil {
		return err
	}
	if c.output != "table" {
		err = c.writeJSON(j)
	} else {
		err = j.write(c.stdout)
	}
	if err == nil && j.Primary == "" {
		return &exitError{code: exitNo}
	}
	return err
}

// describeCluster puts together what the election and the record say.
func describeCluster(name string, line primacy.State, rec *core.Record) clusterJSON {
	j := clusterJSON{Cluster: name, Record: rec, Members: []memberJSON{}}
	entries := line.Waiting
	if line.Leader != nil {
		entries = append([]primacy.Entry{*line.Leader}, entries...)
		j.Token = uint64(line.Leader.Token)
	}
	said := map[string]agent.Said{}
	for i, e := range entries {
		var x agent.Said
		_ = json.Unmarshal(e.Value, &x) // what cannot be read is shown as not known
		said[e.ID] = x
		m := memberJSON{Name: e.ID, Address: x.Address, State: x.Phase, Why: x.Why, Role: "standby",
			Timeline: x.Timeline, LSN: x.LSN, Instructed: x.Instructed, Incarnation: x.Life, NoSync: x.NoSync,
			Leaving: x.Leaving, NoFailover: x.NoFailover, Config: x.Config, Refused: x.Refused,
			PendingRestart: x.PendingRestart(), Held: x.HeldParameters(), Overridden: x.OverriddenSettings(),
			DiskFull: x.FullDisks(), heard: core.Position{Timeline: x.HeardOn, LSN: x.Heard}}
		// A member that was set up anew is not the voter of the same name.
		m.Voter = rec != nil && slices.Contains(rec.Voters, core.Identity{Name: e.ID, Incarnation: x.Life})
		if i == 0 && line.Leader != nil && (x.Phase == core.PhaseLeading || x.Phase == core.PhasePaused) {
			m.Role, j.Primary = "primary", e.ID
		}
		j.Members = append(j.Members, m)
	}
	j.addAbsent()
	j.Text = j.sentence(line, said)
	return j
}

// addAbsent adds the members that the record names and that do not stand in the election.
func (j *clusterJSON) addAbsent() {
	r := j.Record
	if r == nil {
		return
	}
	for i, v := range append([]core.Identity{r.Primary}, r.Voters...) {
		if j.member(v.Name) != nil {
			continue
		}
		m := memberJSON{Name: v.Name, State: "absent", Voter: i > 0,
			Why: "it is not in the election: its agent is down, cut off from the store, copying data, or broken " +
				"(see its log)"}
		if r.Paused != nil {
			m.State, m.Why = "-", "nobody but the primary stands during a pause"
		}
		if i == 0 {
			m.Why = "it was the primary, and is not in the election: its agent is down, cut off from the store, or " +
				"broken (see its log)"
		}
		j.Members = append(j.Members, m)
	}
}

func (j *clusterJSON) member(name string) *memberJSON {
	for i := range j.Members {
		if j.Members[i].Name == name {
			return &j.Members[i]
		}
	}
	return nil
}

// sentence says who is the primary and what is needed, or why nobody is.
func (j clusterJSON) sentence(line primacy.State, said map[string]agent.Said) string {
	switch {
	case line.Leader == nil && j.Record != nil && j.Record.Paused != nil:
		return fmt.Sprintf("The cluster is %s. %s holds no term: if its server runs, it goes on; nobody else is "+
			"promoted.", clean(j.Record.Paused.String()), j.Record.Primary.Name)
	case line.Leader == nil:
		return "Nobody leads and nobody waits: no member runs, or each that runs is broken (its log says why)."
	case j.Primary == "":
		return fmt.Sprintf("Nobody is the primary: %s leads under token %d, and is %s; %s.", line.Leader.ID, j.Token,
			cmp.Or(said[line.Leader.ID].Phase, "starting"), cmp.Or(said[line.Leader.ID].Why, "it has just begun"))
	case j.Record == nil:
		return fmt.Sprintf("%s is the primary under token %d.", j.Primary, j.Token)
	}
	r := j.Record
	s := fmt.Sprintf("%s is the primary under token %d, on timeline %d; ", j.Primary, j.Token, r.Timeline)
	if r.Paused != nil {
		since := ""
		if !r.Paused.At.IsZero() {
			since = " (since " + clock(r.Paused.At) + ")"
		}
		return s + fmt.Sprintf("the cluster is %s%s: nobody else is promoted, and no deadline ends its server.",
			clean(r.Paused.String()), since)
	}
	var voters []string
	for _, v := range r.Voters {
		voters = append(voters, v.Name)
	}
	slices.Sort(voters)
	switch {
	case r.Durability == core.Async:
		return s + "a commit waits for no standby, and a failover may lose the last ones (async)."
	case len(voters) == 0 && r.Durability == core.Available:
		return s + "no standby votes: after a while without one it goes on alone, and nobody else can be promoted."
	case len(voters) == 0:
		return s + "no standby votes yet: commits wait."
	case r.Needed > len(voters):
		return s + fmt.Sprintf("a commit needs %d of %s; until they have caught up only %s can be the primary.",
			r.Acks, strings.Join(voters, ", "), j.Primary)
	case len(voters) == 1:
		return s + fmt.Sprintf("a commit needs %s; a failover needs the answer of %[1]s, or of %s.", voters[0],
			j.Primary)
	}
	return s + fmt.Sprintf("a commit needs %d of %s; a failover needs the answers of %d of them, or of %s.", r.Acks,
		strings.Join(voters, ", "), r.Needed, j.Primary)
}

func (j clusterJSON) write(w io.Writer) error {
	rows := [][]string{{"MEMBER", "ADDRESS", "ROLE", "STATE", "TIMELINE", "LAG", "VOTES"}}
	var last core.Position // of the primary
	for _, m := range j.Members {
		if m.Role == "primary" {
			last = core.Position{Timeline: m.Timeline, LSN: m.LSN}
		}
	}
	var why []string
	for _, m := range j.Members {
		lag, timeline, votes := "-", "-", "no"
		if m.Timeline != 0 {
			timeline = fmt.Sprint(m.Timeline)
		}
		switch {
		case m.Role == "primary":
			votes = "-"
		case last.LSN != 0 && m.LSN != 0 && m.Timeline == last.Timeline:
			lag = bytesText(uint64(max(last.LSN, m.LSN) - m.LSN))
		}
		switch {
		case m.Voter && m.Leaving:
			votes = "yes, until reinit"
		case m.Voter:
			votes = "yes"
		case m.Leaving:
			votes = "no (reinit)"
		case m.NoSync && m.Role != "primary":
			votes = "no (nosync)"
		}
		rows = append(rows, []string{clean(m.Name), clean(cmp.Or(m.Address, "-")), cmp.Or(m.Role, "-"),
			cmp.Or(string(m.State), "starting"), timeline, lag, votes})
		if m.Why != "" && m.State != core.PhasePaused {
			why = append(why, clean(m.Name)+": "+printable(m.Why))
		}
		for _, text := range m.settings() {
			why = append(why, clean(m.Name)+": "+printable(text))
		}
	}
	if err := table(w, rows...); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(append(why, printable(j.Text)), "\n"))
	return err
}

// settings says what of the shared configuration a member has not in force.
func (m memberJSON) settings() (all []string) {
	if m.Refused != "" {
		all = append(all, "refuses the shared configuration, and keeps the last good one: "+m.Refused)
	}
	if len(m.PendingRestart) > 0 {
		all = append(all, "needs a restart for "+strings.Join(m.PendingRestart, ", ")+
			": 'primacy postgres restart --pending'")
	}
	for _, dir := range m.DiskFull { // first: it may be the cause of the rest
		all = append(all, "the disk is full, or nearly so: less than 64 MiB are free for "+dir)
	}
	for _, o := range m.Overridden {
		all = append(all, m.override(o))
	}
	return all
}

// override says what to do about a setting that somebody has set past primacy.
func (m memberJSON) override(told string) string {
	name, source, _ := strings.Cut(strings.TrimSuffix(told, ")"), " (")
	file, _, _ := strings.Cut(source, ":")
	said := name + " is set past primacy, in " + source + ": "
	switch {
	case file == "postgresql.auto.conf":
		return said + fmt.Sprintf("on its server psql -c 'ALTER SYSTEM RESET %s' -c 'SELECT pg_reload_conf()'", name)
	case !strings.Contains(source, ":"):
		if len(m.DiskFull) > 0 {
			return name + " is not as primacy has set it: it is set again once the disk has room"
		}
		return fmt.Sprintf("%s is not as primacy has set it any more: 'primacy postgres restart %s' sets it again",
			name, m.Name)
	}
	return said + "take it out there, then on its server psql -c 'SELECT pg_reload_conf()'"
}

// bytesText is a number of bytes as people read it.
func bytesText(n uint64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d B", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// refusal says why nobody, or not that member, can take over from the primary now.
func (j *clusterJSON) refusal(to string) string {
	r := j.Record
	if j.Primary == "" || r == nil {
		return j.Text
	}
	if r.Paused != nil {
		return fmt.Sprintf("the cluster is %s; resume it first", clean(r.Paused.String()))
	}
	if to == "" || to == j.Primary {
		return j.noSuccessor()
	}
	switch m := j.member(to); {
	case m == nil:
		return fmt.Sprintf("no member %s stands; there are %s", clean(to), j.names())
	case m.State != core.PhaseFollowing:
		return fmt.Sprintf("%s is %s, and does not follow %s", to, cmp.Or(m.State, "starting"), j.Primary)
	case m.NoFailover:
		return to + " must not be promoted: take nofailover out of its file and restart its agent"
	case !m.Voter && r.Durability != core.Async:
		return fmt.Sprintf("%s is no voter: it may lack acknowledged commits until it has caught up", to)
	}
	return ""
}

// noSuccessor says why no member at all could take over.
func (j *clusterJSON) noSuccessor() string {
	r, voters := j.Record, 0
	for _, m := range j.Members {
		switch {
		case m.Name == j.Primary || !m.Voter && r.Durability != core.Async:
		case !m.NoFailover:
			return ""
		default:
			voters++
		}
	}
	if voters > 0 {
		return fmt.Sprintf("who could take over from %s must not be promoted (nofailover); to start its server "+
			"again restart its agent", j.Primary)
	}
	return fmt.Sprintf("%s has no voter that could take over", j.Primary)
}

func (j *clusterJSON) names() string {
	var all []string
	for _, m := range j.Members {
		all = append(all, clean(m.Name))
	}
	return strings.Join(all, ", ")
}

func postgresLostCommand(a *app) *cobra.Command {
	c := &cluster{app: a}
	cmd := &cobra.Command{
		Use:   "lost -f FILE",
		Short: "List what rewinds have discarded on this machine: commits that nobody else had",
		Long: `List what rewinds of this member have discarded: WAL of a former primary that the present one does
not have. Its commits were not acknowledged, except where a person gave them up ('failover --accept-loss'), where the
cluster is async, or where synchronous_commit was below on. The WAL itself is kept beside the data directory:
pg_waldump -p WHERE/pg_wal shows it.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return c.lost() },
	}
	cmd.Flags().StringVarP(&c.path, "file", "f", "", "the file of this member")
	return cmd
}

func (c *cluster) lost() error {
	if _, err := c.election(); err != nil {
		return err
	}
	all, err := clone.Lost(c.file.Data + ".primacy")
	if err != nil {
		return err
	}
	if c.output != "table" {
		return c.writeJSON(all)
	}
	if len(all) == 0 {
		_, err = fmt.Fprintln(c.stdout, "nothing was discarded on this machine")
		return err
	}
	rows := [][]string{{"AT", "TIMELINE", "FROM", "BYTES", "COMMITS", "WHERE"}}
	for _, l := range all {
		rows = append(rows, []string{l.At.Local().Format(time.DateTime), fmt.Sprint(l.Timeline), l.From.String(),
			fmt.Sprint(l.Bytes), fmt.Sprint(l.Commits), l.Dir})
	}
	return table(c.stdout, rows...)
}
