//go:build linux

package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// What `primacy cron --status` answers, as an orchestrator and Prometheus ask it: the alert about
// cron jobs rests on it.
func TestCronStatusIsScraped(t *testing.T) {
	w := cronWorld(t)
	file := w.cronFile("[jobs.good]\nschedule = \"* * * * * *\"\ncommand = \"true\"\n[jobs.bad]\nschedule = \"* * * * * *\"\ncommand = \"exit 3\"\n" +
		"[jobs.never]\nschedule = \"@yearly\"\ncommand = \"true\"\n[jobs.deaf]\nschedule = \"* * * * * *\"\nstop_timeout = \"4s\"\ncommand = \"trap '' TERM; sleep 3; sleep 3\"\n")
	sock := filepath.Join(w.dir, "sock")
	p := w.start("cron", "-f", file, "--status", "unix:"+sock)
	ask := func(path string) (int, string) {
		c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", sock)
			}}}
		resp, err := c.Get("http://x" + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		var page bytes.Buffer
		_, _ = page.ReadFrom(resp.Body)
		return resp.StatusCode, page.String()
	}
	runs := func(job, result string) float64 {
		_, page := ask("/metrics")
		m := regexp.MustCompile(`(?m)^primacy_cron_runs_total\{job="` + job + `",result="` + result +
			`"\} (\S+)$`).FindStringSubmatch(page)
		if m == nil {
			return -1
		}
		n, _ := strconv.ParseFloat(m[1], 64)
		return n
	}
	w.eventually("runs are counted", func() bool { return runs("good", "ok") >= 2 && runs("bad", "failed") >= 2 })
	for _, c := range [][2]string{{"good", "failed"}, {"good", "missed"}, {"bad", "ok"}, {"never", "ok"},
		{"never", "failed"}, {"never", "missed"}} {
		if n := runs(c[0], c[1]); n != 0 {
			t.Errorf("%s %s is %v; it is to be there, and 0", c[0], c[1], n)
		}
	}
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/leader/good": 503, "/nothing": 404} {
		if got, text := ask(path); got != want {
			t.Errorf("%s: %d, want %d: %s", path, got, want, text)
		}
	}
	w.start("cron", "-f", file, "--status", "unix:"+sock).ends(exitUsage).complains("another process answers there")
	w.start("cron", "-f", file, "--status", "nonsense").ends(exitUsage).complains("give HOST:PORT, or unix:PATH")
	w.eventually("a long run", func() bool { return len(w.cronStatus("deaf").Running) > 0 })
	p.signal(syscall.SIGTERM)
	w.eventually("it says that it is stopping", func() bool {
		code,
			_ := ask("/readyz")
		return code == 503 || code == 0
	})
	p.ends(0)
}
