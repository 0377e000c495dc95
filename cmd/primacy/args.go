package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/cmd/internal/near"
)

// afterName reads the flags that stand between NAME and COMMAND: most people type them there. args
// is what follows NAME. COMMAND begins at the first word that is no flag, or behind --, and nothing
// of it is read: its flags are its own.
func afterName(cmd *cobra.Command, args []string) (command []string, err error) {
	if len(args) == 0 || args[0] == "--" || !strings.HasPrefix(args[0], "-") {
		return args, nil
	}
	if err := cmd.ParseFlags(args); err != nil {
		return nil, cmd.FlagErrorFunc()(cmd, err)
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return nil, pflag.ErrHelp
	}
	command = cmd.Flags().Args()
	if cmd.ArgsLenAtDash() == 0 { // one that is empty must be told from none
		command = append([]string{"--"}, command...)
	}
	return command, nil
}

// flagError tells of a flag that is not there, and which was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if group := unknown.GetSpecifiedShortnames(); group != "" {
		return fmt.Errorf("unknown flag: -%s%s", group, hint("--"+near.Word(group, flagsOf(cmd))))
	}
	return fmt.Errorf("unknown flag: --%s%s", name, hint("--"+near.Word(name, flagsOf(cmd))))
}

// flagsOf returns the names of the flags that may be given with a verb.
func flagsOf(cmd *cobra.Command) (names []string) {
	for _, fs := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.InheritedFlags()} {
		fs.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
	}
	return names
}

// verbsOf returns the verbs below a command.
func verbsOf(cmd *cobra.Command) (names []string) {
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return names
}

// hint asks whether a word was meant. Without a word there is nothing to ask.
func hint(word string) string {
	if strings.Trim(word, "-") == "" {
		return ""
	}
	return "; did you mean " + word + "?"
}

// setBesideFlags are the variables that commands and hooks are given, and that no flag has.
var setBesideFlags = []string{"PRIMACY_NAME", tokenEnv, ttlEnv, roleEnv, eventEnv, leaderEnv, reasonEnv, stateFileEnv,
	heldEnv, shardEnv, shardsEnv, "PRIMACY_CRON_JOB", "PRIMACY_CRON_INSTANT", "PRIMACY_CRON_ATTEMPT",
	"PRIMACY_CRON_RUN"}

// misspelt returns a warning for each variable that is probably meant for a flag and is the name of
// none. Others stay untold: they may be anybody's, as those that Kubernetes makes of a service
// called primacy.
func misspelt(root *cobra.Command, environ []string) (warnings []string) {
	var names []string
	var all func(*cobra.Command)
	all = func(c *cobra.Command) {
		names = append(names, flagsOf(c)...)
		for _, sub := range c.Commands() {
			all(sub)
		}
	}
	all(root)
	for _, kv := range environ {
		key, _, _ := strings.Cut(kv, "=")
		rest, ours := strings.CutPrefix(key, "PRIMACY_")
		service := strings.HasPrefix(rest, "SERVICE_") || rest == "PORT" || strings.HasPrefix(rest, "PORT_")
		known := slices.Contains(setBesideFlags, key) ||
			slices.ContainsFunc(names, func(n string) bool { return variable(n) == key })
		if !ours || service || known {
			continue
		}
		if meant := near.Word(rest, names); meant != "" && !slices.Contains(setBesideFlags, variable(meant)) {
			warnings = append(warnings, fmt.Sprintf("%s is set, and means nothing here%s", clean(key),
				hint(variable(meant))))
		}
	}
	return warnings
}

// withUnits has all flags for durations say what is missing in one without a unit. --wait takes
// seconds then, as flock(1) does, on every verb.
func withUnits(c *cobra.Command) {
	for _, fs := range []*pflag.FlagSet{c.PersistentFlags(), c.Flags()} {
		fs.VisitAll(func(f *pflag.Flag) {
			if _, done := f.Value.(unitValue); f.Value.Type() != "duration" || done {
				return
			}
			f.Value = unitValue{f.Value, f.Name == "wait"}
			if f.DefValue == "0s" {
				f.DefValue = "" // else the help shows it
			}
		})
	}
	for _, sub := range c.Commands() {
		withUnits(sub)
	}
}

// unitValue is a duration that somebody types.
type unitValue struct {
	pflag.Value
	seconds bool // a plain number is one of seconds
}

// Set reads "1m30s"; where plain seconds are allowed also "5" and "2.5".
func (u unitValue) Set(v string) error {
	d, err := time.ParseDuration(v)
	n, notPlain := strconv.ParseFloat(v, 64)
	if u.seconds && err != nil && notPlain == nil && math.Abs(n) < maxSeconds {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	switch {
	case err == nil && u.seconds && d < 0:
		return errors.New("it must not be negative")
	case err == nil:
		return u.Value.Set(d.String())
	case u.seconds:
		return errors.New("give seconds, such as 2.5, or a duration, such as 2m")
	case notPlain == nil && isDuration(v+"s"):
		return fmt.Errorf("%s what? write %ss for seconds", clean(v), clean(v))
	}
	return errors.New("give a duration, such as 10s, 1m30s or 500ms")
}

func isDuration(s string) bool {
	_, err := time.ParseDuration(s)
	return err == nil
}

// maxSeconds is as much as a duration holds.
const maxSeconds = float64(1<<63-1) / 1e9

// closedOutput says that standard output was closed when this process began. The Go runtime has
// opened /dev/null in its place, for reading and writing; who means /dev/null opens it for writing.
func closedOutput(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	if err != nil || !os.SameFile(info, null) {
		return false
	}
	mode, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && mode&unix.O_ACCMODE == unix.O_RDWR
}
