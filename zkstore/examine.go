package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

// Examine implements [driver.Store]. It asks each server for its version and role, looks at the tick and the session timeouts, and at what stands in the line of name.
func (s *Store) Examine(ctx context.Context, name string) []driver.Finding {
	found := make([]driver.Finding, len(s.servers.all))
	leaders := make([]bool, len(found))
	_ = parallel(len(found), func(i int) error {
		found[i], leaders[i] = s.examineServer(ctx, s.servers.all[i])
		return nil
	})
	found = append(found, s.examineTimes(), s.examineRights(ctx))
	return append(found, s.examineLine(ctx, name)...)
}

func (s *Store) examineServer(ctx context.Context, addr string) (f driver.Finding, leads bool) {
	f = driver.Finding{Topic: "server " + addr, Level: driver.Failed}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, handshakes)
	defer cancel()
	text, err := s.servers.command(ctx, addr, "srvr")
	m := versionLine.FindStringSubmatch(text)
	switch {
	case err != nil && text == "":
		f.Found, f.Advice = "does not answer: "+err.Error(), "start it, or take it out of the list of servers"
		return f, false
	case strings.Contains(text, "not currently serving"):
		f.Found, f.Advice = "runs, but has no quorum and serves nobody", "look at the other members and at the network between them"
		return f, false
	case m == nil:
		f.Level, f.Found, f.Advice = driver.Warning, "answers, but does not tell its version", "allow the command srvr: 4lw.commands.whitelist=srvr,conf"
		return f, false
	}
	mode := "unknown"
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "Mode: "); ok {
			mode = rest
		}
	}
	f.Level, f.Found = driver.Fine, fmt.Sprintf("version %s, %s, answered in %v", m[1], mode, time.Since(begun).Round(time.Millisecond))
	if mode == "observer" {
		f.Level, f.Advice = driver.Warning, "fine if it follows the leader; one that follows a follower (observerMasterPort) is not covered by the proof of renewals"
	}
	return f, mode == "leader" || mode == "standalone"
}

func (s *Store) examineTimes() driver.Finding {
	return driver.Finding{Topic: "sessions", Level: driver.Fine, Found: fmt.Sprintf("tick %v, sessions up to %v: ttl from %v to %v; a crashed holder is replaced after about 1.5 × ttl",
		s.tick, s.longest, s.caps.MinTTL.Round(time.Millisecond), s.caps.MaxTTL.Round(time.Millisecond))}
}

// examineRights looks whether we may read what we must; that we may write, Open has tried.
func (s *Store) examineRights(ctx context.Context) driver.Finding {
	f := driver.Finding{Topic: "permissions", Level: driver.Failed}
	t, err := s.connected(ctx)
	if err != nil {
		f.Found, f.Advice = "not connected: "+err.Error(), "see the servers above"
		return f
	}
	acl, err := call(ctx, t.link, func(c *zk.Conn) ([]zk.ACL, error) { a, _, err := c.GetACL(s.root); return a, err })
	switch {
	case errors.Is(err, driver.ErrRefused):
		f.Found, f.Advice = err.Error(), "use the user that made "+s.root
		return f
	case err != nil:
		f.Found, f.Advice = "the ACL of "+s.root+" was not found out: "+err.Error(), "look again"
		return f
	}
	f.Level, f.Found = driver.Fine, "we may read and write below "+s.root
	for _, a := range acl {
		if a.Scheme == "world" && a.Perms&zk.PermWrite != 0 {
			f.Level, f.Found = driver.Warning, "anybody may write to "+s.root+", and so end anybody's leadership"
			f.Advice = "use a user and password from the beginning, or set ACLs"
		}
	}
	return f
}

func (s *Store) examineLine(ctx context.Context, name string) (all []driver.Finding) {
	f := driver.Finding{Topic: "line " + name, Level: driver.Fine}
	t, err := s.connected(ctx)
	if err != nil {
		f.Level, f.Found = driver.Failed, "not looked at: "+err.Error()
		return []driver.Finding{f}
	}
	ln, err := t.line(ctx, name, false)
	if err != nil {
		f.Level, f.Found = driver.Failed, "not looked at: "+err.Error()
		return []driver.Finding{f}
	}
	f.Found = fmt.Sprintf("%d claims stand", len(ln.nodes))
	if wrapped(ln.nodes) {
		f.Level, f.Found = driver.Warning, f.Found+", and its node has had 2³¹ children: their order is read from each of them"
		f.Advice = "when nobody stands there, delete " + s.pathOf(name) + ": it is made again"
	}
	all = append(all, f)
	if len(ln.foreign) > 0 {
		all = append(all, driver.Finding{Topic: "line " + name, Level: driver.Warning, Found: fmt.Sprintf("%d nodes of other programs stand in it, which do not count: %s", len(ln.foreign), ln.foreign[0]),
			Advice: "if they are another program's lock, the two do not exclude each other: give it another path"})
	}
	return all
}
