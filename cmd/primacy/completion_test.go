//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// bashCompletes has a real bash complete lines, with the script that the program writes, and
// returns what it offers for each.
func (w *world) bashCompletes(lines []string) map[string]string {
	w.Helper()
	const library = "/usr/share/bash-completion/bash_completion"
	if _, err := os.Stat(library); err != nil {
		if os.Getenv("CI") == "true" {
			w.Fatal(err)
		}
		w.Skip("apt-get install bash-completion")
	}
	script := `source ` + library + `; source <(primacy completion bash)
how=$(complete -p primacy); how=${how#*-F }; how=${how%% *}
for line; do
	COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9 COMP_KEY=9 COMPREPLY=()
	read -ra COMP_WORDS <<<"$line"; [[ $line != *" " ]] || COMP_WORDS+=("")
	COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
	$how
	printf 'LINE\n'
	[[ ${#COMPREPLY[@]} == 0 ]] || printf '%s\n' "${COMPREPLY[@]}"
done`
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", append([]string{"--norc", "--noprofile", "-c", script, "bash"}, lines...)...)
	c.Env, c.Dir = w.env, w.dir
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil || strings.Contains(stderr.String(), "primacy") {
		w.Fatalf("%v, stderr %q", err, stderr.String())
	}
	offers := map[string]string{}
	for i, block := range strings.Split(string(out), "LINE\n")[1:] {
		var words []string
		for l := range strings.Lines(block) {
			words = append(words, strings.Fields(l)[0]) // behind it may stand what it is
		}
		slices.Sort(words)
		offers[lines[i]] = strings.Join(words, " ")
	}
	return offers
}

func TestBashCompletesFromTheStore(t *testing.T) {
	w := newWorld(t)
	for i, name := range []string{"billing/invoicer", "billing/ledger", "cron", `$(touch x)`, "a b", "a;b", "-rf"} {
		s := w.session(fmt.Sprint("web-", i))
		if _, err := s.Election(name).Campaign(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	waits := w.session("next-1")
	go func() { _, _ = waits.Election("cron").Campaign(t.Context(), nil) }()
	w.awaitLine("cron", 2)
	wants := map[string]string{
		"primacy leader ":                       "billing/invoicer billing/ledger cron",
		"primacy leader bil":                    "billing/invoicer billing/ledger",
		"primacy status billing/i":              "billing/invoicer",
		"primacy leader cron ":                  "",
		"primacy observe cron bil":              "billing/invoicer billing/ledger",
		"primacy transfer cron --to ":           "next-1",
		"primacy transfer cron --to x":          "",
		"primacy drain web-":                    "web-0 web-1 web-2 web-3 web-4 web-5 web-6",
		"primacy run cr":                        "cron",
		"primacy lock -s bil":                   "billing/invoicer billing/ledger",
		"primacy leader -o ":                    "json ndjson table",
		"primacy run --on-unreachable ":         "stop-at-deadline stop-now",
		"primacy tran":                          "transfer",
		"primacy leader -S etcd://127.0.0.1:1 ": "", // nobody answers
	}
	lines := slices.Sorted(maps.Keys(wants))
	offers := w.bashCompletes(lines)
	for range 10 { // where the machine is busy nothing is offered: the user does not wait, and presses Tab again
		lines = slices.DeleteFunc(lines, func(line string) bool { return offers[line] != "" || wants[line] == "" })
		if len(lines) == 0 {
			break
		}
		maps.Copy(offers, w.bashCompletes(lines))
	}
	for line, want := range wants {
		if got, ok := offers[line]; !ok || got != want {
			t.Errorf("%q offers %q, want %q", line, got, want)
		}
	}
}

// Whoever presses Tab does not wait, and reads no errors.
func TestCompletionIsQuickAndSilent(t *testing.T) {
	w := newWorld(t)
	for _, env := range []string{"PRIMACY_STORE=etcd://" + silent(t), "PRIMACY_STORE=what:", "PRIMACY_TTL=x",
		"PRIMACY_CONFIG=/proc/nosuch", "PRIMACY_STORE=embedded:" + w.dir + "/none"} {
		p := w.with(env).start("__complete", "leader", "").ends(0)
		if got := p.out.String(); got != ":4\n" {
			t.Errorf("%s: it offers %q", env, got)
		}
		// the race detector's program on a busy machine; the budget itself is completionTime
		if p.took > prompt {
			t.Errorf("%s: it took %v", env, p.took)
		}
		if s := strings.ReplaceAll(p.err.String(), "Completion ended with directive: ShellCompDirectiveNoFileComp\n",
			""); s != "" {
			t.Errorf("%s: it says %q", env, s)
		}
	}
	if _, err := os.Stat(w.dir + "/none"); !os.IsNotExist(err) {
		t.Errorf("a store was made: %v", err)
	}
}

// silent returns the address of a server that takes connections and says nothing.
func silent(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestCompletionScripts(t *testing.T) {
	w := plainWorld(t)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		w.start("completion", shell).ends(0).says("primacy", "__complete")
	}
}

func TestVersion(t *testing.T) {
	w := plainWorld(t)
	w.start("version").ends(0).says("primacy ", ", go1.", "embedded etcd v3.")
	w.start("--version").ends(0).says("primacy ")
	v := decode[versionJSON](w, w.start("version", "-o", "json").ends(0).out.String())
	if v.Version == "" || v.Go == "" || v.Platform == "" || v.Etcd == "" {
		t.Errorf("%+v", v)
	}
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"},
		{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"}}}
	info.Main.Version = "v1.2.3"
	if got := buildVersion(info, true).String(); !strings.HasPrefix(got,
		"primacy v1.2.3, commit 0123456789ab with changes, 2026-01-02T03:04:05Z, go1.") {
		t.Errorf("got %q", got)
	}
	if got := buildVersion(nil, false).Version; got != "unknown" {
		t.Errorf("without build information: %q", got)
	}
}
