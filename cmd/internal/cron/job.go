package cron

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// What becomes of a run whose predecessor still runs.
const (
	Forbid  = "forbid"  // it does not run: recorded as overlap
	Allow   = "allow"   // both run
	Replace = "replace" // the predecessor is stopped, and then it runs
)

// What becomes of instants that nobody began in time.
const (
	Once = "once" // the newest of them runs, the others are recorded as missed
	Skip = "skip" // all are recorded as missed
	All  = "all"  // they run one after the other, the oldest first, CatchUp of them at most
)

// Job is one line of the file. Every field but Schedule and Command has a default.
type Job struct {
	Name         string            `json:"name"`
	Spec         string            `json:"schedule"`
	Zone         string            `json:"timezone,omitempty"`
	Command      []string          `json:"command"`
	Dir          string            `json:"dir,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	Overlap      string            `json:"overlap"`
	Missed       string            `json:"missed"`
	MissedWithin time.Duration     `json:"missed_within"` // older instants never run; 0: no limit
	Late         time.Duration     `json:"late"`          // an instant is missed when nobody has begun it so long after
	CatchUp      int               `json:"catch_up"`      // with missed = "all": so many at most
	Retries      int               `json:"retries"`
	RetryDelay   time.Duration     `json:"retry_delay"`
	RetryOn      []string          `json:"retry_on"`
	Timeout      time.Duration     `json:"timeout"` // 0: none
	StopTimeout  time.Duration     `json:"stop_timeout"`
	Jitter       time.Duration     `json:"jitter"`
	Keep         int               `json:"keep"` // records kept in the store at least

	schedule *Schedule
}

// Limits of a job.
const (
	maxRetries = 98
	maxCatchUp = 1000
	minKeep    = 2 * window
	maxKeep    = 10000
)

// DefaultJob returns a job with everything that has a default.
func DefaultJob() Job {
	return Job{Overlap: Forbid, Missed: Once, Late: 10 * time.Second, CatchUp: 10, RetryDelay: 10 * time.Second,
		RetryOn: []string{Lost, Failed, TimedOut, Stopped}, StopTimeout: 5 * time.Second, Keep: 300}
}

var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// problem is what is wrong with one key of a job.
type problem struct{ key, text string }

func (p *problem) Error() string { return p.key + ": " + p.text }

// Check returns j ready for use, or what is wrong with it.
func (j Job) Check() (*Job, error) {
	wrong := func(key, format string, args ...any) (*Job, error) { //nolint:unparam // as Check returns it
		return nil, &problem{key, fmt.Sprintf(format, args...)}
	}
	within := func(d, low, high time.Duration) bool { return d >= low && d <= high }
	const year = 366 * 24 * time.Hour
	schedule, err := ParseSchedule(j.Spec, j.Zone)
	verdicts := []string{Lost, Failed, TimedOut, Stopped}
	unknown := slices.IndexFunc(j.RetryOn, func(w string) bool { return !slices.Contains(verdicts, w) })
	switch {
	case !jobName.MatchString(j.Name):
		return wrong("name", "%q: use 1 to 64 letters, digits and . _ -, a letter or digit first", j.Name)
	case err != nil && strings.Contains(err.Error(), "timezone"):
		return wrong("timezone", "%v", err)
	case err != nil:
		return wrong("schedule", "%v", err)
	case len(j.Command) == 0 || j.Command[0] == "":
		return wrong("command", `give what to run: "a line for /bin/sh", or ["program", "argument"]`)
	case strings.ContainsRune(strings.Join(j.Command, ""), 0):
		return wrong("command", "a zero byte cannot be passed to a program")
	case !slices.Contains([]string{Forbid, Allow, Replace}, j.Overlap):
		return wrong("overlap", "%q: use forbid, allow or replace", j.Overlap)
	case !slices.Contains([]string{Once, Skip, All}, j.Missed):
		return wrong("missed", "%q: use once, skip or all", j.Missed)
	case j.MissedWithin != 0 && !within(j.MissedWithin, time.Second, 10*year):
		return wrong("missed_within", "%v: use 0 for no limit, or 1s and more", j.MissedWithin)
	case !within(j.Late, time.Second, year):
		return wrong("late", "%v: use 1s to a year", j.Late)
	case j.CatchUp < 1 || j.CatchUp > maxCatchUp:
		return wrong("catch_up", "%d: use 1 to %d", j.CatchUp, maxCatchUp)
	case j.Retries < 0 || j.Retries > maxRetries:
		return wrong("retries", "%d: use 0 to %d", j.Retries, maxRetries)
	case !within(j.RetryDelay, 0, year):
		return wrong("retry_delay", "%v: use 0s and more", j.RetryDelay)
	case unknown >= 0:
		return wrong("retry_on", "%q: use some of lost, failed, timeout and stopped", j.RetryOn[unknown])
	case j.Timeout != 0 && !within(j.Timeout, time.Millisecond, year):
		return wrong("timeout", "%v: use 0 for none, or a positive duration", j.Timeout)
	case !within(j.StopTimeout, 0, time.Hour):
		return wrong("stop_timeout", "%v: use 0s to 1h", j.StopTimeout)
	case !within(j.Jitter, 0, 24*time.Hour):
		return wrong("jitter", "%v: use 0s to 24h", j.Jitter)
	case j.Keep < minKeep || j.Keep > maxKeep:
		return wrong("keep", "%d: use %d to %d records", j.Keep, minKeep, maxKeep)
	case j.Dir != "" && !filepath.IsAbs(j.Dir):
		return wrong("dir", "%q: give an absolute path, for processes start in different folders", j.Dir)
	}
	for name := range maps.Keys(j.Env) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(j.Env[name], 0) ||
			strings.HasPrefix(name, "PRIMACY_") {
			return wrong("env", "%q cannot be set for a command", name)
		}
	}
	j.schedule = schedule
	return &j, nil
}

// Schedule returns the instants of a job that was checked.
func (j *Job) Schedule() *Schedule { return j.schedule }

// Definition is a short hash of the whole job: processes that disagree about it have different
// files.
func (j *Job) Definition() string {
	text, _ := json.Marshal(j) // no field can fail
	return short(text)
}

// instants is a short hash of what decides which instants there are: after a change of it nothing
// was missed.
func (j *Job) instants() string { return short([]byte(j.schedule.text + "\n" + j.schedule.Zone())) }

func short(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:4])
}

// due returns when the run of an instant may begin: later by the same part of the jitter on every
// machine.
func (j *Job) due(at time.Time) time.Time {
	if j.Jitter <= 0 {
		return at
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", j.Name, at.Unix())
	return at.Add(time.Duration(h.Sum64() % uint64(j.Jitter)))
}

// claim returns the name under which the run of an instant is claimed. What catches up, or may not
// run beside another, has one name for the job.
func (j *Job) claim(at time.Time, missed bool) string {
	if j.Overlap == Allow && !missed {
		return "cron/" + j.Name + "/" + at.UTC().Format(stamp)
	}
	return "cron/" + j.Name
}

func (j *Job) retries(verdict string) bool { return slices.Contains(j.RetryOn, verdict) }
