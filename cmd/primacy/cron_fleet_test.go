//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/open"
)

// cronFleet is several processes with one file, whose commands write what they do into one log.
type cronFleet struct {
	*world
	rand  *rand.Rand
	file  string
	log   string
	jobs  []*cron.Job
	procs []*prog
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
	{"@every {n}s", 0.4,
		"overlap = \"allow\"\nretries = 2\nretry_delay = \"1s\"\ntimeout = \"200ms\"\nretry_on = [\"lost\"]"},
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
	f.procs = make([]*prog, 5)
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
	f.procs[i] = f.start("cron", "-f", f.file, "--id", fmt.Sprintf("p%d", i))
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
		f.listens(i)
		p.signal(syscall.SIGHUP)
	}
}

// listens waits until a process has asked for its signals: on a busy machine a program that was
// just started has not, and SIGTERM or SIGHUP ends it at once.
func (f *cronFleet) listens(i int) { f.procs[i].tells(fmt.Sprintf("cron: p%d runs ", i)) }

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
		p.ends(0)
	}
}

// CRON_FOR plays so long with 50 jobs, CRON_TTL sets the ttl.
func TestCronFleet(t *testing.T) {
	onlyInVerify(t)
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

// cronID is one attempt at one instant of a job.
type cronID struct {
	job     string
	at      time.Time
	attempt int
}

// cronAct is what the command of one attempt wrote itself: when it began, when it was last seen,
// when it ended.
type cronAct struct {
	begins, ends      int
	began, last, done time.Time
	token             uint64
}

// cronJudge holds what the commands wrote against the schedule and against what the store says.
type cronJudge struct {
	*cronFleet
	cut     time.Time // what was due until then must be settled
	acts    map[cronID]*cronAct
	records map[cronID]map[string]cron.Record // by kind
	gaps    map[string][]cron.Record
	first   map[string]time.Time
	count   map[string]int
	late    []time.Duration
	errors  []string
	pending []string // what is not settled yet
}

func newCronJudge(f *cronFleet, cut time.Time) *cronJudge {
	c := &cronJudge{cronFleet: f, cut: cut, acts: map[cronID]*cronAct{}, records: map[cronID]map[string]cron.Record{},
		gaps: map[string][]cron.Record{}, first: map[string]time.Time{}, count: map[string]int{}}
	c.readLog()
	st, err := open.Open(f.Context(), f.store)
	if err != nil {
		f.Fatal(err)
	}
	defer st.Close()
	for _, j := range f.jobs {
		c.readJournal(st.(driver.Journal), j.Name)
	}
	return c
}

func (c *cronJudge) wrong(format string, args ...any) {
	c.errors = append(c.errors, fmt.Sprintf(format, args...))
}

// open notes that something is not settled, if it must be.
func (c *cronJudge) open(id cronID, format string, args ...any) {
	if !id.at.After(c.cut) {
		c.pending = append(c.pending, fmt.Sprintf("%v: ", id)+fmt.Sprintf(format, args...))
	}
}

func (c *cronJudge) readLog() {
	text, err := os.ReadFile(c.log)
	if err != nil && !os.IsNotExist(err) { // nothing may have run yet
		c.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		w := strings.Fields(line)
		if len(w) != 6 {
			c.wrong("the log has %q", line)
			continue
		}
		at, err := time.Parse(time.RFC3339, w[2])
		attempt, err2 := strconv.Atoi(w[3])
		token, err3 := strconv.ParseUint(w[4], 10, 64)
		ns, err4 := strconv.ParseInt(w[5], 10, 64)
		if cmp.Or(err, err2, err3, err4) != nil {
			c.wrong("the log has %q", line)
			continue
		}
		id, now := cronID{w[1], at, attempt}, time.Unix(0, ns)
		if c.acts[id] == nil {
			c.acts[id] = &cronAct{}
		}
		a := c.acts[id]
		a.last, a.token = now, token
		switch w[0] {
		case "S":
			a.begins, a.began = a.begins+1, now
		case "E":
			a.ends, a.done = a.ends+1, now
		}
	}
}

func (c *cronJudge) readJournal(j driver.Journal, job string) {
	var records []driver.Record
	var err error
	for range 20 { // on a busy machine the store may take its time
		if records, err = j.Records(c.Context(), cron.Prefix+job, "", 20000); err == nil {
			break
		}
	}
	if err != nil {
		c.Fatal(err)
	}
	for _, d := range records {
		r, ok := cron.ParseRecord(d)
		if !ok {
			c.wrong("%s: a record %q %q", job, d.Key, d.Value)
			continue
		}
		id := cronID{job, r.Key.At, r.Key.Attempt}
		switch {
		case r.Key.Kind == "m":
			c.gaps[job] = append(c.gaps[job], r)
		case r.Verdict == cron.Fresh:
			c.first[job] = r.Key.At
		default:
			if c.records[id] == nil {
				c.records[id] = map[string]cron.Record{}
			}
			c.records[id][r.Key.Kind] = r
		}
	}
}

func (c *cronJudge) judge() {
	for _, j := range c.jobs {
		c.instants(j)
		if j.Overlap != cron.Allow {
			c.alone(j)
		}
	}
	for id, kinds := range c.records {
		c.attempt(id, kinds)
	}
	for id, a := range c.acts {
		c.act(id, a)
	}
	slices.Sort(c.late)
}

// report fails the test where something is wrong, and tells the figures.
func (c *cronJudge) report() {
	at := func(p float64) time.Duration {
		if len(c.late) == 0 {
			return 0
		}
		return c.late[int(p*float64(len(c.late)-1))].Round(time.Millisecond)
	}
	c.Logf("%d jobs on 5 processes; faults %v", len(c.jobs), c.cronFleet.acts)
	c.Logf("%v", c.count)
	c.Logf("late after the instant, first attempts in time: median %v, 95 %% %v, 99 %% %v, worst %v of %d", at(0.5),
		at(0.95), at(0.99), at(1), len(c.late))
	for i, text := range append(c.errors, c.pending...) {
		if i < 20 {
			c.Error(text)
		}
	}
	if n := len(c.errors) + len(c.pending); n > 0 {
		c.Errorf("%d things are wrong, %d of them not settled", n, len(c.pending))
	}
	if c.count["ran"] == 0 || c.count["instants"] == 0 {
		c.Error("nothing ran")
	}
}

// instants checks that each instant of the schedule is decided.
func (c *cronJudge) instants(j *cron.Job) {
	from, ok := c.first[j.Name]
	if !ok {
		c.open(cronID{j.Name, c.cut, 1}, "no record of where it begins")
		return
	}
	for at := j.Schedule().Next(from); !at.After(c.cut); at = j.Schedule().Next(at) {
		c.count["instants"]++
		r, decided := c.records[cronID{j.Name, at, 1}]["a"]
		switch {
		case decided:
			c.count["decided "+r.Verdict]++
		case slices.ContainsFunc(c.gaps[j.Name], func(g cron.Record) bool {
			return !at.Before(g.Key.At) &&
				!at.After(g.Upto)
		}):
			c.count["decided missed"]++
		default:
			c.open(cronID{j.Name, at, 1}, "nobody has decided about it; it counts from %s, and around it are%s",
				from.Format("15:04:05"), c.around(j.Name, at))
		}
	}
}

// around tells the records of a job near an instant.
func (c *cronJudge) around(job string, at time.Time) (text string) {
	var near []cron.Record
	for id, kinds := range c.records {
		if id.job == job && id.at.Sub(at).Abs() < 20*time.Second {
			near = slices.AppendSeq(near, maps.Values(kinds))
		}
	}
	slices.SortFunc(near, func(a, b cron.Record) int { return a.When.Compare(b.When) })
	for _, r := range near {
		text += fmt.Sprintf("\n\t%s %s by %s at %s, over up to %s", r.Key, r.Verdict, r.By,
			r.When.Format("15:04:05.0"), r.Done.Format("15:04:05"))
	}
	for _, g := range c.gaps[job] {
		text += fmt.Sprintf("\n\t%s missed up to %s by %s at %s", g.Key, g.Upto.Format("15:04:05"), g.By,
			g.When.Format("15:04:05"))
	}
	return text
}

// attempt checks one attempt as the store has it, and that the job's policy was followed after it.
func (c *cronJudge) attempt(id cronID, kinds map[string]cron.Record) {
	job := c.jobs[slices.IndexFunc(c.jobs, func(j *cron.Job) bool { return j.Name == id.job })]
	begin, decided := kinds["a"]
	end, ended := kinds["z"]
	a := c.acts[id]
	if !decided || begin.Verdict != cron.Began {
		if a != nil || ended {
			c.wrong("%v: ran, or ended, but the record of its beginning is %+v", id, begin)
		}
		return
	}
	if !ended {
		c.open(id, "has begun and has no end: by %s at %v", begin.By, begin.When)
		return
	}
	c.count["attempts"]++
	c.count["ended "+end.Verdict]++
	if id.attempt > 1 {
		c.count["retried"]++
	}
	switch {
	case end.Verdict == cron.OK && (a == nil || a.begins != 1 || a.ends != 1):
		c.wrong("%v: ended ok, but its command wrote %+v", id, a)
	case end.Verdict == cron.Lost && a != nil && a.last.After(end.When):
		c.wrong("%v: declared lost at %v, but its command still worked %v later", id, end.When, a.last.Sub(end.When))
	}
	if a != nil && strconv.FormatUint(a.token, 10) != begin.Token {
		c.wrong("%v: ran under token %d, recorded was %s", id, a.token, begin.Token)
	}
	next, again := c.records[cronID{id.job, id.at, id.attempt + 1}]["a"]
	due := slices.Contains(job.RetryOn, end.Verdict) && id.attempt <= job.Retries
	switch {
	case again && !due:
		c.wrong("%v: ended as %s, and was tried again by %s against the policy", id, end.Verdict, next.By)
	case due && !again:
		c.open(id, "ended as %s at %v, and was not tried again", end.Verdict, end.When)
	}
}

// act checks what one command wrote.
func (c *cronJudge) act(id cronID, a *cronAct) {
	c.count["ran"]++
	if a.begins > 1 || a.ends > 1 {
		c.count["duplicates"]++
		c.wrong("%v: began %d times and ended %d times", id, a.begins, a.ends)
	}
	begin, ok := c.records[id]["a"]
	if !ok {
		c.wrong("%v: ran, and the store knows nothing of it", id)
		return
	}
	job := c.jobs[slices.IndexFunc(c.jobs, func(j *cron.Job) bool { return j.Name == id.job })]
	if id.attempt == 1 && !begin.CatchUp && job.Jitter == 0 {
		c.late = append(c.late, a.began.Sub(id.at))
	}
	if a.began.Before(id.at) {
		c.wrong("%v: began %v before its instant", id, id.at.Sub(a.began))
	}
}

// alone checks that runs of a job that may not overlap did not, and that the later has the larger
// token.
func (c *cronJudge) alone(j *cron.Job) {
	type span struct {
		id cronID
		*cronAct
	}
	var spans []span
	for id, a := range c.acts {
		if id.job == j.Name {
			spans = append(spans, span{id, a})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.began.Compare(b.began) })
	for i := 1; i < len(spans); i++ {
		before, after := spans[i-1], spans[i]
		if after.began.Before(before.last) {
			c.wrong("%v began at %v, while %v still worked until %v", after.id, after.began, before.id, before.last)
		}
		if after.token <= before.token {
			c.wrong("%v has token %d, after %d of %v", after.id, after.token, before.token, before.id)
		}
	}
}

func (i cronID) String() string {
	return fmt.Sprintf("%s %s attempt %d", i.job, i.at.Format("15:04:05"), i.attempt)
}
