package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Examine implements [driver.Store]. It asks each server for its version and role, looks at the
// tick and the session timeouts, and at what stands in the line of name.
func (s *Store) Examine(ctx context.Context, name string) []driver.Finding {
	found := make([]driver.Finding, len(s.servers.all))
	_ = parallel(len(found), func(i int) error {
		found[i] = s.examineServer(ctx, s.servers.all[i])
		return nil
	})
	times := fmt.Sprintf("tick %v, sessions up to %v: ttl from %v to %v; a crashed holder is replaced after about"+
		" 1.5 × ttl", s.tick, s.longest, s.caps.MinTTL.Round(time.Millisecond), s.caps.MaxTTL.Round(time.Millisecond))
	found = append(found, driver.Finding{Topic: "sessions", Level: driver.Fine, Found: times}, s.examineRights(ctx))
	return append(found, s.examineLine(ctx, name)...)
}

func (s *Store) examineServer(ctx context.Context, addr string) driver.Finding {
	finding := func(level driver.Level, found, advice string) driver.Finding {
		return driver.Finding{Topic: "server " + addr, Level: level, Found: found, Advice: advice}
	}
	begun := time.Now()
	text, err := s.servers.command(ctx, addr, "srvr")
	m := versionLine.FindStringSubmatch(text)
	switch {
	case err != nil && text == "":
		return finding(driver.Failed, "does not answer: "+err.Error(),
			"start it, or take it out of the list of servers")
	case strings.Contains(text, "not currently serving"):
		return finding(driver.Failed, "runs, but has no quorum and serves nobody",
			"look at the other members and at the network between them")
	case m == nil:
		return finding(driver.Warning, "answers, but does not tell its version",
			"allow the command srvr: 4lw.commands.whitelist=srvr,conf")
	}
	mode := "unknown"
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "Mode: "); ok {
			mode = rest
		}
	}
	found := fmt.Sprintf("version %s, %s, answered in %v", m[1], mode, time.Since(begun).Round(time.Millisecond))
	if mode == "observer" {
		return finding(driver.Warning, found, "fine if it follows the leader; one that follows a follower"+
			" (observerMasterPort) is not covered by the proof of renewals")
	}
	return finding(driver.Fine, found, "")
}

// examineRights looks whether we may read what we must; that we may write, Open has tried.
func (s *Store) examineRights(ctx context.Context) driver.Finding {
	f := driver.Finding{Topic: "permissions", Level: driver.Failed}
	t, err := s.connected(ctx)
	if err != nil {
		f.Found, f.Advice = "not connected: "+err.Error(), "see the servers above"
		return f
	}
	acl, err := t.request(ctx, pathOp(opGetACL, s.root))
	switch {
	case errors.Is(err, driver.ErrRefused):
		f.Found, f.Advice = err.Error(), "use the user that made "+s.root
		return f
	case err != nil:
		f.Found, f.Advice = "the ACL of "+s.root+" was not found out: "+err.Error(), "look again"
		return f
	}
	f.Level, f.Found = driver.Fine, "we may read and write below "+s.root
	r := reader{rest: acl}
	for n := r.int(); n > 0 && !r.short; n-- {
		if perms, scheme, _ := r.int(), r.text(), r.text(); scheme == "world" && perms&mayWrite != 0 {
			f.Level, f.Found = driver.Warning, "anybody may write to "+s.root+", and so end anybody's leadership"
			f.Advice = "use a user and password from the beginning, or set ACLs"
		}
	}
	return f
}

func (s *Store) examineLine(ctx context.Context, name string) []driver.Finding {
	f := driver.Finding{Topic: "line " + name, Level: driver.Fine}
	t, err := s.connected(ctx)
	var ln lineNodes
	if err == nil {
		ln, err = t.line(ctx, name, false)
	}
	if err != nil {
		f.Level, f.Found = driver.Failed, "not looked at: "+err.Error()
		return []driver.Finding{f}
	}
	f.Found = fmt.Sprintf("%d claims", len(ln.nodes))
	if wrapped(ln.nodes) {
		f.Level = driver.Warning
		f.Found += ", and its node has had 2³¹ children: their order is read from each of them"
		f.Advice = "when nobody uses it, delete " + s.pathOf(name) + ": it is made again"
	}
	if len(ln.foreign) == 0 {
		return []driver.Finding{f}
	}
	return []driver.Finding{f, {
		Topic: f.Topic, Level: driver.Warning,
		Found: fmt.Sprintf("%d nodes of other programs are in it, which do not count: %s",
			len(ln.foreign), ln.foreign[0]),
		Advice: "if they are another program's lock, the two do not exclude each other: give it another path",
	}}
}
