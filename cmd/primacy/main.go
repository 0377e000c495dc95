// Command primacy runs exactly one of something across a fleet, and never two.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/callbacks"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/driver"
)

// Exit codes: what is below 121 is the command's own status (128+n: it died of signal n), what is
// 121 to 127 is ours.
const (
	exitNo          = 1   // only for predicates: the answer is no
	exitUnreachable = 121 // the store was unreachable or refused us before the command started
	exitLost        = 122 // leadership was lost while the command ran
	exitResigned    = 123 // given up on purpose: resigned or transferred
	exitNotAcquired = 124 // not won in the time given
	exitUsage       = 125 // usage, configuration or our own failure
)

// exitError carries an exit code. Without err nothing is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func fail(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// app is what all verbs share: the flags on all of them, and where they read and write.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	store          string
	id             string
	ttl            time.Duration
	timeout        time.Duration
	output         string
	verbose, quiet bool
	stays          bool // this verb has the annotation stays
	configPath     string
	config         *config  // what that file says to this verb; nil without one
	typed          []string // the flags of the command line: not of the environment, nor of that file

	interrupted syscall.Signal // 0, or what this process ends by: see supervise.DieOf
}

// run is the whole program but for the process: it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := rootCommand(a)
	if len(args) == 1 && args[0] == "--version" { // no flag of all verbs: PRIMACY_VERSION would set it
		args = []string{"version"}
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	if len(args) > 1 && args[0] == "help" { // cobra's own says it in a page, and exits 0
		if _, _, err := root.Find(args[1:]); err != nil {
			fmt.Fprintf(a.stderr, "primacy: help: %s\n", oneLine(err))
			return exitUsage
		}
	}
	help := &heard{to: stdout} // cobra's own writer of pages looks at no error
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(help)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil && help.lost != nil {
		err = fmt.Errorf("standard output: %w", help.lost)
	}
	if err == nil {
		return 0
	}
	code := codeOf(err)
	var e *exitError
	if !errors.As(err, &e) || e.err != nil {
		fmt.Fprintf(a.stderr, "primacy: %s%s\n", oneLine(err), advice(err, a.store))
	}
	if a.interrupted != 0 {
		supervise.DieOf(a.interrupted)
	}
	return code
}

func codeOf(err error) int {
	var e *exitError
	switch {
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, driver.ErrSlots): // an ErrRefused too, but no later start would do better
		return exitUsage
	case errors.Is(err, primacy.ErrUnreachable), errors.Is(err, primacy.ErrRefused):
		return exitUnreachable
	}
	return exitUsage // what cobra says of arguments, and what is invalid
}

