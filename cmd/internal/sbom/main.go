// Command sbom writes the CycloneDX bill of materials of a Go program: the modules that the
// toolchain recorded in it, and no others.
//
//	sbom PROGRAM VERSION >PROGRAM.cdx.json
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

type bill struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp,omitempty"`
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom PROGRAM VERSION")
		os.Exit(2)
	}
	info, err := buildinfo.ReadFile(os.Args[1])
	if err == nil {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		err = e.Encode(billOf(info, os.Args[2], os.Getenv("SOURCE_DATE_EPOCH")))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// billOf lists a program's modules. Modules of the program's own tree have its version.
func billOf(info *debug.BuildInfo, version, epoch string) bill {
	b := bill{Format: "CycloneDX", Spec: "1.5", Version: 1}
	var seconds int64
	if _, err := fmt.Sscan(epoch, &seconds); err == nil {
		b.Metadata.Timestamp = time.Unix(seconds, 0).UTC().Format(time.RFC3339)
	}
	b.Metadata.Component = component{Type: "application", Ref: info.Path, Name: info.Path, Version: version}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "CGO_ENABLED" {
			b.Metadata.Component.Properties = append(b.Metadata.Component.Properties, property{"go:" + s.Key, s.Value})
		}
	}
	std := strings.TrimPrefix(info.GoVersion, "go")
	b.Components = []component{{Type: "library", Ref: "std@" + std, Name: "std", Version: std,
		PURL: "pkg:golang/std@" + std}}
	for _, d := range info.Deps {
		b.Components = append(b.Components, componentOf(d, version))
	}
	return b
}

func componentOf(m *debug.Module, version string) component {
	for m.Replace != nil {
		m = m.Replace
	}
	c := component{Type: "library", Name: m.Path, Version: m.Version}
	if m.Version == "" || m.Version == "(devel)" {
		c.Version = version
	}
	c.Ref = c.Name + "@" + c.Version
	c.PURL = "pkg:golang/" + c.Ref
	if m.Sum != "" {
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}
