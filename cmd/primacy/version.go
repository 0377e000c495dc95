package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Set by the linker for a release. Without them, what the toolchain knows of a build stands.
var version, commit, date string

// versionJSON is what is known of this program's build; a field is empty where that is unknown.
type versionJSON struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"` // of the commit
	Changed  bool   `json:"changed"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Etcd     string `json:"etcd"` // of the embedded store
}

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which version this is",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion(debug.ReadBuildInfo())
			if a.output != "table" {
				return a.writeJSON(v)
			}
			_, err := fmt.Fprintln(a.stdout, v)
			return err
		},
	}
}

func (v versionJSON) String() string {
	s := "primacy " + v.Version
	if v.Commit != "" {
		s += ", commit " + v.Commit[:min(len(v.Commit), 12)]
	}
	if v.Changed {
		s += " with changes"
	}
	if v.Date != "" {
		s += ", " + v.Date
	}
	return s + fmt.Sprintf(", %s, %s, embedded etcd %s", v.Go, v.Platform, cmp.Or(v.Etcd, "unknown"))
}

// buildVersion reads what the toolchain and the linker wrote into the program.
func buildVersion(info *debug.BuildInfo, ok bool) versionJSON {
	v := versionJSON{Version: version, Commit: commit, Date: date, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if !ok {
		v.Version = cmp.Or(v.Version, "unknown")
		return v
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	for _, d := range info.Deps {
		if d.Path == "go.etcd.io/etcd/server/v3" {
			v.Etcd = d.Version
		}
	}
	if v.Version == "" { // not by the linker: what the toolchain saw belongs together
		v.Version = cmp.Or(info.Main.Version, "(devel)")
		v.Commit, v.Date, v.Changed = settings["vcs.revision"], settings["vcs.time"], settings["vcs.modified"] == "true"
	}
	return v
}
