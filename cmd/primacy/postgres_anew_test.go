package main

import (
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// TestAnewLooksWhoStands: nobody begins a cluster anew while another member's agent leads or waits.
func TestAnewLooksWhoStands(t *testing.T) {
	t.Parallel()
	for want, line := range map[string]primacy.State{
		"":                               {Leader: &primacy.Entry{ID: "pg1"}}, // its own, from before a crash
		"stop the agent of pg2 first":    {Leader: &primacy.Entry{ID: "pg2"}},
		"stop the agent of pg3 first":    {Waiting: []primacy.Entry{{ID: "pg1"}, {ID: "pg3"}}},
		"the agent of pg2, pg3 first; a": {Leader: &primacy.Entry{ID: "pg2"}, Waiting: []primacy.Entry{{ID: "pg3"}}},
	} {
		err := othersStand(line, "pg1")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestAdoptDoesNotSpeakOfPatroniAfterALoss: a member that was chosen, or is to join, may have the
// only data, and no Patroni keeps them.
func TestAdoptDoesNotSpeakOfPatroniAfterALoss(t *testing.T) {
	t.Parallel()
	for what, x := range map[string]struct {
		s       core.State
		refused bool
	}{
		"chosen":                {core.State{Adopted: core.AdoptedAnew}, true},
		"to join":               {core.State{Adopted: core.AdoptedStandby, Joins: "x,y"}, true},
		"it has seen a record":  {core.State{Adopted: core.AdoptedAnew, Seq: 2}, false},
		"adopted from Patroni":  {core.State{Adopted: core.AdoptedStandby}, false},
		"not adopted, and new":  {core.State{}, false},
		"to join, and has done": {core.State{Adopted: core.AdoptedStandby, Joins: "x,y", Seq: 2}, false},
	} {
		if err := waitsForAnew(x.s); (err != nil) != x.refused {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestAnewRefusesDataOfAnotherSystem: what somebody has put into the directory begins no cluster.
func TestAnewRefusesDataOfAnotherSystem(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]core.State{
		"":                        {SystemID: "7"},
		"and this member is of 8": {SystemID: "7", Noted: core.Noted{SystemID: "8"}},
		"and this member is of 9": {SystemID: "9"},
	} {
		err := sameSystem(s, "/data", "7")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
