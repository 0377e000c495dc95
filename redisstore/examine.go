package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Examine implements [driver.Store]: the server, its version and settings, the time it takes, what
// the user may do.
func (s *Store) Examine(ctx context.Context, name string) []driver.Finding {
	topic := "Redis " + s.names
	begun := time.Now()
	srv, err := s.info(ctx)
	if err != nil {
		return []driver.Finding{{Topic: topic, Level: driver.Failed, Found: s.wrap(ctx, "info", err).Error(),
			Advice: "look at the address, the network, the user and its password"}}
	}
	took := time.Since(begun).Round(time.Microsecond)
	all := []driver.Finding{{Topic: topic, Level: driver.Fine,
		Found: fmt.Sprintf("%s %s, %s, answers in %v", srv.name, srv.version, role(srv), took)}}
	if err := s.refused(srv); err != nil {
		all[0].Level, all[0].Found, all[0].Advice = driver.Failed, err.Error(), "use another server"
		return all
	}
	all = append(all, s.judged(srv)...)
	if f, ok := s.heldOff(ctx); ok {
		all = append(all, f)
	}
	return append(all, s.tried(ctx, name))
}

// heldOff tells of a hold-off (guard.go): nobody new leads or gets a lock before its end, and no
// other command says why.
func (s *Store) heldOff(ctx context.Context) (f driver.Finding, ok bool) {
	client := s.calls.get()
	kept, err := client.HMGet(ctx, s.base+"server", "calm", "since").Result()
	now, err2 := client.Time(ctx).Result()
	if err != nil || err2 != nil || len(kept) != 2 {
		return f, false // what follows says so, too
	}
	const clock = "15:04:05"
	calm, since := time.UnixMilli(milliseconds(kept[0])), time.UnixMilli(milliseconds(kept[1]))
	f.Topic = "hold-off"
	switch young := now.Sub(since); {
	case calm.After(now):
		f.Level = driver.Warning
		f.Found = fmt.Sprintf("the server took over or was started at %s, and may have lost what it had acknowledged: "+
			"nobody new leads or gets a lock before %s", since.Format(clock), calm.Format(clock))
		f.Advice = "wait: it is as long as the largest ttl of the last hours. If you know that nothing was lost, " +
			"docs/redis.md, \"Restarts and failovers\", says how to end it"
	case young < longestUsual: // never where there is no such field: that is 1970
		f.Level = driver.Fine
		f.Found = fmt.Sprintf("the server was started or took over at %s: who asks with a ttl of more than the %v "+
			"since then gets nothing before that is over", since.Format(clock), young.Round(time.Second))
	default:
		return f, false
	}
	return f, true
}

// longestUsual is the longest ttl that the library asks for.
const longestUsual = 5 * time.Minute

// milliseconds is what a field of {p}:server tells; 0 if there is none.
func milliseconds(field any) int64 {
	text, _ := field.(string)
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return ms
}

func role(srv serverInfo) string {
	if srv.role != "master" {
		return "a replica"
	}
	return fmt.Sprintf("primary of %d replicas", srv.replicas)
}

// tried reads the line of name, which needs most of the rights that anything needs.
func (s *Store) tried(ctx context.Context, name string) driver.Finding {
	ln, err := s.Line(ctx, name)
	f := driver.Finding{Topic: "the queue of " + name, Level: driver.Fine,
		Found: fmt.Sprintf("can be read: %d claims", len(ln.Waiters)+held(ln))}
	if err != nil {
		f.Level, f.Found = driver.Failed, err.Error()
		f.Advice = fmt.Sprintf("the user needs the keys ~%s*, the channels &%s* and the commands listed in docs/redis.md",
			s.base, s.base)
	}
	return f
}

func held(ln driver.Line) int {
	if ln.Holder != nil {
		return 1
	}
	return 0
}

// judged says what the server's settings mean for the promises.
func (s *Store) judged(srv serverInfo) (all []driver.Finding) {
	add := func(topic string, level driver.Level, found, advice string) {
		all = append(all, driver.Finding{Topic: topic, Level: level, Found: found, Advice: advice})
	}
	if srv.settings == nil {
		add("settings", driver.Warning, "CONFIG GET is not allowed: eviction and persistence could not be looked at",
			"maxmemory-policy must be noeviction, and appendfsync always is the safest")
	} else {
		stored(srv.settings, add)
	}
	switch {
	case srv.replicas > s.replicas:
		add("replicas", driver.Warning, fmt.Sprintf("%d replicas, and renewals wait for %d of them: a former primary "+
			"that lives on in its own part of the network keeps its leaders, beside those of the promoted one",
			srv.replicas, s.replicas),
			"set Replicas to their number (replicas= in the URL), or fence what leaders write")
	case s.replicas > srv.replicas:
		add("replicas", driver.Failed,
			fmt.Sprintf("%d replicas are connected, and renewals wait for %d: none will count", srv.replicas, s.replicas),
			"start the others, or lower Replicas")
	default:
		add("replicas", driver.Fine, fmt.Sprintf("%d connected, renewals wait for %d", srv.replicas, s.replicas), "")
	}
	return all
}

// stored judges eviction and persistence.
func stored(settings map[string]string, add func(topic string, level driver.Level, found, advice string)) {
	switch policy := settings["maxmemory-policy"]; {
	case policy == "noeviction":
		add("eviction", driver.Fine, "maxmemory-policy is noeviction", "")
	case settings["maxmemory"] == "0":
		add("eviction", driver.Warning, "maxmemory-policy is "+policy+
			": with a maxmemory leases would be evicted, and two could lead", "set maxmemory-policy noeviction")
	default:
		add("eviction", driver.Warning, "maxmemory-policy is "+policy+
			": when memory is full leases are evicted, and two can lead", "set maxmemory-policy noeviction")
	}
	switch sync := settings["appendfsync"]; {
	case settings["appendonly"] != "yes":
		add("persistence", driver.Warning, "no append-only file: a restart ends all terms, "+
			"and the next come only after the largest ttl", "set appendonly yes and appendfsync always")
	case sync != "always":
		add("persistence", driver.Warning, "appendfsync is "+sync+
			": a crash loses what was acknowledged last, and sessions with it", "set appendfsync always")
	default:
		add("persistence", driver.Fine, "appendonly with appendfsync always", "")
	}
}
