package safety

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestCheckAcceptsWhatElectionsDo(t *testing.T) {
	for name, history := range map[string][]Interval{
		"nothing":                       nil,
		"one":                           {{"n", 1, "a", 0, 10}},
		"one begins when another ends":  {{"n", 2, "b", 10, 20}, {"n", 1, "a", 0, 10}},
		"an instant where another ends": {{"n", 1, "a", 0, 10}, {"n", 2, "b", 10, 10}, {"n", 3, "c", 10, 20}},
		"one term seen more than once": {{"n", 1, "a", 0, 10}, {"n", 1, "a", 5, 30}, {"n", 1, "a", 7, 8},
			{"n", 2, "b", 30, 40}},
		"two names at once": {{"n", 2, "a", 0, 10}, {"m", 1, "b", 5, 15}, {"m", 2, "c", 15, 16}},
		"one owner twice":   {{"n", 1, "a", 0, 10}, {"n", 2, "a", 11, 20}},
	} {
		if err := Check(history); err != nil {
			t.Errorf("%s: %v, want nil", name, err)
		}
	}
}

func TestCheckBites(t *testing.T) {
	for name, test := range map[string]struct {
		history []Interval
		want    []string // parts of the error
	}{
		"overlap": {
			[]Interval{{"n", 1, "a", 0, 11}, {"n", 2, "b", 10, 20}},
			[]string{"two leaders at once for 1ns", `b led "n" under token 2 in [10, 20) ns`, `a led "n" under token 1 in [0, 11) ns`},
		},
		"one inside the other": {
			[]Interval{{"n", 2, "b", 10, 20}, {"n", 1, "a", 0, 100}},
			[]string{"two leaders at once for 10ns", "token 1", "token 2"},
		},
		"an instant inside another": {
			[]Interval{{"n", 1, "a", 0, 100}, {"n", 2, "b", 50, 50}},
			[]string{"two leaders at once", "token 1", "token 2"},
		},
		"the same beginning": {
			[]Interval{{"n", 1, "a", 5, 6}, {"n", 2, "b", 5, 7}},
			[]string{"two leaders at once"},
		},
		"an overlap with a term that ended last, not with the last that began": {
			[]Interval{{"n", 1, "a", 0, 100}, {"n", 1, "a", 10, 20}, {"n", 2, "b", 50, 150}},
			[]string{"two leaders at once for 50ns", "[0, 100)"},
		},
		"one owner under two tokens at once": {
			[]Interval{{"n", 1, "a", 0, 11}, {"n", 2, "a", 10, 20}},
			[]string{"two leaders at once"},
		},
		"the token went back": {
			[]Interval{{"n", 2, "a", 0, 10}, {"n", 1, "b", 10, 20}},
			[]string{"the token went back", `b led "n" under token 1`, `a led "n" under token 2`},
		},
		"the token went back to one that had led": {
			[]Interval{{"n", 1, "a", 0, 10}, {"n", 2, "b", 10, 20}, {"n", 1, "a", 30, 40}},
			[]string{"the token went back", "[30, 40)", "[10, 20)"},
		},
		"one token, two owners": {
			[]Interval{{"n", 1, "a", 0, 10}, {"n", 1, "b", 20, 30}},
			[]string{"one token, two owners", "a led", "b led"},
		},
		"backwards": {
			[]Interval{{"n", 1, "a", 10, 9}},
			[]string{"ends before it begins", "[10, 9)"},
		},
	} {
		err := Check(test.history)
		if err == nil {
			t.Errorf("%s: Check = nil, want an error", name)
			continue
		}
		for _, part := range test.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: Check = %q, want %q in it", name, err, part)
			}
		}
	}
}

// TestCheckAgreesWithEveryPair compares the sweep with the rule itself, said of every pair of
// intervals.
func TestCheckAgreesWithEveryPair(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	good, bad := 0, 0
	for range 20000 {
		var history []Interval
		for range 1 + rnd.IntN(5) {
			from := rnd.IntN(12)
			history = append(history, Interval{
				Name: string(rune('m' + rnd.IntN(2))), Token: uint64(from/3 + rnd.IntN(2)),
				Who:  string(rune('a' + rnd.IntN(2))),
				From: time.Duration(from), To: time.Duration(from + rnd.IntN(4)),
			})
		}
		want := everyPair(history)
		if got := Check(history) == nil; got != want {
			t.Fatalf("Check accepts = %v, every pair = %v, for %v", got, want, history)
		}
		if want {
			good++
		} else {
			bad++
		}
	}
	if good < 1000 || bad < 1000 {
		t.Errorf("%d good and %d bad histories, want enough of both to learn from", good, bad)
	}
}

// everyPair is the rule in its plainest form.
func everyPair(history []Interval) bool {
	for _, a := range history {
		for _, b := range history {
			switch {
			case a.Name != b.Name:
			case a.Token == b.Token && a.Who != b.Who:
				return false
			case a.Token < b.Token && a.From > b.From: // the larger token began first
				return false
			case a.Token < b.Token && a.To > b.From: // a began before b or with it, and still leads
				return false
			}
		}
	}
	return true
}

func TestRead(t *testing.T) {
	first := "# boot_ns token id\n100 7 a\n\n300 7 a\r\n200 7 a\n900 9 a\n950 9"
	second := "400 8 b\n500 8 b\n"
	history, err := Read("n", strings.NewReader(first), strings.NewReader(second))
	if err != nil {
		t.Fatal(err)
	}
	want := []Interval{{"n", 7, "a", 100, 300}, {"n", 8, "b", 400, 500}, {"n", 9, "a", 900, 900}}
	if len(history) != len(want) {
		t.Fatalf("Read = %v, want %v", history, want)
	}
	for i := range want {
		if history[i] != want[i] {
			t.Errorf("interval %d = %v, want %v", i, history[i], want[i])
		}
	}
	if err := Check(history); err != nil {
		t.Errorf("Check: %v", err)
	}
	// A worker that was paused and went on after its term is found in the record.
	history, err = Read("n", strings.NewReader(first), strings.NewReader(second+"901 8 b\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(history); err == nil || !strings.Contains(err.Error(), "two leaders at once") {
		t.Errorf("Check of a record with two leaders = %v, want it found", err)
	}
}

func TestReadSaysWhereARecordIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"1 2 a\n1 2\n":   "record 1: line 2: \"1 2\" is not a record",
		"1 2 a b\n":      "line 1",
		"soon 2 a\n":     "not in nanoseconds",
		"1 -2 a\n":       "the token is not a number",
		"1 2 a\n\nx\n\n": "line 3",
	} {
		_, err := Read("n", strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Read of %q = %v, want %q in the error", text, err, want)
		}
	}
	broken := errors.New("disk on fire")
	if _, err := Read("n", iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("Read of a broken reader = %v, want its error", err)
	}
}
