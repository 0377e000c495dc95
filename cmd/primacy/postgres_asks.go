package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/primacy-go/primacy"
	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// asking is a verb that writes instructions for a cluster, and waits until its members have
// carried them out.
type asking struct {
	*cluster
	reason string
	wait   time.Duration
	yes    bool // do not ask
	cmd    *cobra.Command
}

func newAsking(a *app, use, short, long string, args cobra.PositionalArgs,
	do func(v *asking, r *reached, j clusterJSON, args []string) error,
) *asking {
	v := &asking{cluster: &cluster{app: a}}
	v.cmd = &cobra.Command{Use: use, Short: short, Long: long, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(v.reason) > primacy.MaxName:
				return fmt.Errorf("--reason has %d bytes, more than %d", len(v.reason), primacy.MaxName)
			case strings.ContainsFunc(v.reason, unicode.IsControl):
				return errors.New("--reason: give one line, without control characters")
			}
			r, done, err := v.reach(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			j, err := r.now(cmd.Context())
			if err == nil && j.Record == nil {
				err = fail(exitNo, "the cluster %s has no record yet: its first primary was not promoted",
					clean(v.name))
			}
			if err != nil {
				return err
			}
			return do(v, r, j, args)
		}}
	v.flags(v.cmd)
	v.cmd.Flags().DurationVar(&v.wait, "wait", time.Minute, "how long to wait until it is done")
	return v
}

func (v *asking) withReason() *asking {
	v.cmd.Flags().StringVar(&v.reason, "reason", "", "why, for people who look later")
	_ = v.cmd.Flags().SetAnnotation("reason", noVariable, nil) // a hook finds in PRIMACY_REASON why a term ended
	return v
}

// instruct writes instructions. Where change returns an error nothing is written.
func (v *asking) instruct(r *reached, change func(*core.Instructions) error) (core.Instructions, error) {
	ctx, cancel := context.WithTimeout(v.cmd.Context(), v.timeout)
	defer cancel()
	return r.record.Instruct(ctx, change)
}

