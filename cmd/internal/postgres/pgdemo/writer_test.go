package pgdemo

import (
	"reflect"
	"testing"
	"time"
)

func has(rows ...int64) map[int64]bool {
	m := map[int64]bool{}
	for _, r := range rows {
		m[r] = true
	}
	return m
}

func TestTheVerdictNamesEachRowThatIsLost(t *testing.T) {
	w := NewWriter(nil, time.Second)
	for _, row := range []int64{1, 2, 4, 6} {
		w.acknowledged(row, "a")
	}
	w.unknown = []int64{3, 5}
	got := w.Judge("a", map[string]map[int64]bool{"a": has(1, 3, 4, 6), "b": has(1, 2, 3, 4, 6), "c": has(1, 4)})
	want := Verdict{Acknowledged: 4, Unknown: 2, UnknownThere: 1, Lost: []int64{2},
		Missing: map[string][]int64{"a": {2}, "c": {2, 6}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	all := has(1, 2, 4, 6)
	got = w.Judge("a", map[string]map[int64]bool{"a": all, "b": all, "c": all})
	if len(got.Lost) != 0 || len(got.Missing) != 0 || got.UnknownThere != 0 {
		t.Errorf("nothing is lost, and yet: %+v", got)
	}
}

func TestAGapIsTheLongestOfThoseThatEndedSince(t *testing.T) {
	w := NewWriter(nil, time.Second)
	now := time.Now()
	for _, s := range []int{0, 10, 11, 14, 15, 17} {
		w.acks = append(w.acks, ack{at: now.Add(time.Duration(s) * time.Second)})
	}
	for since, want := range map[int]int{5: 10, 10: 3, 13: 3, 14: 2, 17: 0} {
		got := w.Gap(now.Add(time.Duration(since) * time.Second))
		if got != time.Duration(want)*time.Second {
			t.Errorf("since %d: %v, want %ds", since, got, want)
		}
	}
}

// A server that is frozen accepts connections and never answers: it is tried last.
func TestAWriterTriesTheOthersFirst(t *testing.T) {
	w := NewWriter([]Server{{Name: "a"}, {Name: "b"}, {Name: "c"}}, time.Second)
	w.acknowledged(1, "b")
	got := w.after(w.last())
	if want := []Server{{Name: "c"}, {Name: "a"}, {Name: "b"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(w.after("")) != 3 {
		t.Error("before the first row it tries nobody")
	}
}
