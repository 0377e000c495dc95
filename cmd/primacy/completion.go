package main

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/embedded"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/open"
)

// completionTime is how long a shell waits for the store when its user presses Tab. What is not
// known by then is not offered.
const completionTime = 250 * time.Millisecond

type completer = cobra.CompletionFunc

// values are what flags take, on all verbs. What stands nowhere here takes a file, or nothing that
// could be offered.
var values = map[string][]string{
	"output": {"table", "json", "ndjson"}, "notify": {"candidate", "leader"}, "on-lost": {"exit", "recampaign"},
	"on-exit":        {"resign", "restart"},
	"on-unreachable": {"stop-at-deadline", "stop-now"}, "overlap": {"forbid", "allow", "replace"},
	"missed": {"once", "skip", "all"}, "isolate": {isolatePID}, "for": {"30m", "1h", "8h", shown.Forever},
	"on-unhealthy": {keepLeading, "resign"},
}

// files are the flags that name a file.
var files = []string{"config", "file", "events", "socket", "tls-cert", "tls-key", "tls-client-ca", "token-file"}

// addCompletions has verbs and their flags complete from what stands in the store.
func addCompletions(a *app, root *cobra.Command) {
	for _, c := range root.Commands() {
		switch c.Name() {
		case "leader", "resign", "history", "pause", "resume", "shards":
			c.ValidArgsFunction = complete(a, offerNames, 1)
		case "transfer":
			c.ValidArgsFunction = complete(a, offerNames, 1)
			_ = c.RegisterFlagCompletionFunc("to", complete(a, offerWaiting, -1))
		case "status", "top":
			c.ValidArgsFunction = complete(a, offerNames, 1)
		case "observe":
			c.ValidArgsFunction = complete(a, offerNames, -1)
		case "drain":
			c.ValidArgsFunction = complete(a, offerMembers, 1)
		case "run", "lock":
			c.ValidArgsFunction = nameThenCommand(a)
		}
		addFlagCompletions(a, c)
	}
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(values["output"],
		cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("store", cobra.FixedCompletions(schemes(),
		cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"id", "ttl", "timeout"} {
		_ = root.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
}

// completing says whether a shell asks what there is to offer.
func completing(cmd *cobra.Command) bool {
	return cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd
}

func addFlagCompletions(a *app, c *cobra.Command) {
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		how := cobra.NoFileCompletions
		switch {
		case values[f.Name] != nil:
			how = cobra.FixedCompletions(values[f.Name], cobra.ShellCompDirectiveNoFileComp)
		case f.Name == "election", f.Name == "name":
			how = complete(a, offerNames, -1)
		case f.Name == "is":
			how = complete(a, offerMembers, -1)
		case slices.Contains(files, f.Name), f.Name == "help":
			return
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, how) // an error: it has one already
	})
	for _, sub := range c.Commands() {
		addFlagCompletions(a, sub)
	}
}

// offer is what a state gives a shell to offer: words, each with a few more for people.
type offer func(st primacy.State, args []string) [][2]string

// complete offers what is in the store, for the first so many arguments (below 0: for all). Nothing
// is said of what goes wrong: the user is in the middle of a line.
func complete(a *app, what offer, most int) completer {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offers(a, cmd, what, args, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// nameThenCommand completes NAME, and behind it what a shell would.
func nameThenCommand(a *app) completer {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return offers(a, cmd, offerNames, args, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

func offers(a *app, cmd *cobra.Command, what offer, args []string, begun string) (out []cobra.Completion) {
	a.quiet, a.stderr = true, io.Discard
	if a.prepare(cmd) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	found := make(chan []primacy.State, 1)
	go func() { found <- allStates(ctx, a) }() // a store that does not obey is left behind
	var states []primacy.State
	select {
	case states = <-found:
	case <-ctx.Done():
		return nil
	}
	seen := map[string]bool{}
	for _, st := range states {
		for _, o := range what(st, args) {
			if word := o[0]; strings.HasPrefix(word, begun) && typeable(word) && !seen[word] {
				seen[word] = true
				out = append(out, cobra.CompletionWithDesc(word, o[1]))
			}
		}
	}
	return out
}

// allStates reads all lines from the store, if it answers soon.
func allStates(ctx context.Context, a *app) []primacy.State {
	st, err := reachStore(ctx, a)
	if err != nil {
		return nil
	}
	s, err := primacy.NewSession(st, &primacy.Options{ID: "completion"})
	if err != nil {
		return nil
	}
	states, err := s.List(ctx, "")
	if err != nil {
		return nil
	}
	return states
}

// reachStore opens the store. An embedded one is not started for this: it is asked only where
// somebody hosts it.
func reachStore(ctx context.Context, a *app) (driver.Store, error) {
	if a.store != "" && !strings.HasPrefix(a.store, embeddedScheme) {
		return open.Open(ctx, a.store)
	}
	dir, err := a.embeddedDir()
	if err != nil {
		return nil, err
	}
	endpoint, _, err := embedded.Reach(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	return etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}})
}

// typeable says whether a word can go into a command line as it is: what a shell reads otherwise is
// not offered, whoever chose that name.
func typeable(s string) bool {
	return s != "" && len(s) <= primacy.MaxName && s[0] != '-' && s[0] != '~' &&
		!strings.ContainsFunc(s, func(r rune) bool {
			return !strings.ContainsRune("-_./:@+,%", r) && (r < utf8Self && !isWord(r) || r >= utf8Self &&
				!unicode.IsLetter(r) && !unicode.IsDigit(r))
		})
}

const utf8Self = 0x80

func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// offerNames offers the names in use, and who leads them.
func offerNames(st primacy.State, args []string) [][2]string {
	if slices.Contains(args, st.Name) {
		return nil
	}
	return [][2]string{{st.Name, who(st.Leader)}}
}

// offerWaiting offers who waits for the name that was given.
func offerWaiting(st primacy.State, args []string) (all [][2]string) {
	if len(args) == 0 || st.Name != args[0] {
		return nil
	}
	for _, w := range st.Waiting {
		if !w.Held {
			all = append(all, [2]string{w.ID, "waits"})
		}
	}
	return all
}

// offerMembers offers who stands in any line, or in that of the name that was given.
func offerMembers(st primacy.State, args []string) (all [][2]string) {
	if len(args) > 0 && st.Name != args[0] {
		return nil
	}
	if st.Leader != nil {
		all = append(all, [2]string{st.Leader.ID, "leads " + named(st.Name)})
	}
	for _, w := range st.Waiting {
		all = append(all, [2]string{w.ID, "waits for " + named(st.Name)})
	}
	return all
}
