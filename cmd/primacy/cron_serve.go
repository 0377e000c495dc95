package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/cmd/internal/telemetry"
	"github.com/primacy-go/primacy/metrics"
)

// cronResults says under which result of primacy_cron_runs_total a verdict counts. What a job's own policy did, overlap and replaced, is no failure, and is in the
// journal.
var cronResults = map[string]metrics.CronResult{
	cron.OK: metrics.CronOK, cron.Failed: metrics.CronFailed, cron.TimedOut: metrics.CronFailed, cron.Stopped: metrics.CronFailed, cron.Lost: metrics.CronFailed,
	cron.Missed: metrics.CronMissed, cron.Suppressed: metrics.CronSuppressed,
}

// serveStatus answers at --status, and returns what ends it. What the engine counts is shown from then on.
func (t *crontab) serveStatus(s *primacy.Session, e *cron.Engine, jobs []*cron.Job) (end func(), err error) {
	if t.statusAt == "" {
		return func() {}, nil
	}
	l, err := listenStatus(t.statusAt)
	if err != nil {
		return nil, fmt.Errorf("--status %s: %w", clean(t.statusAt), err)
	}
	names := []string{}
	for _, j := range jobs {
		names = append(names, j.Name)
	}
	shown, err := telemetry.New(s, telemetry.Options{Options: figures(false), Jobs: names})
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	e.Counters().Tell(func(job, result string, n uint64) {
		if r, ok := cronResults[result]; ok {
			for ; n > 0; n-- {
				shown.Cron.Add(job, r)
			}
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	pulse := health.NewPulse(ctx, max(t.ttl, time.Second), func() { e.Touch() })
	o := health.Options{Alive: pulse.Alive, Ready: t.ready, Metrics: shown.Handler(),
		Leads: func(string, primacy.Token) (health.Lead, bool) { return health.Lead{}, false }} // it has no leader
	server := &http.Server{Handler: o.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close(); stop(); e.Counters().Tell(nil); shown.Close() }, nil
}

// ready says that the store has answered, which it had before this was served, and that runs still begin here.
func (t *crontab) ready() error {
	if t.leaving.Load() {
		return errors.New("this process is stopping")
	}
	return nil
}
