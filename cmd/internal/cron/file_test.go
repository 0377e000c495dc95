package cron

import (
	"strings"
	"testing"
	"time"
)

func TestAFileOfJobs(t *testing.T) {
	jobs, err := Parse("jobs.toml", `
[defaults]
timezone = "Europe/Berlin"
retries = 2
env = { A = "1", B = "2" }

[jobs.b-daily]
schedule = "0 3 * * *"
command = ["/usr/bin/report", "--full"]
retries = 0
missed = "all"
missed_within = "24h"

[jobs.a]
schedule = "@every 90s"
command = "date >> /tmp/x"
overlap = "allow"
env = { B = "3" }
`)
	if err != nil || len(jobs) != 2 {
		t.Fatal(jobs, err)
	}
	a, b := jobs[0], jobs[1]
	if a.Name != "a" || strings.Join(a.Command, "|") != "/bin/sh|-c|date >> /tmp/x" || a.Retries != 2 ||
		a.Overlap != Allow || a.Missed != Once || a.Env["A"]+a.Env["B"] != "13" {
		t.Errorf("%+v", a)
	}
	if b.Zone != "Europe/Berlin" || b.Command[1] != "--full" || b.Retries != 0 || b.MissedWithin != 24*time.Hour ||
		b.Env["B"] != "2" {
		t.Errorf("%+v", b)
	}
	if a.Definition() == b.Definition() || a.Definition() != jobs[0].Definition() {
		t.Error("definitions")
	}
}

func TestABadFileIsOneLineWithItsPlace(t *testing.T) {
	const good = "[jobs.x]\nschedule = \"* * * * *\"\ncommand = \"true\"\n"
	for text, want := range map[string]string{
		"":                                                    "f: no jobs",
		"[jobs.x":                                             "f:1: ",
		good + "comand = \"x\"\n":                             `unknown key "comand"; did you mean command?`,
		good + "retries = \"2\"\n":                            "f:4: [jobs.x] retries: give a whole number",
		good + "retries = 99\n":                               "f:4: [jobs.x] retries: 99: use 0 to 98",
		good + "timeout = 5\n":                                "f:4: [jobs.x] timeout: give a duration",
		good + "timeout = \"-5s\"\n":                          "f:4: [jobs.x] timeout: give a duration",
		good + "overlap = \"maybe\"\n":                        `f:4: [jobs.x] overlap: "maybe": use forbid`,
		good + "timezone = \"Mars\"\n":                        `f:4: [jobs.x] timezone: unknown timezone "Mars"`,
		good + "retry_on = [\"ok\"]\n":                        `f:4: [jobs.x] retry_on: "ok"`,
		good + "dir = \"x\"\n":                                "f:4: [jobs.x] dir: ",
		good + "env = {PRIMACY_ID=\"\"}":                      "f:4: [jobs.x] env: ",
		good + "schedule = \"@daily\"\n":                      "f:4: ",
		good + "[other]\nx = 1\n":                             `unknown key "other"`,
		good + "shedule = \"x\"\n":                            `f:4: [jobs.x] unknown key "shedule"; did`,
		good + "retry-on = [\"x\"]\n":                         `"retry-on"; did you mean retry_on?`,
		good + "zzzzzzzz = \"x\"\n":                           `unknown key "zzzzzzzz": use catch_up, c`,
		"[jobs.x]\ncommand=\"true\"":                          "f:1: [jobs.x] schedule: the schedule is empty",
		"[jobs.x]\nschedule=\"@daily\"":                       "f:1: [jobs.x] command: give what to run",
		"[jobs.\"a b\"]\ncommand=\"true\"":                    `name: "a b"`,
		"jobs = 3":                                            "f:1: jobs must be tables",
		"[jobs]\nx = 3":                                       "f:2: [jobs.x] must be a table",
		"[jobs.x]\nschedule=\"61 * * * *\"\ncommand=\"true\"": "f:2: [jobs.x] schedule: ",
		"[jobs.x]\nschedule=\"@daily\"\ncommand=[]":           "f:3: [jobs.x] command: ",
		"[jobs.x]\nschedule=\"@daily\"\ncommand=3":            "f:3: [jobs.x] command: give one line",
	} {
		_, err := Parse("f", text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add("[jobs.x]\nschedule = \"* * * * *\"\ncommand = \"true\"\n")
	f.Add("[defaults]\nenv={a=\"b\"}\n[jobs.\"\"]\n")
	f.Fuzz(func(t *testing.T, text string) {
		jobs, err := Parse("f", text)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %q", err)
		}
		for _, j := range jobs {
			if j.schedule == nil || len(j.Command) == 0 {
				t.Errorf("accepted %+v", j)
			}
		}
	})
}
