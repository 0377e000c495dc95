package cron

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestSimulatedFleet plays what a fleet goes through day by day: processes begin one after the
// other while the store is slow, are killed and begin again under the same ID within seconds,
// nobody is there for a while, jobs are paused, resumed and asked for by hand. Each instant must
// have a record soon after that. CRON_SEEDS plays more seeds.
func TestSimulatedFleet(t *testing.T) {
	seeds := seedsOf(2)
	first, _ := strconv.Atoi(os.Getenv("CRON_FIRST"))
	total := map[string]int{}
	for seed := first; seed < first+seeds; seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := newSimWorld(t, uint64(seed), true)
			w.jobs = fleetJobs(t)
			w.fleet(time.Duration(60+seed%3*60) * time.Second)
			w.judge()
			for what, n := range w.count {
				total[what] += n
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Log(total)
	for _, what := range []string{"ran", OK, Lost, Overlap, Missed, Stopped, "retried", "kill", "pause", "term",
		"nobody", "slow", Paused, Wanted} {
		if total[what] == 0 && seeds >= 20 {
			t.Errorf("the simulation never had: %s", what)
		}
	}
}

func fleetJobs(t *testing.T) (jobs []*Job) {
	for i, set := range []func(*Job){
		func(j *Job) { j.Spec, j.Overlap, j.Retries, j.RetryDelay = "*/2 * * * * *", Allow, 2, time.Second },
		func(j *Job) { j.Spec, j.Overlap, j.Retries, j.RetryDelay = "@every 3s", Allow, 3, time.Second },
		func(j *Job) { j.Spec, j.Overlap = "* * * * * *", Allow },
		func(j *Job) { j.Spec, j.Missed, j.Overlap = "*/2 * * * * *", Skip, Allow },
		func(j *Job) { j.Spec, j.Retries, j.RetryDelay = "@every 10s", 2, 0 },
		func(j *Job) { j.Spec, j.Missed, j.CatchUp, j.Overlap, j.Keep = "*/6 * * * * *", All, 5, Allow, 300 },
		func(j *Job) { j.Spec, j.Overlap = "@every 10s", Replace },
		func(j *Job) { j.Spec, j.Overlap, j.Jitter, j.Retries = "*/3 * * * * *", Allow, 2*time.Second, 1 },
	} {
		j := DefaultJob()
		j.Name, j.Command, j.Keep = fmt.Sprintf("f%d", i), []string{"x"}, 10000
		set(&j)
		checked, err := j.Check()
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, checked)
	}
	return jobs
}

// fleet lets that happen for so long, heals everything, and ends.
func (w *simWorld) fleet(span time.Duration) {
	w.crawl(w.span(0, 20*time.Second), w.span(0, 3*time.Second))
	for i := range 5 {
		w.procs = append(w.procs, w.spawn(i, 0))
		time.Sleep(w.span(0, time.Second))
	}
	for gap := w.span(span/3, span); time.Since(w.began) < span; {
		time.Sleep(w.span(time.Second, 5*time.Second))
		if gap != 0 && time.Since(w.began) > gap {
			gap = 0
			w.vacancy()
		}
		i := int(w.float() * 5)
		p := w.procs[i]
		switch f := w.float(); {
		case f < 0.5:
			w.counted("kill", 1)
			w.crash(i)
			time.Sleep(w.span(0, 2*time.Second))
			w.procs[i] = w.spawn(i, 0)
		case f < 0.7:
			w.counted("pause", 1)
			p.pause(w.span(500*time.Millisecond, 5500*time.Millisecond))
		case f < 0.8:
			w.counted("term", 1)
			p.engine.Stop(false, nil)
			p.die()
			w.procs[i] = w.spawn(i, 0)
		case f < 0.85:
			p.engine.Set(w.jobs)
		case f < 0.9:
			w.crawl(w.span(0, 10*time.Second), w.span(0, 3*time.Second))
		default:
			w.mark()
		}
	}
	for _, p := range w.procs {
		p.heal()
	}
	for _, j := range w.jobs {
		_, _ = Mark(context.Background(), w.store, j.Name, Resumed, "operator", time.Now())
	}
	time.Sleep(90 * time.Second)
	w.stopped = time.Now()
	w.finish()
}

// crawl makes the store slow for a while: each call takes up to so long, there and back.
func (w *simWorld) crawl(d, each time.Duration) {
	w.counted("slow", 1)
	w.mu.Lock()
	w.slow, w.slowUntil = each, time.Now().Add(d)
	w.mu.Unlock()
}

// lag is how long a call takes one way.
func (w *simWorld) lag() time.Duration {
	w.mu.Lock()
	most := 20 * time.Millisecond
	if time.Now().Before(w.slowUntil) {
		most += w.slow
	}
	w.mu.Unlock()
	return w.span(0, most)
}

// vacancy kills all of them and leaves nobody for a while.
func (w *simWorld) vacancy() {
	w.counted("nobody", 1)
	for i := range w.procs {
		w.crash(i)
	}
	time.Sleep(25 * time.Second)
	for i := range w.procs {
		w.procs[i] = w.spawn(i, 0)
	}
}

// mark pauses or resumes a job, or asks for a run of it.
func (w *simWorld) mark() {
	j := w.jobs[int(w.float()*float64(len(w.jobs)))]
	verdict := []string{Paused, Resumed, Wanted, Wanted}[int(w.float()*4)]
	if _, err := Mark(context.Background(), w.store, j.Name, verdict, "operator", time.Now()); err == nil {
		w.counted(verdict, 1)
	}
}

// excused says whether an instant was due while its job was paused, or so shortly before that
// nobody had got to it.
func (w *simWorld) excused(v *view, at time.Time) bool {
	var paused time.Time
	for _, r := range v.records {
		switch {
		case r.Verdict == Paused && paused.IsZero():
			paused = r.Key.At
		case r.Verdict == Resumed && !paused.IsZero():
			if at.After(paused.Add(-time.Minute)) && at.Before(r.Key.At.Add(10*time.Second)) {
				return true
			}
			paused = time.Time{}
		}
	}
	return !paused.IsZero() && at.After(paused.Add(-time.Minute))
}