// await reads the cluster until done says so. Without that it returns an error of exit code 124
// that says what it was waiting for.
func (v *asking) await(r *reached, what string, done func(clusterJSON) (bool, error)) (clusterJSON, error) {
	const every = 200 * time.Millisecond
	limit := v.wait
	if end, ok := v.cmd.Context().Deadline(); ok { // of who asks by Patroni's API
		limit = min(limit, time.Until(end).Round(100*time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(v.cmd.Context(), v.wait)
	defer cancel()
	var last clusterJSON
	for {
		j, err := r.now(ctx)
		if err == nil && j.Record == nil {
			return j, fail(exitNo, "%s: the cluster's record is gone from the store", what)
		}
		if err == nil {
			if ok, err := done(j); ok || err != nil {
				return j, err
			}
			last = j
		} else if ctx.Err() == nil {
			v.say("%s", oneLine(err))
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			if err := v.cmd.Context().Err(); errors.Is(err, context.Canceled) {
				return last, err
			}
			return last, fail(exitNotAcquired, "not done after %v: %s. It stays asked for. %s", limit, what,
				printable(last.Text))
		}
	}
}

// confirm asks a person on a terminal. Elsewhere --yes is needed.
func (v *asking) confirm(question string) error {
	if v.yes {
		return nil
	}
	in, ok := v.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return fmt.Errorf("%s There is no terminal to ask on: give --yes", question)
	}
	fmt.Fprintf(v.stderr, "%s Type yes: ", question)
	line, _ := bufio.NewReader(in).ReadString('\n')
	if strings.TrimSpace(line) != "yes" {
		return fail(exitNo, "nothing was done")
	}
	return nil
}

func postgresSwitchoverCommand(a *app) *cobra.Command {
	var to string
	v := newAsking(a, "switchover [--to MEMBER]", "Shut the primary down cleanly and promote another member",
		`Ask the primary to hand over: it writes a checkpoint, shuts down cleanly, and says in the cluster's
record where its WAL ends. The member that --to names is promoted if it has all of that; without --to it is the
voter of the highest priority, and of these the most advanced. Waits until it is the primary. Exit 1, and nothing is
asked, if nobody is the primary or no such member could be promoted; 124 if the primary has not handed over within
--wait: it goes on then.`, cobra.NoArgs,
		func(v *asking, r *reached, j clusterJSON, _ []string) error {
			if why := j.refusal(to); why != "" {
				return fail(exitNo, "no switchover: %s", why)
			}
			if to != "" && to == j.Primary {
				v.say("%s is the primary already, under token %d", to, j.Token)
				return nil
			}
			now, err := v.switchOver(r, j, to, v.reason)
			return v.handedOver(now, to, err)
		}).withReason()
	v.cmd.Flags().StringVar(&to, "to", "", "the member that is to be promoted (default: by priority)")
	return v.cmd
}

// switchOver has the primary of j hand over, and waits until another is the primary: it returns how
// the cluster is then. Whoever leads after the primary of j was not looked at, and is not asked: a
// second switchover would be a second outage.
func (v *asking) switchOver(r *reached, j clusterJSON, to, reason string) (clusterJSON, error) {
	token := primacy.Token(j.Token)
	q := request{to: to, reason: reason, wait: v.wait, exempt: true, token: token}
	if err := q.check(); err != nil {
		return j, err
	}
	if _, err := q.ask(v.cmd.Context(), v.app, nil, r.election); err != nil {
		return j, err
	}
	doing := "" // what the primary does meanwhile: its checkpoint may take minutes
	j, err := v.await(r, "the primary was asked to hand over", func(j clusterJSON) (bool, error) {
		if m := j.member(j.Primary); m != nil && m.Why != doing && j.Token == uint64(token) {
			if doing = m.Why; doing != "" {
				v.say("%s %s", m.Name, printable(doing))
			}
		}
		return j.Primary != "" && j.Token != uint64(token), nil
	})
	if err == nil {
		v.say("%s is the primary under token %d, on timeline %d", j.Primary, j.Token, j.Record.Timeline)
	}
	return j, err
}

// handedOver writes who is the primary after a switchover to stdout, or returns why it did not go
// as it was asked for.
func (v *asking) handedOver(j clusterJSON, to string, err error) error {
	switch {
	case err != nil:
		return err
	case to != "" && j.Primary != to:
		return fail(exitNo, "the primary has handed over, but %s is the primary now, not %s", j.Primary, to)
	case v.output != "table":
		return v.writeJSON(j)
	}
	fmt.Fprintln(v.stdout, j.Primary)
	return nil
}

func postgresPauseCommand(a *app) *cobra.Command {
	return newAsking(a, "pause", "Maintenance: nobody is promoted, and no deadline ends the primary's server",
		`Pause a cluster for work on the store or on a network: nobody but the primary stands for election, and its
server goes on without a lease, even while the store is away. It still ends with its agent. The cluster is
paused once the guardian of the server has confirmed it: wait for that before you stop the store. Switchover,
restart and reinit are refused until 'primacy postgres resume'. If the primary is lost meanwhile, nobody takes
over. Exit 1 if nobody is the primary; 124 if it is not confirmed within --wait.`,
		cobra.NoArgs, pauseCluster).withReason().cmd
}

func pauseCluster(v *asking, r *reached, j clusterJSON, _ []string) error {
	if j.Record.Paused == nil && j.Primary == "" {
		return fail(exitNo, "nothing to pause: %s", j.Text)
	}
	p := &core.Pause{By: v.person(), Reason: v.reason, At: time.Now().UTC()}
	asked, err := v.instruct(r, func(i *core.Instructions) error {
		if i.Paused == nil {
			i.Paused = p
		}
		return nil
	})
	if err != nil {
		return err
	}
	const unconfirmed = "the guardian has not confirmed the pause: do not stop the store; 'resume' withdraws it"
	j, err = v.await(r, unconfirmed, func(j clusterJSON) (bool, error) {
		ctx, cancel := context.WithTimeout(v.cmd.Context(), v.timeout)
		defer cancel()
		if i, err := r.record.Instructions(ctx); err == nil && i != nil && i.Paused == nil && i.Seq > asked.Seq {
			return false, fail(exitNo, "somebody has resumed the cluster meanwhile")
		}
		m := j.member(j.Primary)
		return m != nil && m.State == core.PhasePaused && j.Record.Paused != nil, nil
	})
	if err != nil {
		return err
	}
	// Patroni's tools look there. Not before: a member that reads it first would not know who has
	// paused the cluster, and why.
	if err := v.pauseShared(r, true); err != nil {
		v.say("the shared configuration does not say that the cluster is paused: %s", oneLine(err))
	}
	v.say("%s", printable(j.Text))
	return nil
}

// pauseShared has the shared configuration say whether the cluster is paused. It is paused while
// that or the instructions say so.
func (v *asking) pauseShared(r *reached, paused bool) error {
	ctx, cancel := context.WithTimeout(v.cmd.Context(), v.timeout)
	defer cancel()
	errNone := errors.New("there is none yet")
	_, _, _, err := r.shared.Change(ctx, func(d pgconfig.Document) (pgconfig.Document, error) {
		switch {
		case d == nil:
			return nil, errNone
		case paused:
			return d.With("pause", true)
		}
		return d.With("pause", nil)
	})
	if errors.Is(err, errNone) {
		return nil
	}
	return err
}

func postgresResumeCommand(a *app) *cobra.Command {
	force := false
	v := newAsking(a, "resume", "End a pause",
		`End a pause: the primary takes a deadline again, and the others stand again. Waits for that. If the
primary is lost, --force lets the others stand at once: an ordinary election, which waits for the answers that it
needs, and promotes nobody who lacks an acknowledged commit. If the former primary cannot be reached, its server may
run on: it acknowledges nothing any more unless the cluster is async, but answers reads. Exit 124 if it is not done
within --wait.`,
		cobra.NoArgs, func(v *asking, r *reached, j clusterJSON, _ []string) error {
			return resumeCluster(v, r, j, force)
		})
	v.cmd.Flags().BoolVar(&force, "force", false, "let others stand though the primary has not taken its term again")
	return v.cmd
}

func resumeCluster(v *asking, r *reached, j clusterJSON, force bool) error {
	was, asked := j.Record.Paused, false
	if err := v.pauseShared(r, false); err != nil {
		return refusedConfig(err)
	}
	if _, err := v.instruct(r, func(i *core.Instructions) error {
		asked = i.Paused != nil
		if i.Paused = nil; force {
			i.Forced = was
		}
		return nil
	}); err != nil {
		return err
	}
	what := j.Record.Primary.Name + " has not taken its term again; if it is lost for good: --force"
	if force {
		what = "nobody was promoted"
	}
	j, err := v.await(r, what, func(j clusterJSON) (bool, error) { return j.Record.Paused == nil, nil })
	switch {
	case err != nil:
		return err
	case was != nil:
		v.say("resumed. %s", printable(j.Text))
	case asked:
		v.say("the pause that was asked for is withdrawn")
	default:
		v.say("the cluster was not paused")
	}
	return nil
}

func postgresReinitCommand(a *app) *cobra.Command {
	one := false
	v := newAsking(a, "reinit MEMBER", "Delete the data of a standby, and copy the primary's",
		`Have a standby delete its data and copy the primary's (pg_basebackup). Nothing of the deleted data is kept, and
the member is no voter until it has caught up. Waits until it follows again. Exit 1 if MEMBER is the primary, or
nobody is; 124 if it does not follow within --wait: it goes on by itself then. A member that votes is first
dropped from the voters; of the only one that votes the primary has the only other copy, so --accept-one-copy is
needed. A member whose agent does not run is set up anew by hand, while another is the primary: remove its data
directory and DATA.primacy/state.json, and start it.`, oneMember,
		func(v *asking, r *reached, j clusterJSON, args []string) error {
			return reinitMember(v, r, j, args[0], one)
		})
	v.cmd.Flags().BoolVar(&v.yes, "yes", false, "do not ask")
	v.cmd.Flags().BoolVar(&one, "accept-one-copy", false,
		"also the only voter: until it is done the primary alone has the data")
	return v.cmd
}

func oneMember(_ *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("give one MEMBER: 'primacy postgres list' shows them")
	}
	return nil
}

func reinitMember(v *asking, r *reached, j clusterJSON, name string, one bool) error {
	if err := j.reinitable(name, one); err != nil {
		return err
	}
	if err := v.confirm(fmt.Sprintf("All data of %s are deleted, and copied anew from %s.", clean(name),
		j.Primary)); err != nil {
		return err
	}
	return v.task(r, name, core.Task{What: core.TaskReinit, Life: j.member(name).Incarnation, OneCopy: one})
}

// reinitable says why a member cannot be made anew. one: the last voter may be too.
func (j *clusterJSON) reinitable(name string, one bool) error {
	if err := j.standby(name, "reinit"); err != nil {
		return err
	}
	if !one && j.member(name).Voter && len(j.Record.Voters) == 1 {
		return fail(exitNo, "no reinit: %s is the only voter; until it were copied %s alone would have the data. To "+
			"do it all the same: 'primacy postgres reinit %[1]s --accept-one-copy'", name, j.Primary)
	}
	return nil
}

// standby says why nothing can be asked of a member.
func (j *clusterJSON) standby(name, what string) error {
	m := j.member(name)
	switch {
	case j.Primary == "":
		return fail(exitNo, "no %s: %s", what, j.Text)
	case j.Record.Paused != nil:
		return fail(exitNo, "no %s: the cluster is %s; resume it first", what, clean(j.Record.Paused.String()))
	case m == nil || m.State == "absent":
		return fail(exitNo, "no %s: %s does not stand; there are %s", what, clean(name), j.names())
	case name == j.Primary:
		return fail(exitNo, "no %s: %s is the primary", what, clean(name))
	}
	return nil
}

// task has a standby do something, and waits until it follows again.
func (v *asking) task(r *reached, name string, t core.Task) error {
	i, err := v.ask(r, name, t)
	if err != nil {
		return err
	}
	v.say("%s: %s is asked for", name, t.What)
	return v.awaitTask(r, name, t.What, i)
}

// ask writes a task down for a standby.
func (v *asking) ask(r *reached, name string, t core.Task) (core.Instructions, error) {
	j, err := r.now(v.cmd.Context())
	if err != nil {
		return core.Instructions{}, err
	}
	m := j.member(name)
	if m == nil {
		return core.Instructions{}, fail(exitNo, "%s does not stand any more", name)
	}
	return v.instruct(r, func(i *core.Instructions) error {
		if before := i.Members[name]; before.Seq > m.Instructed {
			return fail(exitNo, "%s: a %s that was asked for before is not done yet", name, before.What)
		}
		i.Seq = max(i.Seq, m.Instructed+1) // somebody may have removed what was asked before
		t.Seq = i.Seq
		i.Members[name] = t
		return nil
	})
}

// awaitTask waits until a standby has carried a task out, and follows again.
func (v *asking) awaitTask(r *reached, name, what string, i core.Instructions) error {
	why, told, begun := "", true, time.Now()
	_, err := v.await(r, fmt.Sprintf("%s: %s is not done", name, what), func(j clusterJSON) (bool, error) {
		m := j.member(name)
		switch {
		case m == nil || m.Instructed < i.Seq:
			return false, nil
		case name == j.Primary:
			return true, nil
		case what == core.TaskReinit && strings.HasPrefix(m.Why, "reinit: "): // it cannot be done
			return false, fail(exitNo, "%s: %s", name, printable(m.Why))
		case m.Why != why:
			why, begun, told = m.Why, time.Now(), m.Why == ""
		case !told && time.Since(begun) > inTheWay:
			told = true
			v.say("%s: %s", name, printable(why))
		}
		return m.State == core.PhaseFollowing && (m.Voter || m.NoSync || j.Record.Durability == core.Async), nil
	})
	if err == nil {
		v.say("%s: done, it follows again", name)
	}
	return err
}

// inTheWay is how long something must keep a restart from being done until a person is told. It is
// tried again and again, and while the server is down for a moment its member says that too.
const inTheWay = 3 * time.Second

func postgresRestartCommand(a *app) *cobra.Command {
	pending := false
	v := newAsking(a, "restart [MEMBER]", "Restart servers one after another: the standbys first, the primary last",
		`Restart PostgreSQL of one member or of all, so that settings take effect that need it. Standbys are
restarted one after another, each once the one before votes again. The primary comes last: it hands over to a standby,
and starts again as one. With --pending only those that need it for a parameter of the shared configuration. A member's
file is read when its agent starts: for changes of the file restart the agents.
Exit 1 if nobody is the primary or nobody could take over from it; 124 if a member is not back within --wait.`,
		cobra.MaximumNArgs(1), func(v *asking, r *reached, j clusterJSON, args []string) error {
			if !pending {
				return restartMembers(v, r, j, args)
			}
			if len(args) > 0 {
				return errors.New("give MEMBER or --pending")
			}
			return restartPending(v, r, j)
		}).withReason()
	v.cmd.Flags().BoolVar(&pending, "pending", false, "only those with parameters that wait for a restart")
	return v.cmd
}

// restartPending restarts those that have parameters that wait for it, in the order of
// restartMembers: a standby must not have less than its primary.
func restartPending(v *asking, r *reached, j clusterJSON) error {
	var standbys []string
	primary := ""
	for _, m := range j.Members {
		switch {
		case len(m.PendingRestart) == 0:
		case m.Role == "primary":
			primary = m.Name
		case m.stands():
			standbys = append(standbys, m.Name)
		}
	}
	if len(standbys) == 0 && primary == "" {
		v.say("no member needs a restart")
		return nil
	}
	if why := j.refusal(""); why != "" && (primary != "" || j.Record.Paused != nil) {
		return fail(exitNo, "no restart: %s", why)
	}
	if err := v.restartStandbys(r, j, standbys); err != nil {
		return err
	}
	if primary != "" {
		if err := v.restartPrimary(r, primary); err != nil {
			return err
		}
	}
	_, err := v.await(r, "a member has not the parameters yet", func(j clusterJSON) (bool, error) {
		return !slices.ContainsFunc(j.Members, func(m memberJSON) bool { return len(m.PendingRestart) > 0 }), nil
	})
	return err
}

// restartStandbys restarts one after another.
func (v *asking) restartStandbys(r *reached, j clusterJSON, names []string) error {
	slices.Sort(names)
	for _, name := range names {
		if err := v.task(r, name, core.Task{What: core.TaskRestart, Life: j.member(name).Incarnation}); err != nil {
			return err
		}
	}
	return nil
}

func restartMembers(v *asking, r *reached, j clusterJSON, args []string) error {
	var standbys []string
	primary := j.Primary
	for _, m := range j.Members {
		if m.Role == "standby" && (len(args) == 0 || m.Name == args[0]) {
			standbys = append(standbys, m.Name)
		}
	}
	if len(args) == 1 && args[0] != primary {
		if err := j.standby(args[0], "restart"); err != nil {
			return err
		}
	}
	if why := j.refusal(""); why != "" && (len(args) == 0 || args[0] == primary) {
		return fail(exitNo, "no restart: %s", why)
	}
	if err := v.restartStandbys(r, j, standbys); err != nil || len(args) == 1 && args[0] != primary {
		return err
	}
	return v.restartPrimary(r, primary)
}

// restartPrimary has the primary hand over, and start again as a standby.
func (v *asking) restartPrimary(r *reached, primary string) error {
	j, err := r.now(v.cmd.Context())
	if err != nil {
		return err
	}
	if j.Primary != "" && j.Primary != primary {
		v.say("%s is the primary meanwhile: %s has ended with that", j.Primary, primary)
		return nil
	}
	if why := j.refusal(""); why != "" {
		return fail(exitNo, "%s was not restarted: %s", primary, why)
	}
	now, err := v.switchOver(r, j, "", cmp.Or(v.reason, "restart"))
	if err := v.handedOver(now, "", err); err != nil {
		return err
	}
	_, err = v.await(r, fmt.Sprintf("%s does not follow yet", primary), func(j clusterJSON) (bool, error) {
		m := j.member(primary)
		return m != nil && (m.State == core.PhaseFollowing || j.Primary == primary), nil
	})
	if err == nil {
		v.say("%s: done, it follows now", primary)
	}
	return err
}

func postgresFailoverCommand(a *app) *cobra.Command {
	var to string
	accept := false
	v := newAsking(a, "failover --to MEMBER", "Promote a member though others that may have more do not answer",
		`For when nobody is the primary and the answers that a safe election needs will not come: machines are lost for
good. Without --accept-loss it says what MEMBER has, what is known of the former primary, and what may be lost.
With --accept-loss MEMBER is promoted, and every commit that it does not have is lost, acknowledged or not. It is
void once anything else has changed the cluster's record. While somebody is the primary use switchover. Exit 1 if
nothing was done; 124 if MEMBER does not lead within --wait: what you accepted stays in force then.`, cobra.NoArgs,
		func(v *asking, r *reached, j clusterJSON, _ []string) error {
			return failOver(v, r, j, to, accept)
		}).withReason()
	v.cmd.Flags().StringVar(&to, "to", "", "the member that is to be promoted")
	v.cmd.Flags().BoolVar(&accept, "accept-loss", false, "promote it, whatever it lacks")
	v.cmd.Flags().BoolVar(&v.yes, "yes", false, "do not ask")
	return v.cmd
}

func failOver(v *asking, r *reached, j clusterJSON, to string, accept bool) error {
	switch m := j.member(to); {
	case to == "":
		return errors.New("give --to MEMBER: " + j.names())
	case j.Primary != "":
		return fail(exitNo, "no failover: %s is the primary; use switchover", j.Primary)
	case m == nil || m.State == "absent" || m.State == "-":
		if j.Record.Paused != nil {
			return fail(exitNo, "no failover: the cluster is %s, and %s does not stand; give 'primacy postgres resume "+
				"--force' first", clean(j.Record.Paused.String()), clean(to))
		}
		return fail(exitNo, "no failover: %s does not stand; there are %s", clean(to), j.names())
	case m.LSN == 0:
		return fail(exitNo, "no failover: %s has not said yet where its WAL ends: its log says why", clean(to))
	case j.Token == 0:
		return fail(exitNo, "no failover: nobody leads at this moment; try again")
	case j.Token <= j.Record.Token:
		return fail(exitNo, "no failover: %s is being promoted", j.Record.Primary.Name)
	}
	text := j.atStake(to)
	if !accept {
		return fail(exitNo, "nothing was done ('primacy postgres list' says who is missing). %s To promote %s all the "+
			"same: --accept-loss", text, to)
	}
	if err := v.confirm(text); err != nil {
		return err
	}
	m := j.member(to)
	f := &core.Failover{To: to, Life: m.Incarnation, From: core.Position{Timeline: m.Timeline, LSN: m.LSN},
		Record: j.Record.Seq, Token: j.Token, By: v.person(), Reason: v.reason}
	if _, err := v.instruct(r, func(i *core.Instructions) error { i.Failover = f; return nil }); err != nil {
		return err
	}
	j, err := v.await(r, to+" was not promoted", func(j clusterJSON) (bool, error) { return j.Primary != "", nil })
	if err != nil {
		return err
	}
	if j.Primary != to {
		return fail(exitNo, "%s was promoted, not %s: it had all that is needed. %s", j.Primary, to, j.Text)
	}
	v.say("%s", printable(j.Text))
	return nil
}

// atStake says what is lost if a member is promoted, as far as it is known.
func (j *clusterJSON) atStake(to string) string {
	m, r := j.member(to), j.Record
	var last core.Position
	for _, x := range j.Members {
		if h := r.Heard(x.heard); last.Before(h) {
			last = h
		}
	}
	heard := max(last.LSN, r.From)
	text := fmt.Sprintf("%s has WAL up to %v on timeline %d.", to, m.LSN, m.Timeline)
	if r.Paused != nil {
		text += fmt.Sprintf(" In the pause %s has no deadline: make sure that its server does not run.", r.Primary.Name)
	}
	ended := fmt.Sprintf(" The WAL of %s, the last primary, ended at %v when it was last heard:", r.Primary.Name, heard)
	switch {
	case heard > m.LSN:
		text += ended + fmt.Sprintf(" at least the %d bytes between them are lost, and what came after.", heard-m.LSN)
	case heard > 0:
		text += ended + fmt.Sprintf(" what came after that and is not on %s is lost.", to)
	default:
		text += fmt.Sprintf(" How far %s, the last primary, had come is not known: all that %s lacks is lost.",
			r.Primary.Name, to)
	}
	if best := j.furthest(); best != to {
		text += fmt.Sprintf(" %s has more than %s.", best, to)
	}
	return text
}

// furthest returns the member that stands and has most.
func (j *clusterJSON) furthest() string {
	best := j.Members[0]
	for _, m := range j.Members[1:] {
		most := core.Position{Timeline: best.Timeline, LSN: best.LSN}
		if most.Before(core.Position{Timeline: m.Timeline, LSN: m.LSN}) {
			best = m
		}
	}
	return best.Name
}
