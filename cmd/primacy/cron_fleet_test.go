//go:build linux

package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/cron"
)

// cronFleet is several processes with one file, whose commands write what they do into one log.
type cronFleet struct {
	*world
	rand  *rand.Rand
	file  string
	log   string
	jobs  []*cron.Job
	procs []*prog
	since []time.Time // when each was started
	acts  map[string]int
}

// cronJob is one kind of job in the file.
type cronJob struct {
	spec    string
	busy    float64 // seconds
	options string
}

// cronJobs is a mix of schedules at the granularity of a second, of policies and of lengths. {n}
// differs from job to job.
var cronJobs = []cronJob{
	{"*/{n} * * * * *", 0.1, "overlap = \"allow\"\nretries = 2\nretry_delay = \"1s\""},
	{"@every {n}s", 0.7, "overlap = \"allow\"\nretries = 1\nretry_delay = \"1s\"\nretry_on = [\"lost\", \"stopped\"]"},
	{"*/{n} * * * * *", 0.2, "retries = 2\nretry_delay = \"0s\""},
	{"@every {n}s", 3, "overlap = \"allow\"\nretries = 3\nretry_delay = \"1s\""},
	{"*/{n} * * * * *", 0.3, "missed = \"skip\"\noverlap = \"allow\""},
	{"@every {n}s", 6, "retries = 1\nretry_delay = \"1s\""},
	{"*/{n} * * * * *", 0.1, "missed = \"all\"\ncatch_up = 5\noverlap = \"allow\""},
	{"@every {n}s", 4, "overlap = \"replace\""},
	{"*/{n} * * * * *", 0, "jitter = \"2s\"\noverlap = \"allow\"\nretries = 1"},
	{"@every {n}s", 0.4, "overlap = \"allow\"\nretries = 2\nretry_delay = \"1s\"\ntimeout = \"200ms\"\nretry_on = [\"lost\"]"},
}

var cronPeriods = []int{2, 5, 10, 15, 3, 10, 6, 15, 12, 10}

func newCronFleet(t *testing.T, jobs int, ttl string) *cronFleet {
	w := newWorld(t).with("PRIMACY_TTL="+ttl, "PRIMACY_LOOK=2s")
	f := &cronFleet{world: w, rand: rand.New(rand.NewPCG(uint64(os.Getpid()), 1)),
		file: filepath.Join(w.dir, "jobs.toml"),
		log:  filepath.Join(w.dir, "log"), acts: map[string]int{}}
	var text strings.Builder
	fmt.Fprintf(&text, "[defaults]\nkeep = 10000\nenv = { LOG = %q }\n", f.log)
	for i := range jobs {
		j, n := cronJobs[i%len(cronJobs)], cronPeriods[(i+i/len(cronPeriods))%len(cronPeriods)]
		if j.busy >= 1 {
			n = max(n, 10)
		}
		fmt.Fprintf(&text, "[jobs.j%02d]\nschedule = %q\n%s\ncommand = %q\n", i,
			strings.ReplaceAll(j.spec, "{n}", fmt.Sprint(n)), j.options, cronScript(j.busy))
	}
	if err := os.WriteFile(f.file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.jobs, err = cron.Load(f.file); err != nil {
		t.Fatal(err)
	}
	f.procs, f.since = make([]*prog, 5), make([]time.Time, 5)
	return f
}

// cronScript writes a line when it begins and when it ends, and while it works, and is deaf to
// SIGTERM for a while, as commands are.
func cronScript(busy float64) string {
	const line = `$PRIMACY_CRON_JOB $PRIMACY_CRON_INSTANT $PRIMACY_CRON_ATTEMPT $PRIMACY_TOKEN $(date +%s%N)" >>"$LOG"`
	s := `echo "S ` + line + "; "
	if n := int(busy * 2); n > 1 {
		s += fmt.Sprintf(`trap '' TERM; i=0; while [ $i -lt %d ]; do sleep 0.5; i=$((i+1)); echo "T %s; done; `, n,
			line)
	} else if busy > 0 {
		s += fmt.Sprintf("sleep %g; ", busy)
	}
	return s + `echo "E ` + line
}

func (f *cronFleet) start1(i int) {
	f.since[i] = time.Now()
	f.procs[i] = f.start("cron", "-q", "-f", f.file, "--id", fmt.Sprintf("p%d", i))
}

// hurt does something to one process.
func (f *cronFleet) hurt() {
	i := f.rand.IntN(len(f.procs))
	p := f.procs[i]
	switch n := f.rand.IntN(10); {
	case n < 5:
		f.acts["kill -9"]++
		f.kill(i)
	case n < 8:
		f.acts["kill -STOP"]++
		p.signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(500+f.rand.IntN(5000)) * time.Millisecond)
		p.signal(syscall.SIGCONT)
	case n < 9:
		f.acts["kill -TERM"]++
		f.listens(i)
		p.signal(syscall.SIGTERM)
		p.ends(0)
		f.start1(i)
	default:
		f.acts["kill -HUP"]++
		p.signal(syscall.SIGHUP)
	}
}

// listens waits until a process has had the time to ask for its signals: on a busy machine a
// program that was just started has not, and SIGTERM ends it at once.
func (f *cronFleet) listens(i int) { time.Sleep(time.Until(f.since[i].Add(3 * time.Second))) }

func (f *cronFleet) kill(i int) {
	f.procs[i].signal(syscall.SIGKILL)
	<-f.procs[i].exited
	time.Sleep(time.Duration(f.rand.IntN(2000)) * time.Millisecond)
	f.start1(i)
}

// gap kills all of them and leaves nobody for a while.
func (f *cronFleet) gap(d time.Duration) {
	f.acts["nobody"]++
	for _, p := range f.procs {
		p.signal(syscall.SIGKILL)
	}
	time.Sleep(d)
	for i := range f.procs {
		f.start1(i)
	}
}

// stop lets everything end that has begun: what was lost is found and tried again, until nothing is
// open.
func (f *cronFleet) stop() {
	for i, p := range f.procs {
		f.listens(i)
		p.signal(syscall.SIGTERM)
	}
	for _, p := range f.procs {
		p.within(time.Minute).ends(0)
	}
}

// CRON_FOR plays so long with 50 jobs, CRON_TTL sets the ttl.
func TestCronFleet(t *testing.T) {
	span, jobs, ttl := 9*time.Second, 10, "5s"
	if text := os.Getenv("CRON_FOR"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		span, jobs, ttl = d, 50, "10s"
	}
	f := newCronFleet(t, jobs, cmp.Or(os.Getenv("CRON_TTL"), ttl))
	for i := range f.procs {
		f.start1(i)
	}
	began := time.Now()
	for gapped := false; time.Since(began) < span; {
		time.Sleep(time.Duration(1000+f.rand.IntN(4000)) * time.Millisecond)
		if !gapped && span > time.Minute && time.Since(began) > span/2 {
			gapped = true
			f.gap(25 * time.Second)
			continue
		}
		f.hurt()
	}
	cut := time.Now()
	f.settle(cut)
	f.stop()
	c := newCronJudge(f, cut)
	c.judge()
	c.report()
}

// settle waits until all that was due has been decided, has ended, and was tried again where it has
// to be.
func (f *cronFleet) settle(cut time.Time) {
	for began := time.Now(); time.Since(began) < 4*time.Minute; time.Sleep(2 * time.Second) {
		c := newCronJudge(f, cut)
		if c.judge(); len(c.pending) == 0 {
			return
		}
	}
}
