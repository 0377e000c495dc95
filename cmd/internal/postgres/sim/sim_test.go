package sim

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestSeeds plays seeds 1 to PGSIM_SEEDS, or a few. `make pgsim` plays many more.
func TestSeeds(t *testing.T) {
	seeds := uint64(3000)
	if testing.Short() {
		seeds = 200
	}
	if s := os.Getenv("PGSIM_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("PGSIM_SEEDS: %v", err)
		}
		seeds = n
	}
	var total Stats
	for seed := uint64(1); seed <= seeds; seed++ {
		stats, _, v := Run(seed, Options{})
		total.Add(stats)
		if v != nil {
			_, lines, v := Run(seed, Options{Log: true, Keep: 200})
			t.Fatalf("%s\n%v\nplay it again: cd cmd && go run ./internal/postgres/sim/run -seed %d",
				strings.Join(lines, "\n"),
				v, seed)
		}
	}
	t.Log(total)
	for what, n := range map[string]int{"terms": total.Terms, "acknowledged commits": total.Acked,
		"promotions": total.Promoted,
		"lower q":    total.Settled, "primaries alone": total.Alone, "clean stops": total.Clean,
		"rewinds": total.Rewinds,
		"clones":  total.Clones, "late writes": total.Late, "backups put back": total.Restored, "pauses": total.Pauses,
		"new terms during a pause": total.Renewed, "restarts and reinits": total.Tasks,
		"configurations": total.Shared, "changes of durability": total.Durability,
		"restarts for a larger max_connections": total.Short, "stores lost": total.Lost,
		"clusters begun anew": total.Anew} {
		if n < int(seeds)/30 {
			t.Errorf("only %d %s in %d seeds: the world is too quiet", n, what, seeds)
		}
	}
	if total.Hopeless > int(seeds)/20 {
		t.Errorf("%d of %d seeds destroyed more than a cluster is to survive: they judge no liveness", total.Hopeless,
			seeds)
	}
}

// TestControls breaks the world, and not the decisions: the judge must see what comes of it. That
// it sees each of its rules broken is in TestTheJudgeSees.
func TestControls(t *testing.T) {
	for _, c := range []struct {
		what string
		b    Broken
		says string
	}{
		{"standbys that acknowledge what they have not flushed", Broken{Early: true}, "is lost"},
		{"a store that writes whatever it is sent", Broken{AnyWrite: true}, "takes back"},
		{"and whose cluster finds no primary again", Broken{AnyWrite: true}, "no faults for"},
	} {
		found := false
		for seed := uint64(1); seed <= 3000 && !found; seed++ {
			if _, _, v := Run(seed, Options{Broken: c.b}); v != nil && strings.Contains(v.What, c.says) {
				found = true
				t.Logf("%s: %v", c.what, v)
			}
		}
		if !found {
			t.Errorf("%s: no seed of 3000 found what says %q", c.what, c.says)
		}
	}
}

// A seed replays to the bit.
func TestASeedReplays(t *testing.T) {
	for seed := uint64(1); seed <= 10; seed++ {
		a, first, _ := Run(seed, Options{Log: true})
		b, second, _ := Run(seed, Options{Log: true})
		if a != b || !slices.Equal(first, second) {
			t.Errorf("seed %d was played twice, and differs", seed)
		}
	}
}
