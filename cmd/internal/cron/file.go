package cron

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/primacy-go/primacy/cmd/internal/near"
)

// fileLimit bounds a file of jobs, and jobsLimit how many it may have.
const (
	fileLimit = 4 << 20
	jobsLimit = 5000
)

// file is a file of jobs while it is read.
type file struct {
	path string
	md   toml.MetaData
}

// setters take in a key of a job, or of [defaults]. What is unknown is an error: a misspelt key
// would be a setting that is silently not there.
var setters = map[string]func(*Job, *value) error{
	"schedule":      func(j *Job, v *value) error { return v.text(&j.Spec) },
	"timezone":      func(j *Job, v *value) error { return v.text(&j.Zone) },
	"command":       func(j *Job, v *value) error { return v.command(&j.Command) },
	"dir":           func(j *Job, v *value) error { return v.text(&j.Dir) },
	"env":           func(j *Job, v *value) error { return v.env(&j.Env) },
	"overlap":       func(j *Job, v *value) error { return v.text(&j.Overlap) },
	"missed":        func(j *Job, v *value) error { return v.text(&j.Missed) },
	"missed_within": func(j *Job, v *value) error { return v.duration(&j.MissedWithin) },
	"late":          func(j *Job, v *value) error { return v.duration(&j.Late) },
	"catch_up":      func(j *Job, v *value) error { return v.number(&j.CatchUp) },
	"retries":       func(j *Job, v *value) error { return v.number(&j.Retries) },
	"retry_delay":   func(j *Job, v *value) error { return v.duration(&j.RetryDelay) },
	"retry_on":      func(j *Job, v *value) error { return v.list(&j.RetryOn) },
	"timeout":       func(j *Job, v *value) error { return v.duration(&j.Timeout) },
	"stop_timeout":  func(j *Job, v *value) error { return v.duration(&j.StopTimeout) },
	"jitter":        func(j *Job, v *value) error { return v.duration(&j.Jitter) },
	"keep":          func(j *Job, v *value) error { return v.number(&j.Keep) },
}

// Load reads a file of jobs. An error is one line: FILE:LINE, the job, the key, and what to do.
func Load(path string) ([]*Job, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, fileLimit+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > fileLimit:
		return nil, fmt.Errorf("%s: it is larger than %d bytes", path, fileLimit)
	}
	return Parse(path, string(text))
}

// Parse is [Load] of a text; path is what errors call it.
func Parse(path, text string) ([]*Job, error) {
	var top map[string]toml.Primitive
	f := &file{path: path}
	md, err := toml.Decode(text, &top)
	if err != nil {
		return nil, f.plain(err)
	}
	f.md = md
	for _, key := range slices.Sorted(maps.Keys(top)) {
		if key != "defaults" && key != "jobs" {
			return nil, fmt.Errorf("%s: unknown key %q: use [defaults] and [jobs.NAME]", f.at(top[key]), key)
		}
	}
	base := DefaultJob()
	if p, ok := top["defaults"]; ok {
		if _, err := f.table(p, "[defaults]", &base); err != nil {
			return nil, err
		}
	}
	p, ok := top["jobs"]
	if !ok {
		return nil, fmt.Errorf("%s: no jobs: write [jobs.NAME] with schedule and command", path)
	}
	return f.jobs(p, base)
}

func (f *file) jobs(p toml.Primitive, base Job) (jobs []*Job, err error) {
	var named map[string]toml.Primitive
	if !f.isTable(p) || f.md.PrimitiveDecode(p, &named) != nil {
		return nil, fmt.Errorf("%s: jobs must be tables: [jobs.NAME]", f.at(p))
	}
	if len(named) > jobsLimit {
		return nil, fmt.Errorf("%s: %d jobs, more than %d", f.path, len(named), jobsLimit)
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		where := "[jobs." + name + "]"
		j := base
		j.Name, j.Env = name, maps.Clone(base.Env)
		keys, err := f.table(named[name], where, &j)
		if err != nil {
			return nil, err
		}
		checked, err := j.Check()
		var wrong *problem
		if errors.As(err, &wrong) {
			if at, given := keys[wrong.key]; given {
				return nil, fmt.Errorf("%s: %s %w", f.at(at), where, err)
			}
			return nil, fmt.Errorf("%s: %s %w", f.at(named[name]), where, err)
		}
		jobs = append(jobs, checked)
	}
	return jobs, nil
}

