package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

func TestBadFlagsGiveOneLine(t *testing.T) {
	for _, args := range []string{"-store mysql", "-drift some", "-seed 1 -for 1m", "-for soon", "-seeds -1",
		"-nonsense", "7", "-workers -2", "-seed 0", "-for -1s"} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &out, &errs); code != 2 || out.Len() > 0 ||
			strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: exit %d, %q, %q", args, code, out.String(), errs.String())
		}
	}
}

func TestSeedsGiveATable(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), strings.Fields("-seeds 40"), &out, &errs); code != 0 || errs.Len() > 0 {
		t.Fatalf("exit %d, %q", code, errs.String())
	}
	for _, want := range []string{"seeds                                                                40 ",
		"hand-overs", "fault: process paused",
		"violations                                                            0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestAnInterruptGivesTheTableSoFar(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, strings.Fields("-for 1h"), &out, &errs); code != 0 ||
		!strings.Contains(out.String(), "virtual time") {
		t.Fatalf("exit %d, %q, %q", code, out.String(), errs.String())
	}
}

func TestOneSeedGivesItsTimeline(t *testing.T) {
	var first, second, errs bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if code := run(t.Context(), strings.Fields("-seed 7"), out, &errs); code != 0 || errs.Len() > 0 {
			t.Fatalf("exit %d, %q", code, errs.String())
		}
	}
	if first.String() != second.String() || !strings.Contains(first.String(), "what happened") ||
		!strings.Contains(first.String(), "\nhash ") {
		t.Errorf("two replays of one seed:\n%s\n%s", first.String(), second.String())
	}
}

func TestClocksBeyondTheBound(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), strings.Fields("-drift beyond -store plain -seeds 150"), &out, &errs); code != 0 ||
		!strings.Contains(out.String(), "two leaders at once, beyond the bound") {
		t.Fatalf("exit %d, %q, %q", code, out.String(), errs.String())
	}
}
