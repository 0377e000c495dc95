//go:build linux

package pgtorture

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// aRecord is a run of two primaries in which all is well.
func aRecord() (all []ack, grants []grant) {
	ms := time.Millisecond
	return []ack{
			{1, "pg1", 3, 10 * ms, 12 * ms}, {2, "pg1", 3, 20 * ms, 22 * ms}, {3, "pg1", 3, 30 * ms, 90 * ms},
			{4, "pg2", 5, 80 * ms, 84 * ms}, {5, "pg2", 5, 85 * ms, 86 * ms},
		}, []grant{
			{7, 3, "pg1"}, {7, 3, "pg1"}, {9, 5, "pg2"}, {12, 7, "pg3"},
		}
}

// judged is what both judges say of a record.
func judged(all []ack, grants []grant) []string {
	var r reigns
	r.add(all)
	return append(r.news(), judgeGrants(r.all(), grants)...)
}

// TestTheJudge doctors a record in which all is well: each judge must say what is wrong.
func TestTheJudge(t *testing.T) {
	ms := time.Millisecond
	all, grants := aRecord()
	if wrong := judged(all, grants); len(wrong) > 0 {
		t.Errorf("nothing is wrong, and the judges say: %v", wrong)
	}
	for name, c := range map[string]struct {
		doctor func(all []ack, grants []grant) ([]ack, []grant)
		want   string
	}{
		"the former primary goes on": {func(all []ack, g []grant) ([]ack, []grant) {
			return append(all, ack{6, "pg1", 3, 87 * ms, 88 * ms}), g
		}, "two acknowledge"},
		"the next is too early": {func(all []ack, g []grant) ([]ack, []grant) {
			all[3].call, all[3].ret = 25*ms, 26*ms
			return all, g
		}, "two acknowledge"},
		"two on one timeline": {func(all []ack, g []grant) ([]ack, []grant) {
			all[3].timeline, all[4].timeline = 3, 3
			return all, g
		}, "both acknowledged"},
		"promoted by hand": {func(all []ack, g []grant) ([]ack, []grant) {
			all[4].timeline = 6
			return all, g
		}, "was given to \"\""},
		"given to another": {func(all []ack, g []grant) ([]ack, []grant) {
			g[2].Node = "pg3"
			return all, g
		}, "was given to \"pg3\""},
		"a number given out twice": {func(all []ack, g []grant) ([]ack, []grant) {
			g[3].Timeline = 5
			return all, g
		}, "given out twice"},
		"numbers that go back": {func(all []ack, g []grant) ([]ack, []grant) {
			g[3].Timeline = 4
			return all, g
		}, "go back"},
	} {
		all, grants := aRecord()
		all, grants = c.doctor(all, grants)
		wrong := strings.Join(judged(all, grants), "\n")
		if !strings.Contains(wrong, c.want) {
			t.Errorf("%s: the judges say %q, want %q", name, wrong, c.want)
		}
	}
	has := map[uint64]bool{1: true, 2: true, 3: true, 5: true}
	if lost := judgeRows(all, has); len(lost) != 1 || lost[0].id != 4 {
		t.Errorf("row 4 is lost, and the judge says %v", lost)
	}
}

// TestTheLongestGap also counts what has no end.
func TestTheLongestGap(t *testing.T) {
	all, _ := aRecord()
	a := &acks{all: all}
	ms := time.Millisecond
	for _, c := range []struct{ from, to, gap, at time.Duration }{
		{0, 95 * ms, 62 * ms, 22 * ms},
		{0, 400 * ms, 310 * ms, 90 * ms},
		{20 * ms, 22 * ms, 2 * ms, 20 * ms},
	} {
		if gap, at := a.longest(0, 1, c.from, c.to); gap != c.gap || at != c.at {
			t.Errorf("from %v to %v: a gap of %v at %v, want %v at %v", c.from, c.to, gap, at, c.gap, c.at)
		}
	}
}