// oneLine is an error for a terminal. It may carry what others wrote into the store.
func oneLine(err error) string {
	s := strings.TrimPrefix(err.Error(), "primacy: ")
	if before, verbs, ok := strings.Cut(s, "\n\nDid you mean this?\n"); ok { // cobra's, in lines
		s = before + "; did you mean " + strings.Join(strings.Fields(verbs), " or ") + "?"
	}
	return printable(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
}

func rootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "primacy",
		Short: "Runs exactly one of something across a fleet, and never two",
		Long: `Runs exactly one of something across a fleet, and never two: leader election under a lease in a
store you already run.

  primacy demo                         three candidates on this machine, one is killed, one is frozen
  primacy run billing -- ./invoicer    run a command while leading; start it on as many machines as you like

Words: the candidates for a NAME wait in a queue; the oldest one leads, under a token that is larger than all
before it. Leadership lives on a lease in the store, which ends a ttl after its last renewal.

Exit codes: the command's own; 121 store unreachable before start, 122 leadership lost while it ran, 123
resigned on purpose, 124 not acquired in time, 125 usage or own failure, 126/127 command not executable/not
found; 1 means that the answer to a question is no.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if completing(cmd) {
				return nil // it says nothing of what is wrong: see offers
			}
			return a.prepare(cmd)
		},
	}
	f := root.PersistentFlags()
	f.StringVarP(&a.store, "store", "S", "",
		"the store: a URL, see 'primacy help stores', or embedded:DIR (default: embedded, in your state folder)")
	f.StringVar(&a.id, "id", "", "this candidate's identity (default HOST-PID-XXXX)")
	f.DurationVar(&a.ttl, "ttl", primacy.DefaultTTL, "time to live of the lease")
	f.DurationVar(&a.timeout, "timeout", 0,
		"how long to wait for the store at startup (default 10s; 1m for run, cron and serve)")
	f.StringVarP(&a.output, "output", "o", "table", "table, json or ndjson")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "write a debug log to stderr")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "write only errors to stderr")
	f.StringVar(&a.configPath, "config", "",
		"a TOML file of flags, with a [table] for each command; a flag goes before the environment, that before it")
	root.AddCommand(runCommand(a), lockCommand(a), leaderCommand(a), observeCommand(a), resignCommand(a),
		transferCommand(a), drainCommand(a), pauseCommand(a), resumeCommand(a), shardsCommand(a),
		statusCommand(a), historyCommand(a), topCommand(a), dashboardCommand(a), versionCommand(a),
		devCommand(a), demoCommand(a), doctorCommand(a), workerCommand(), serveCommand(a), cronCommand(a),
		postgresCommand(a))
	root.AddCommand(schemaCommand(a), storesTopic())
	addCompletions(a, root)
	root.SetFlagErrorFunc(flagError)
	withUnits(root)
	return root
}

// How long a store is waited for at startup. Who stays starts together with the store, as in one
// compose file: a minute is less than the 90 s in which systemd wants to hear of a start.
const (
	askTimeout  = 10 * time.Second
	stayTimeout = time.Minute
)

// stays marks the verbs that stay: they wait longer for the store.
const stays = "primacy-stays"

// prepare fills flags that were not given from the environment (PRIMACY_STORE for --store), then
// from the file of --config, and checks those on all verbs.
func (a *app) prepare(cmd *cobra.Command) error {
	flags := cmd.Flags()
	a.stays = cmd.Annotations[stays] != ""
	if err := a.loadConfig(cmd); err != nil {
		return err
	}
	var err error
	flags.Visit(func(f *pflag.Flag) { a.typed = append(a.typed, f.Name) })
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || err != nil {
			return
		}
		_, none := f.Annotations[noVariable]
		key := variable(f.Name)
		v := os.Getenv(key) // empty is not set, as a unit file or a Dockerfile leaves it
		if v == "" || none {
			err = a.config.set(flags, f)
		} else if e := flags.Set(f.Name, v); e != nil {
			err = fmt.Errorf("%s=%q: %w", key, v, e)
		}
	})
	if err != nil {
		return err
	}
	if a.config != nil {
		if key := a.config.exposed(); key != "" {
			a.say("warning: %s holds a password (%s) and everybody may read it: chmod o-r %s", a.configPath, key,
				a.configPath)
		}
	}
	switch a.output {
	case "table", "json", "ndjson":
	default:
		return fmt.Errorf("--output %q: use table, json or ndjson", a.output)
	}
	if a.ttl <= 0 { // 0 would be the library's default: not what was asked for
		return fmt.Errorf("--ttl %v: use a positive duration, such as %v", a.ttl, primacy.DefaultTTL)
	}
	switch {
	case a.timeout > 0:
	case flags.Changed("timeout"):
		return fmt.Errorf("--timeout %v: use a positive duration, such as 10s", a.timeout)
	case a.stays:
		a.timeout = stayTimeout
	default:
		a.timeout = askTimeout
	}
	if a.id == "" && flags.Changed("id") { // an empty variable, most likely
		return errors.New("--id is empty: leave it out to have HOST-PID-XXXX")
	}
	for _, w := range misspelt(cmd.Root(), os.Environ()) {
		a.say("warning: %s", w)
	}
	return nil
}

// noVariable marks a flag that no environment variable stands for: what has its name means another
// thing.
const noVariable = "primacy-no-variable"

// variable is the environment variable that stands for a flag.
func variable(flag string) string {
	return "PRIMACY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func (a *app) loadConfig(cmd *cobra.Command) (err error) {
	if a.configPath == "" {
		a.configPath = os.Getenv(variable("config"))
	}
	if a.configPath != "" {
		a.config, err = readConfig(a.configPath, cmd)
	}
	return err
}

// say tells people what is going on, on stderr; stdout belongs to the command or to the answer.
func (a *app) say(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.stderr, "primacy: "+format+"\n", args...)
	}
}

func (a *app) logger() *slog.Logger {
	if !a.verbose {
		return nil
	}
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == supervise.GuardianArg {
		supervise.GuardianMain(executeLastAction) // does not return
	}
	if len(os.Args) > 1 && os.Args[1] == callbacks.KeeperArg {
		callbacks.KeeperMain() // does not return
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
