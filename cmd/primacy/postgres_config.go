package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
)

// sharedJSON is a shared configuration, and who has taken it.
type sharedJSON struct {
	Key     string            `json:"key"`
	Version uint64            `json:"version,string"`
	Config  pgconfig.Document `json:"config"`
	Members []takenJSON       `json:"members"`
}

// takenJSON is what a member has made of the shared configuration.
type takenJSON struct {
	Name           string   `json:"name"`
	Version        uint64   `json:"version,string"` // that it has judged last
	Refused        string   `json:"refused,omitempty"`
	PendingRestart []string `json:"pending_restart,omitempty"`
	Held           []string `json:"held,omitempty"` // stay larger than they were asked for
}

func postgresConfigCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Show and change the configuration that all members of a cluster share",
		Long: `The configuration that all members share: durability, acks, PostgreSQL's parameters. It stands in the
store, under Patroni's key and in Patroni's words, so patronictl show-config and edit-config work on it too. A running
cluster takes a change within some seconds; 'list' shows what needs a restart.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.New("postgres config: give show, set or edit")
		},
	}
	(&cluster{app: a}).flags(c) // so that a misspelt verb is told, and not its flags
	c.AddCommand(postgresConfigShowCommand(a), postgresConfigSetCommand(a), postgresConfigEditCommand(a))
	return c
}

func postgresConfigShowCommand(a *app) *cobra.Command {
	c := &cluster{app: a}
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the shared configuration",
		Long: `Show the shared configuration, as YAML or with -o json, and which member has not taken it. Exit 1 if
there is none.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.showConfig(cmd.Context()) },
	}
	c.flags(cmd)
	return cmd
}

