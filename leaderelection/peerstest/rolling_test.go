//go:build linux

package peerstest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/internal/safety"
)

// program is a worker to start: a binary, and the kind of its elector.
type program struct{ name, binary, kind string }

// clientGo returns the version of client-go that is linked where env is set.
func clientGo(t *testing.T, env ...string) string {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/client-go")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// programs are ours and client-go's as the workspace has them, and this package built outside of
// it, with the oldest client-go that our module names.
func programs(t *testing.T) []program {
	old := filepath.Join(t.TempDir(), "old")
	cmd := exec.Command("go", "test", "-c", "-o", old, ".")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, text)
	}
	return []program{
		{"client-go " + clientGo(t, "GOWORK=off"), old, "client-go"},
		{"client-go " + clientGo(t), os.Args[0], "client-go"},
		{"ours", os.Args[0], "primacy"},
	}
}

// rolling is an election whose processes are replaced.
type rolling struct {
	*election
	programs map[string]string        // the name of each process's program
	began    map[string]time.Duration // when it was started
	told     map[string]time.Duration // when it was told to end, or killed
}

func (r *rolling) begin(p program) *process {
	id := fmt.Sprint("p", len(r.all))
	r.programs[id], r.began[id] = p.name, now()
	return r.start(p.binary, p.kind, id)
}

// In an election of client-go's electors and ours nobody loses the Lease but by ending, and there
// are never two.
func TestRollingRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of restarts: without -short")
	}
	t.Parallel()
	lasting := 30 * time.Second
	if text := os.Getenv("ELECTORS_FOR"); text != "" {
		var err error
		if lasting, err = time.ParseDuration(text); err != nil || lasting <= 0 {
			t.Fatalf("ELECTORS_FOR=%q: want a duration as in 10m", text)
		}
	}
	all := programs(t)
	r := &rolling{newElection(t, k8stest.Start(t), "job", times{15 * time.Second, 10 * time.Second, 2 * time.Second}),
		map[string]string{}, map[string]time.Duration{}, map[string]time.Duration{}}
	r.release = true
	for _, p := range all {
		r.begin(p)
	}
	restarts, crashes := 0, 0
	for end := now() + lasting; now() < end; restarts++ {
		time.Sleep(time.Second + rand.N(3*time.Second))
		live := r.running()
		old := live[rand.IntN(len(live))]
		if leader := r.leader(live); leader != nil && rand.IntN(2) == 0 {
			old = leader
		}
		r.told[old.id] = now()
		if rand.IntN(20) == 0 {
			crashes++
			r.signal(old, syscall.SIGKILL)
			<-old.exited
		} else {
			r.end(old)
		}
		r.begin(all[rand.IntN(len(all))])
	}
	for _, p := range r.running() {
		r.told[p.id] = now()
	}
	r.end(r.running()...)
	for _, file := range []string{byContext, asked} {
		if err := safety.Check(r.pieces(file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	terms := r.judge()
	t.Logf("%d restarts and %d crashes in %v: %d terms", restarts-crashes, crashes, lasting, terms)
}

// leader is who began to lead last, if it is among these.
func (r *rolling) leader(live []*process) *process {
	r.Helper()
	all := r.happened()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].what == started {
			if k := slices.IndexFunc(live, func(p *process) bool { return p.id == all[i].id }); k >= 0 {
				return live[k]
			}
			return nil
		}
	}
	return nil
}

// judge looks that nobody led who was not to, and that no work ended that was not told to. It
// prints how long a hand-over took, and returns how many terms there were.
func (r *rolling) judge() (terms int) {
	r.Helper()
	took := map[string][]time.Duration{}
	var free happening // when the Lease was released last
	for _, h := range r.happened() {
		told, ends := r.told[h.id]
		switch h.what {
		case stopped:
			if !ends || h.at < told {
				r.Errorf("%s, which is %s, lost the Lease though nothing was done to it", h.id, r.programs[h.id])
			}
		case released:
			free = h
		case started:
			terms++
			if free.what == released && r.began[h.id]+time.Second < free.at {
				took[r.programs[h.id]] = append(took[r.programs[h.id]], h.at-free.at)
			}
			free = happening{}
		}
	}
	for name, all := range took {
		slices.Sort(all)
		r.Logf("%s had stood by and took over %d times: p50 %v, max %v after the release was sent", name, len(all),
			all[len(all)/2].Round(100*time.Microsecond), all[len(all)-1].Round(100*time.Microsecond))
	}
	return terms
}