// TestTheJudgeOfAWipedStore doctors what members did that remember a cluster.
func TestTheJudgeOfAWipedStore(t *testing.T) {
	all, _ := aRecord()
	was := func() map[string]uint64 { return map[string]uint64{"pg1": 7, "pg2": 7, "pg3": 0} }
	for name, c := range map[string]struct {
		over   time.Duration
		doctor func(after map[string]uint64)
		want   string
	}{
		"well": {85 * time.Millisecond, func(map[string]uint64) {}, ""},
		"one that had nothing has made something": {85 * time.Millisecond,
			func(after map[string]uint64) { after["pg3"] = 8 }, ""},
		"a row": {84 * time.Millisecond, func(map[string]uint64) {}, "acknowledged row 5"},
		"another database": {85 * time.Millisecond, func(after map[string]uint64) { after["pg2"] = 8 },
			"pg2 was system 7, and is 8"},
		"no database": {85 * time.Millisecond, func(after map[string]uint64) { delete(after, "pg1") },
			"pg1 was system 7, and is 0"},
	} {
		after := was()
		c.doctor(after)
		wrong := strings.Join(judgeWiped(all, c.over, was(), after), "\n")
		if c.want == "" && wrong != "" || !strings.Contains(wrong, c.want) {
			t.Errorf("%s: the judge says %q, want %q", name, wrong, c.want)
		}
	}
}

// TestTheJudgeOfLosses doctors what a member says that it has lost.
func TestTheJudgeOfLosses(t *testing.T) {
	for name, c := range map[string]struct {
		missing int
		said    []loss
		want    string
	}{
		"well":              {3, []loss{{Bytes: 600, Commits: 4}}, ""},
		"nothing":           {0, nil, ""},
		"twice":             {3, []loss{{Bytes: 600, Commits: 2}, {Bytes: 10, Commits: 1}}, ""},
		"too few":           {5, []loss{{Bytes: 600, Commits: 4}}, "lost says 4 commits"},
		"silence":           {1, nil, "lost says 0 commits"},
		"no bytes":          {1, []loss{{Commits: 1}}, "0 bytes"},
		"more than allowed": {1, []loss{{Bytes: maxLag + lately + 1, Commits: 1}}, "bytes are lost"},
		"not all":           {1, []loss{{Bytes: 100, Commits: 1, Incomplete: "a gap"}}, "could not read all"},
	} {
		wrong := strings.Join(judgeLost(c.missing, c.said), "\n")
		if c.want == "" && wrong != "" || !strings.Contains(wrong, c.want) {
			t.Errorf("%s: the judge says %q, want %q", name, wrong, c.want)
		}
	}
}

// TestTheRowsOfEachKind adds up what rounds showed.
func TestTheRowsOfEachKind(t *testing.T) {
	text := ""
	for i := range 10 {
		text += fmt.Sprintf(`{"keeper":"primacy","name":"agent killed","gap":%d,"rows":5}`+"\n", (i+1)*1e8)
	}
	text += `{"keeper":"patroni","name":"agent killed","gap":17000000000,"rows":7,"lost":2,"two":1,` +
		`"by_hand":true}` + "\n"
	all, err := parseResults([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got := table(all)
	for _, want := range []string{
		"primacy    10   0.500 s   0.900 s   1.000 s       50      0    0       0",
		"patroni     1  17.000 s  17.000 s  17.000 s        7      2    1       1",
		"primacy: 10 faults of 1 kinds; 50 rows acknowledged, 0 of them lost",
		"patroni: 1 faults of 1 kinds; 7 rows acknowledged, 2 of them lost; two that acknowledge seen 1 times",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks %q:\n%s", want, got)
		}
	}
	if _, err := parseResults([]byte("{")); err == nil {
		t.Error("half a line is taken for a result")
	}
}

// TestAGrantThatOutlivesAPause is one promotion, and under another token without a pause it is two.
func TestAGrantThatOutlivesAPause(t *testing.T) {
	for paused, want := range map[string]string{`,"paused":{"by":"anna"}`: "", "": "timeline 3 was given out twice"} {
		o := &ours{}
		for i, text := range []string{
			`"token":"5","timeline":3,"primary":{"name":"pg1"}`,
			`"token":"5","timeline":3,"primary":{"name":"pg1"}` + paused,
			`"token":"9","timeline":3,"primary":{"name":"pg1"}`,
		} {
			o.saw(fmt.Appendf(nil, `{"seq":"%d",%s}`, i+1, text))
		}
		_, grants := o.known()
		wrong := strings.Join(judgeGrants(nil, grants), "\n")
		if want == "" && wrong != "" || !strings.Contains(wrong, want) {
			t.Errorf("paused: %q: the judge says %q, want %q", paused, wrong, want)
		}
	}
}
