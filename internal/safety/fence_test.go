package safety

import (
	"strings"
	"testing"
)

func TestCheckFence(t *testing.T) {
	a1, a2, b1 := Stamp{1, "a", 1}, Stamp{1, "a", 2}, Stamp{2, "b", 1}
	call := func(s Stamp, o Outcome) Write { return Write{Stamp: s, Call: 1, Return: 2, Outcome: o} }
	for name, test := range map[string]struct {
		log    []Stamp
		writes []Write
		want   string
	}{
		"nothing": {nil, nil, ""},
		"applied, refused, unknown": {[]Stamp{a1, b1},
			[]Write{call(a1, Applied), call(b1, Applied), call(a2, Stale)}, ""},
		"an unknown write that was":     {[]Stamp{a1}, []Write{call(a1, Unknown)}, ""},
		"an unknown write that was not": {nil, []Write{call(a1, Unknown)}, ""},
		"a write nobody tells of":       {[]Stamp{a1}, nil, ""},
		"an acknowledged write that is no": {[]Stamp{a1}, []Write{call(a1, Applied), call(a2, Applied)},
			"acknowledged and lost: write 2 of a under token 1"},
		"the token goes back": {[]Stamp{a1, b1, a2}, nil,
			"the fence let an older term pass: write 2 of a under token 1, applied after write 1 of b under token 2"},
		"twice": {[]Stamp{a1, a1}, nil, "applied twice"},
		"refused and applied": {[]Stamp{a1}, []Write{call(a1, Stale)},
			"refused, and applied all the same"},
	} {
		err := CheckFence(test.log, test.writes)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: CheckFence = %v, want %q", name, err, test.want)
		}
	}
}

func TestReadWrites(t *testing.T) {
	writes, err := ReadWrites(strings.NewReader("# call return token id seq outcome\n10 20 7 a 1 ok\n\n30 40 7 a " +
		"2 stale\n50 60 7 a 3 unk"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Write{{Stamp{7, "a", 1}, 10, 20, Applied}, {Stamp{7, "a", 2}, 30, 40, Stale}}
	if len(writes) != 2 || writes[0] != want[0] || writes[1] != want[1] {
		t.Errorf("ReadWrites = %v, want %v", writes, want)
	}
	for text, want := range map[string]string{
		"1 2 3 a 4\n":       "line 1: \"1 2 3 a 4\" is not a write",
		"1 2 3 a 4 maybe\n": "none of ok, stale and unknown",
		"x 2 3 a 4 ok\n":    "line 1",
		"1 2 3 a -4 ok\n":   "line 1",
	} {
		if _, err := ReadWrites(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadWrites of %q = %v, want %q in the error", text, err, want)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for name, test := range map[string]struct {
		history []Interval
		want    []string
	}{
		"none":           {[]Interval{{"n", 1, "a", 0, 10}, {"n", 2, "b", 10, 20}, {"m", 3, "c", 0, 20}}, nil},
		"one term twice": {[]Interval{{"n", 1, "a", 0, 10}, {"n", 1, "a", 5, 20}}, nil},
		"one": {[]Interval{{"n", 1, "a", 0, 10}, {"n", 2, "b", 7, 20}},
			[]string{`two leaders for 3ns: a led "n" under token 1 in [0, 10) ns, and b led "n" under token 2 in [7, 20) ns`}},
		"an instant within": {[]Interval{{"n", 2, "b", 7, 20}, {"n", 1, "a", 9, 9}},
			[]string{"two leaders for 0s: a led"}},
		"in pieces": {[]Interval{{"n", 1, "a", 0, 10}, {"n", 1, "a", 20, 30}, {"n", 2, "b", 8, 25}},
			[]string{"two leaders for 7ns"}},
		"the longest first": {[]Interval{{"n", 1, "a", 0, 10}, {"n", 2, "b", 9, 20}, {"n", 3, "c", 12, 30}},
			[]string{"for 8ns: b", "for 1ns: a"}},
		"one token, two owners": {[]Interval{{"n", 1, "a", 0, 10}, {"n", 1, "b", 5, 20}}, []string{"for 5ns"}},
	} {
		got := Overlaps(test.history)
		if len(got) != len(test.want) {
			t.Errorf("%s: Overlaps = %v, want %d", name, got, len(test.want))
			continue
		}
		for i, part := range test.want {
			if !strings.Contains(got[i].String(), part) {
				t.Errorf("%s: overlap %d = %v, want %q in it", name, i, got[i], part)
			}
		}
	}
}