// table takes the keys of one table into a job.
func (f *file) table(p toml.Primitive, where string, j *Job) (keys map[string]toml.Primitive, err error) {
	if !f.isTable(p) || f.md.PrimitiveDecode(p, &keys) != nil {
		return nil, fmt.Errorf("%s: %s must be a table of keys", f.at(p), where)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		set, known := setters[key]
		if !known {
			all := slices.Sorted(maps.Keys(setters))
			if meant := near.Word(key, all); meant != "" {
				return nil, fmt.Errorf("%s: %s unknown key %q; did you mean %s?", f.at(keys[key]), where, key, meant)
			}
			return nil, fmt.Errorf("%s: %s unknown key %q: use %s", f.at(keys[key]), where, key,
				strings.Join(all, ", "))
		}
		if err := set(j, &value{f, keys[key]}); err != nil {
			return nil, fmt.Errorf("%s: %s %s: %w", f.at(keys[key]), where, key, err)
		}
	}
	return keys, nil
}

// isTable says whether a value is a table: the decoder makes an empty one of a number.
func (f *file) isTable(p toml.Primitive) bool {
	var v any
	if f.md.PrimitiveDecode(p, &v) != nil {
		return false
	}
	_, ok := v.(map[string]any)
	return ok
}

// nowhere is a value that cannot be decoded: the error says where it stands.
type nowhere struct{}

func (*nowhere) UnmarshalTOML(any) error { return errors.New("no value") }

// at returns where a key stands, as "file:line".
func (f *file) at(p toml.Primitive) string {
	var pe toml.ParseError
	if errors.As(f.md.PrimitiveDecode(p, &nowhere{}), &pe) && pe.Position.Line > 0 {
		return fmt.Sprintf("%s:%d", f.path, pe.Position.Line)
	}
	return f.path
}

// plain is what is wrong with the file as TOML, in one line.
func (f *file) plain(err error) error {
	var pe toml.ParseError
	if errors.As(err, &pe) {
		text := pe.Message
		if text == "" {
			text = pe.Error()
		}
		return fmt.Errorf("%s:%d: %s", f.path, pe.Position.Line, strings.ReplaceAll(text, "\n", "; "))
	}
	return fmt.Errorf("%s: %s", f.path, strings.ReplaceAll(err.Error(), "\n", "; "))
}

// value is one key's value.
type value struct {
	f *file
	p toml.Primitive
}

func (v *value) text(to *string) error {
	if v.f.md.PrimitiveDecode(v.p, to) != nil {
		return errors.New(`give a string, in "quotes"`)
	}
	return nil
}

func (v *value) number(to *int) error {
	var n int64
	if v.f.md.PrimitiveDecode(v.p, &n) != nil || n > 1<<30 || n < -1<<30 {
		return errors.New("give a whole number")
	}
	*to = int(n)
	return nil
}

func (v *value) duration(to *time.Duration) error {
	var s string
	wrong := errors.New(`give a duration such as "90s", "10m" or "24h"`)
	if v.f.md.PrimitiveDecode(v.p, &s) != nil {
		return wrong
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return wrong
	}
	*to = d
	return nil
}

func (v *value) list(to *[]string) error {
	var all []string
	if v.f.md.PrimitiveDecode(v.p, &all) != nil {
		return errors.New(`give a list of strings: ["one", "two"]`)
	}
	*to = all
	return nil
}

// command is a list, or one line for the shell.
func (v *value) command(to *[]string) error {
	var line string
	if v.f.md.PrimitiveDecode(v.p, &line) == nil {
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

func (v *value) env(to *map[string]string) error {
	var all map[string]string
	if !v.f.isTable(v.p) || v.f.md.PrimitiveDecode(v.p, &all) != nil {
		return errors.New(`give a table of strings: { NAME = "value" }`)
	}
	if *to == nil {
		*to = map[string]string{}
	}
	maps.Copy(*to, all)
	return nil
}
