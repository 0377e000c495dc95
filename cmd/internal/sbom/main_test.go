package main

import (
	"runtime/debug"
	"testing"
)

func TestBill(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.2.3", Path: "example.com/p",
		Settings: []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "-trimpath", Value: "true"}},
		Deps: []*debug.Module{
			{Path: "example.com/own", Version: "(devel)"},
			{Path: "example.com/a", Version: "v1.0.0", Sum: "h1:x"},
			{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/c",
				Version: "v2.0.0"}},
		}}
	b := billOf(info, "v9.9.9", "0")
	var got []string
	for _, c := range b.Components {
		got = append(got, c.PURL)
	}
	want := []string{"pkg:golang/std@1.2.3", "pkg:golang/example.com/own@v9.9.9", "pkg:golang/example.com/a@v1.0.0",
		"pkg:golang/example.com/c@v2.0.0"}
	if len(got) != len(want) {
		t.Fatalf("got %q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("component %d is %s, want %s", i, got[i], want[i])
		}
	}
	if b.Metadata.Timestamp != "1970-01-01T00:00:00Z" || len(b.Metadata.Component.Properties) != 1 ||
		b.Components[2].Properties[0].Value != "h1:x" {
		t.Errorf("%+v", b)
	}
	if billOf(info, "v1", "").Metadata.Timestamp != "" {
		t.Error("a time that nobody gave")
	}
}
