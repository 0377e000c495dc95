package cron

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/near"
	"github.com/primacy-go/primacy/cmd/internal/tomlfile"
)

// fileLimit bounds a file of jobs, and jobsLimit how many it may have.
const (
	fileLimit = 4 << 20
	jobsLimit = 5000
)

// setters take in a key of a job, or of [defaults]. What is unknown is an error: a misspelt key
// would be a setting that is silently not there.
var setters = map[string]func(*Job, value) error{
	"schedule":      func(j *Job, v value) error { return v.text(&j.Spec) },
	"timezone":      func(j *Job, v value) error { return v.text(&j.Zone) },
	"command":       func(j *Job, v value) error { return v.command(&j.Command) },
	"dir":           func(j *Job, v value) error { return v.text(&j.Dir) },
	"env":           func(j *Job, v value) error { return v.env(&j.Env) },
	"overlap":       func(j *Job, v value) error { return v.text(&j.Overlap) },
	"missed":        func(j *Job, v value) error { return v.text(&j.Missed) },
	"missed_within": func(j *Job, v value) error { return v.duration(&j.MissedWithin) },
	"late":          func(j *Job, v value) error { return v.duration(&j.Late) },
	"catch_up":      func(j *Job, v value) error { return v.number(&j.CatchUp) },
	"retries":       func(j *Job, v value) error { return v.number(&j.Retries) },
	"retry_delay":   func(j *Job, v value) error { return v.duration(&j.RetryDelay) },
	"retry_on":      func(j *Job, v value) error { return v.list(&j.RetryOn) },
	"timeout":       func(j *Job, v value) error { return v.duration(&j.Timeout) },
	"stop_timeout":  func(j *Job, v value) error { return v.duration(&j.StopTimeout) },
	"jitter":        func(j *Job, v value) error { return v.duration(&j.Jitter) },
	"keep":          func(j *Job, v value) error { return v.number(&j.Keep) },
}

// Load reads a file of jobs. An error is one line: FILE:LINE, the job, the key, and what to do.
func Load(path string) ([]*Job, error) {
	text, err := tomlfile.Read(path, fileLimit)
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// Parse is [Load] of a text; path is what errors call it.
func Parse(path, text string) ([]*Job, error) {
	_, top, err := tomlfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(top)) {
		if key != "defaults" && key != "jobs" {
			return nil, fmt.Errorf("%s: unknown key %q: use [defaults] and [jobs.NAME]", top[key].At(), key)
		}
	}
	base := DefaultJob()
	if v, ok := top["defaults"]; ok {
		if _, err := take(v, "[defaults]", &base); err != nil {
			return nil, err
		}
	}
	v, ok := top["jobs"]
	if !ok {
		return nil, fmt.Errorf("%s: no jobs: write [jobs.NAME] with schedule and command", path)
	}
	named, ok := v.Table()
	if !ok {
		return nil, fmt.Errorf("%s: jobs must be tables: [jobs.NAME]", v.At())
	}
	if len(named) > jobsLimit {
		return nil, fmt.Errorf("%s: %d jobs, more than %d", path, len(named), jobsLimit)
	}
	return makeJobs(named, base)
}

func makeJobs(named tomlfile.Table, base Job) (jobs []*Job, err error) {
	for _, name := range slices.Sorted(maps.Keys(named)) {
		where := "[jobs." + name + "]"
		j := base
		j.Name, j.Env = name, maps.Clone(base.Env)
		keys, err := take(named[name], where, &j)
		if err != nil {
			return nil, err
		}
		checked, err := j.Check()
		var wrong *problem
		if errors.As(err, &wrong) {
			if at, given := keys[wrong.key]; given {
				return nil, fmt.Errorf("%s: %s %w", at.At(), where, err)
			}
			return nil, fmt.Errorf("%s: %s %w", named[name].At(), where, err)
		}
		jobs = append(jobs, checked)
	}
	return jobs, nil
}

// take takes the keys of one table into a job.
func take(v tomlfile.Value, where string, j *Job) (tomlfile.Table, error) {
	keys, ok := v.Table()
	if !ok {
		return nil, fmt.Errorf("%s: %s must be a table of keys", v.At(), where)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		set, known := setters[key]
		if !known {
			all := slices.Sorted(maps.Keys(setters))
			if meant := near.Word(key, all); meant != "" {
				return nil, fmt.Errorf("%s: %s unknown key %q; did you mean %s?", keys[key].At(), where, key, meant)
			}
			return nil, fmt.Errorf("%s: %s unknown key %q: use %s", keys[key].At(), where, key,
				strings.Join(all, ", "))
		}
		if err := set(j, value{keys[key]}); err != nil {
			return nil, fmt.Errorf("%s: %s %s: %w", keys[key].At(), where, key, err)
		}
	}
	return keys, nil
}

// value is one key's value.
type value struct{ tomlfile.Value }

func (v value) text(to *string) error {
	if v.Decode(to) != nil {
		return errors.New(`give a string, in "quotes"`)
	}
	return nil
}

func (v value) number(to *int) error {
	var n int64
	if v.Decode(&n) != nil || n > 1<<30 || n < -1<<30 {
		return errors.New("give a whole number")
	}
	*to = int(n)
	return nil
}

func (v value) duration(to *time.Duration) error {
	var s string
	wrong := errors.New(`give a duration such as "90s", "10m" or "24h"`)
	if v.Decode(&s) != nil {
		return wrong
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return wrong
	}
	*to = d
	return nil
}

func (v value) list(to *[]string) error {
	var all []string
	if v.Decode(&all) != nil {
		return errors.New(`give a list of strings: ["one", "two"]`)
	}
	*to = all
	return nil
}

// command is a list, or one line for the shell.
func (v value) command(to *[]string) error {
	var line string
	if v.Decode(&line) == nil {
		if strings.TrimSpace(line) == "" {
			return errors.New("it is empty")
		}
		*to = []string{"/bin/sh", "-c", line}
		return nil
	}
	if v.list(to) != nil {
		return errors.New(`give one line for /bin/sh: "a | b", or a list: ["program", "argument"]`)
	}
	return nil
}

func (v value) env(to *map[string]string) error {
	var all map[string]string
	if !v.IsTable() || v.Decode(&all) != nil {
		return errors.New(`give a table of strings: { NAME = "value" }`)
	}
	if *to == nil {
		*to = map[string]string{}
	}
	maps.Copy(*to, all)
	return nil
}
