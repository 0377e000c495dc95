//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheServePageHolds types every command of docs/serve.md, in order, against a server as it
// starts by default.
func TestTheServePageHolds(t *testing.T) {
	text, err := os.ReadFile("../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, m[1])
	}
	want := [][]string{ // of each block but the first two and the campaign, in what it prints
		{`{"election":"billing","leads":true,"id":"web-1","token":"`, `"elections":[{"name":"billing"`,
			`"value":"{\"zone\":\"b\"}"`, `"reason":"leading"`, `{"event":"leader","state":{"name":"billing"`},
		{`{"token":"`, `{"token":"`},
		{`"name":"nightly"`, `"lease_ms":`, `{"token":"`},
		{`{"token":"1843"}`},
	}
	if len(blocks) != len(want)+3 || blocks[0] != "primacy serve\n" || !strings.Contains(blocks[2], "/campaign") {
		t.Fatalf("the page has %d blocks: %q", len(blocks), blocks)
	}
	w := newWorld(t).with("PRIMACY_TTL=6s")
	s := sideOn(w.start("serve"), filepath.Join(w.dir, "primacy", "primacy.sock"))
	s.ready()
	shell := func(script string) *exec.Cmd {
		c := exec.Command("sh", "-c", blocks[1]+script)
		c.Env, c.Dir = w.env, w.dir
		return c
	}
	var out buffer
	lead := shell("exec " + blocks[2])
	lead.Stdout = &out
	if err := lead.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lead.Process.Kill(); _ = lead.Wait() })
	w.eventually("the page's candidate leads", func() bool {
		return strings.Contains(out.String(),
			`"event":"elected"`)
	})
	s.campaignFor("billing", "web-2") // whom the page hands over to
	s.awaitWaiting("billing")
	for i, block := range blocks[3:] {
		b, err := shell(block).CombinedOutput()
		if err != nil && !strings.Contains(block, "--max-time") {
			t.Errorf("%s: %v", block, err)
		}
		rest := string(b)
		for _, text := range want[i] {
			_, after, found := strings.Cut(rest, text)
			if !found {
				t.Errorf("%s\nprinted %s\nwithout %s", block, b, text)
			}
			rest = after
		}
		if strings.Contains(string(b), "urn:primacy:") {
			t.Errorf("%s\nprinted a problem: %s", block, b)
		}
	}
	w.eventually("the page's candidate is told", func() bool {
		return strings.Contains(out.String(),
			`"reason":"transferred"`)
	})
	for _, m := range regexp.MustCompile(`(?m)^    (\{"event".*)$`).FindAllStringSubmatch(string(text), -1) {
		for _, key := range regexp.MustCompile(`"([a-z_]+)":`).FindAllString(m[1], -1) {
			if !strings.Contains(out.String(), key) {
				t.Errorf("the page shows %s, the server printed %s", key, out.String())
			}
		}
	}
}
