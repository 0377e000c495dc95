package redlockstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
)

// health is what Examine finds out about one server.
type health struct {
	v      *server
	err    error
	info   map[string]string
	config map[string]string // what CONFIG GET told; empty where it may not be asked
	ahead  time.Duration     // its clock before ours
	within time.Duration     // how long the question took, so far ahead may be wrong
}

// Examine asks each server how it is: version, memory, persistence, its part in replication, since
// when it runs, and its clock beside the others'.
func (s *Store) Examine(ctx context.Context, name string) []driver.Finding {
	all := make([]health, len(s.servers))
	done := make(chan int, len(s.servers))
	for i, v := range s.servers {
		go func() {
			h := v.examine(ctx)
			all[i] = h
			done <- i
		}()
	}
	for range s.servers {
		<-done // each obeys ctx, and its own limit
	}
	var found []driver.Finding
	up := 0
	for _, h := range all {
		found = append(found, h.findings()...)
		if h.err == nil && h.v.guarded(boottime.Now()) <= 0 {
			up++
		}
	}
	found = append([]driver.Finding{s.majority(up)}, found...)
	found = append(found, clocks(all)...)
	if s.cfg.Guard < 0 {
		found = append(found, driver.Finding{Topic: "guard", Level: driver.Warning, Found: "off: a server that comes back without its keys counts at once",
			Advice: "leave it on, or run every server with appendfsync always"})
	}
	return found
}

func (s *Store) majority(up int) driver.Finding {
	f := driver.Finding{Topic: "majority", Level: driver.Fine, Found: fmt.Sprintf("%d of %d servers answer and count, %d are needed", up, len(s.servers), s.quorum)}
	switch spare := up - s.quorum; {
	case spare < 0:
		f.Level, f.Advice = driver.Failed, "nobody can be elected until more servers answer"
	case spare == 0 && len(s.servers) > 1:
		f.Level, f.Advice = driver.Warning, "one more that fails ends every term: bring the others back"
	case len(s.servers) > 1 && len(s.servers)%2 == 0:
		f.Level, f.Advice = driver.Warning, "an even number bears no more failures than one server less"
	}
	return f
}

func (v *server) examine(ctx context.Context) health {
	h := health{v: v, config: map[string]string{}}
	ctx, cancel := context.WithTimeout(ctx, 2*maxLimit)
	defer cancel()
	if h.err = v.state(); h.err != nil {
		return h
	}
	before := time.Now()
	var at time.Time
	if at, h.err = v.rdb.Time(ctx).Result(); h.err != nil {
		return h
	}
	h.within = time.Since(before)
	h.ahead = at.Sub(before.Add(h.within / 2))
	text, err := v.rdb.Info(ctx).Result()
	if err != nil {
		h.err = v.wrap(err)
		return h
	}
	h.info = fields(text)
	if got, err := v.rdb.ConfigGet(ctx, "append*").Result(); err == nil {
		h.config = got
	}
	return h
}

func (h health) findings() (all []driver.Finding) {
	topic := "server " + h.v.addr
	add := func(level driver.Level, found, advice string) {
		all = append(all, driver.Finding{Topic: topic, Level: level, Found: found, Advice: advice})
	}
	if h.err != nil {
		add(driver.Failed, h.err.Error(), "start it, or mend the way to it")
		return all
	}
	version := h.info["redis_version"]
	if major, _, _ := strings.Cut(version, "."); atoi(major) < 6 {
		add(driver.Failed, "Redis "+version, "use 6.0 or newer: values are replaced with KEEPTTL")
	} else {
		add(driver.Fine, "Redis "+version+", runs for "+(time.Duration(atoi(h.info["uptime_in_seconds"]))*time.Second).String(), "")
	}
	if left := h.v.guarded(boottime.Now()); left > 0 {
		add(driver.Warning, fmt.Sprintf("was started less than %v ago: it does not count for %v yet", h.v.s.cfg.Guard, left.Round(time.Second)), "wait")
	}
	if role := h.info["role"]; role != "" && role != "master" {
		add(driver.Failed, "is a replica: it takes no writes", "name independent servers, no replicas")
	}
	if atoi(h.info["connected_slaves"]) > 0 {
		add(driver.Warning, "has replicas: a failover to one loses keys, and the address then leads to another server",
			"a quorum needs independent servers without failover; the guard keeps the new one out for a while")
	}
	if policy := h.info["maxmemory_policy"]; policy != "" && policy != "noeviction" && h.info["maxmemory"] != "0" {
		add(driver.Failed, "maxmemory-policy "+policy+": keys are evicted when memory is short, those of locks first", "set maxmemory-policy noeviction")
	}
	all = append(all, h.persistence(topic))
	return all
}

// persistence says what a restart loses.
func (h health) persistence(topic string) driver.Finding {
	f := driver.Finding{Topic: topic, Level: driver.Fine}
	switch {
	case h.info["aof_enabled"] == "1" && h.config["appendfsync"] == "always":
		f.Found = "appendfsync always: a restart loses nothing"
	case h.v.s.cfg.Guard < 0:
		f.Level, f.Found, f.Advice = driver.Failed, "a restart loses keys, and the guard is off", "leave the guard on, or set appendonly yes and appendfsync always"
	default:
		f.Found = fmt.Sprintf("a restart loses keys: it does not count for %v after one", h.v.s.cfg.Guard)
	}
	return f
}

// clocks compares the servers' clocks. Only their rates and steps matter, not what they show; far
// apart they are a sign that nobody keeps them.
func clocks(all []health) []driver.Finding {
	var ahead []time.Duration
	var within time.Duration
	for _, h := range all {
		if h.err == nil {
			ahead, within = append(ahead, h.ahead), max(within, h.within)
		}
	}
	if len(ahead) < 2 {
		return nil
	}
	apart := slices.Max(ahead) - slices.Min(ahead)
	f := driver.Finding{Topic: "clocks", Level: driver.Fine, Found: fmt.Sprintf("the servers' clocks are %v apart, measured to %v", apart.Round(time.Millisecond), within.Round(time.Millisecond))}
	if apart > time.Second+within {
		f.Level, f.Advice = driver.Warning, "keep them by NTP, slewing and never stepping: a step ends leases early, and can make two leaders"
	}
	return []driver.Finding{f}
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}