func (c *cluster) showConfig(ctx context.Context) error {
	r, done, err := c.reach(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	d, version, err := r.readConfig(ctx)
	if err != nil {
		return err
	}
	j, err := r.now(ctx)
	var none *exitError
	if err != nil && !errors.As(err, &none) { // without a cluster there is nobody to have taken it
		return err
	}
	return c.tellConfig(r, d, version, j)
}

// readConfig reads the shared configuration. Its error is of exit code 1 where there is none.
func (r *reached) readConfig(ctx context.Context) (pgconfig.Document, uint64, error) {
	d, version, err := r.shared.Read(ctx)
	if err == nil && version == 0 {
		err = r.noConfig()
	}
	if errors.Is(err, pgconfig.ErrRefused) {
		err = fail(exitNo, "%w", err)
	}
	return d, version, err
}

func (r *reached) noConfig() error {
	return fail(exitNo, "there is no shared configuration yet: the first primary writes %s", r.shared.Key())
}

// tellConfig shows a configuration, and who has not taken it.
func (c *cluster) tellConfig(r *reached, d pgconfig.Document, version uint64, j clusterJSON) error {
	if c.output != "table" {
		x := sharedJSON{Key: r.shared.Key(), Version: version, Config: d, Members: []takenJSON{}}
		for _, m := range j.Members {
			if m.Config > 0 {
				x.Members = append(x.Members, takenJSON{m.Name, m.Config, m.Refused, m.PendingRestart, m.Held})
			}
		}
		return c.writeJSON(x)
	}
	if _, err := c.stdout.Write(d.YAML()); err != nil {
		return err
	}
	for _, m := range j.Members {
		if m.Refused != "" {
			c.say("%s refuses it: %s; the last one that was good stays in force there", clean(m.Name),
				printable(m.Refused))
		}
	}
	said, _, err := d.Read()
	if err == nil {
		c.tellHeld(j, nil, said.Parameters)
	}
	return nil
}

// tellHeld says what of the parameters that were changed stays larger than it was asked for.
func (c *cluster) tellHeld(j clusterJSON, was, is map[string]string) {
	held := map[string][]string{}
	for _, m := range j.Members {
		for _, name := range m.Held {
			if was[name] != is[name] {
				held[name] = append(held[name], m.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		c.say("%s stays larger than that on %s: PostgreSQL starts no standby with less than its data were last used "+
			"with", printable(name), clean(strings.Join(held[name], ", ")))
	}
}

func postgresConfigSetCommand(a *app) *cobra.Command {
	v := newAsking(a, "set KEY=VALUE...", "Change keys of the shared configuration",
		`Change keys of the shared configuration, show the difference, and wait until each member has taken it. KEY is
one of Patroni's, with dots between names, or durability, acks, or parameters.NAME for PostgreSQL's. VALUE is YAML, and
a parameter's text may stand without quotes of YAML; null removes the key, and its default holds. Other keys stay as
they are, whoever wrote them. What a member refuses, for its PostgreSQL does not know it, is put back.

  primacy postgres config set -f pg.toml acks=2
  primacy postgres config set -f pg.toml durability=available
  primacy postgres config set -f pg.toml parameters.max_connections=300 parameters.work_mem=null

Exit 1 if it is refused; 124 if not each member that runs has taken it within --wait: it stays written then.`,
		cobra.MinimumNArgs(1), func(v *asking, r *reached, _ clusterJSON, args []string) error {
			return v.setConfig(r, args)
		})
	v.cmd.ValidArgsFunction = cobra.FixedCompletions([]cobra.Completion{"durability=", "acks=", "parameters.",
		"maximum_lag_on_failover=", "primacy.drop_after=", "primacy.alone_after=", "pause=", "synchronous_mode=",
		"synchronous_mode_strict=", "synchronous_node_count="},
		cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveNoFileComp)
	return v.cmd
}

func (v *asking) setConfig(r *reached, args []string) error {
	type assignment struct {
		key   string
		value any
	}
	var all []assignment
	for _, arg := range args {
		key, text, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: give KEY=VALUE", arg)
		}
		key = strings.TrimSpace(key)
		value, err := pgconfig.ParseFor(key, []byte(text))
		if err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
		all = append(all, assignment{key, value})
	}
	ctx, cancel := context.WithTimeout(v.cmd.Context(), v.timeout)
	defer cancel()
	was, is, version, err := r.shared.Change(ctx, func(d pgconfig.Document) (pgconfig.Document, error) {
		if d == nil {
			return nil, r.noConfig()
		}
		for _, x := range all {
			var err error
			if d, err = d.Assign(x.key, x.value); err != nil {
				return nil, err
			}
		}
		return d, nil
	})
	if err != nil {
		return refusedConfig(err)
	}
	lines := pgconfig.Difference(was, is)
	if len(lines) == 0 {
		v.say("nothing was changed")
		return nil
	}
	v.writeDifference(was, is, lines)
	return v.awaitTaken(r, was, is, version)
}

// refusedConfig gives an error of a document that no member would take its exit code.
func refusedConfig(err error) error {
	if errors.Is(err, pgconfig.ErrRefused) {
		return fail(exitNo, "%w; nothing was changed", err)
	}
	return err
}

// awaitTaken waits until each member that runs has taken a change, and the record says the
// durability. What one of them refuses is put back: else an agent that is new there would have
// nothing to go by.
func (v *asking) awaitTaken(r *reached, was, is pgconfig.Document, version uint64) error {
	said, _, _ := is.Read()
	const what = "not each member has taken the shared configuration, or commits do not go by it yet"
	j, err := v.await(r, what, func(j clusterJSON) (bool, error) {
		for _, m := range j.Members {
			switch {
			case m.Config >= version && m.Refused != "":
				return false, v.putBack(r, was, version, m)
			case m.Config < version && m.stands():
				return false, nil
			}
		}
		return j.Primary == "" || j.Record.Durability == said.Durability, nil
	})
	if err != nil {
		return err
	}
	if v.output != "table" {
		return v.tellConfig(r, is, version, j)
	}
	taken := 0
	for _, m := range j.Members {
		if m.Config >= version {
			taken++
		}
		if len(m.PendingRestart) > 0 {
			v.say("%s needs a restart for %s: 'primacy postgres restart --pending'", clean(m.Name),
				printable(strings.Join(m.PendingRestart, ", ")))
		}
	}
	before, _, _ := was.Read() // nothing is said of a bad one
	v.tellHeld(j, before.Parameters, said.Parameters)
	v.say("%d members have taken it", taken)
	return nil
}

// stands says whether a member takes part, and so says what it has taken.
func (m memberJSON) stands() bool { return m.State != "absent" && m.State != "-" }

// putBack writes what was there before, unless somebody else has changed it since.
func (v *asking) putBack(r *reached, was pgconfig.Document, version uint64, m memberJSON) error {
	ctx, cancel := context.WithTimeout(v.cmd.Context(), v.timeout)
	defer cancel()
	text := fmt.Sprintf("%s refuses it: %s", clean(m.Name), printable(m.Refused))
	if _, err := r.shared.Write(ctx, was, version); err != nil {
		return fail(exitNo, "%s; the former configuration was not put back: %w", text, err)
	}
	return fail(exitNo, "%s; the former configuration was put back", text)
}

// writeDifference shows what differs, and what that means for commits.
func (v *asking) writeDifference(was, is pgconfig.Document, lines []string) {
	for _, line := range lines {
		if !v.quiet {
			fmt.Fprintln(v.stderr, printable(line))
		}
	}
	before, _, err := was.Read()
	after, _, _ := is.Read()
	if err == nil && before.Durability != after.Durability {
		v.say("durability: %s, and was %s", after.Durability, before.Durability)
	}
}

func postgresConfigEditCommand(a *app) *cobra.Command {
	v := newAsking(a, "edit", "Edit the shared configuration with $EDITOR",
		`Open the shared configuration as YAML in $EDITOR (else editor, else vi), show the difference, ask, and wait
until each member has taken it. If somebody else has changed it meanwhile nothing is written, and the file
with your text is named. Exit 1 if nothing was written; 124 if not each member that runs has taken it within --wait.`,
		cobra.NoArgs, func(v *asking, r *reached, _ clusterJSON, _ []string) error { return v.editConfig(r) })
	v.cmd.Flags().BoolVar(&v.yes, "yes", false, "do not ask")
	return v.cmd
}

func (v *asking) editConfig(r *reached) error {
	ctx, cancel := context.WithTimeout(v.cmd.Context(), v.timeout)
	defer cancel()
	was, version, err := r.readConfig(ctx)
	if err != nil {
		return err
	}
	if was, err = pgconfig.ParseYAML(was.YAML()); err != nil { // 1e3 is 1000 after that
		return err
	}
	path, err := v.edited(was.YAML())
	if err != nil {
		return err
	}
	kept := func(err error) error { return fail(exitNo, "%w; nothing was changed; your text is in %s", err, path) }
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	is, err := pgconfig.ParseYAML(text)
	if err == nil {
		err = is.Validate()
	}
	if err != nil {
		return kept(err)
	}
	lines := pgconfig.Difference(was, is)
	if len(lines) == 0 {
		v.say("nothing was changed")
		return os.Remove(path)
	}
	v.writeDifference(was, is, lines)
	if err := v.confirm("This is to be changed."); err != nil {
		return fail(exitNo, "%w; your text is in %s", err, path)
	}
	writeCtx, cancel := context.WithTimeout(v.cmd.Context(), v.timeout) // the person took a while
	defer cancel()
	next, err := r.shared.Write(writeCtx, is, version)
	if err != nil {
		return kept(err)
	}
	if err := v.awaitTaken(r, was, is, next); err != nil {
		v.say("your text is in %s", path)
		return err
	}
	return os.Remove(path)
}

// edited has a person edit a text, and returns the path of a file with what has become of it.
func (v *asking) edited(text []byte) (path string, err error) {
	editor := os.Getenv("EDITOR")
	if in, ok := v.stdin.(*os.File); editor == "" && ok && term.IsTerminal(int(in.Fd())) {
		for _, name := range []string{"vi", "editor"} {
			if p, err := exec.LookPath(name); err == nil {
				editor = p
			}
		}
	}
	if editor == "" {
		return "", errors.New("there is no terminal, or no editor: set EDITOR, or use 'primacy postgres config set'")
	}
	f, err := os.CreateTemp("", "primacy-"+v.name+"-*.yaml")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	// As a shell command, for EDITOR may have arguments.
	cmd := exec.CommandContext(v.cmd.Context(), "/bin/sh", "-c", editor+` "$1"`, "sh", f.Name())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = v.stdin, v.stdout, v.stderr
	if err := cmd.Run(); err != nil {
		return "", fail(exitNo, "the editor %s: %w; nothing was changed; your text is in %s", editor, err, f.Name())
	}
	return f.Name(), nil
}
