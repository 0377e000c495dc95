package redlockstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// scan returns the names with keys on any of the servers, of which a majority has to answer.
func (s *Store) scan(ctx context.Context, prefix string) ([]string, error) {
	all := map[string]bool{}
	err := everywhere(ctx, s, func(v *server) ([]string, error) { return v.scan(ctx, prefix) }, func(names []string) {
		for _, name := range names {
			all[name] = true
		}
	})
	return slices.Sorted(maps.Keys(all)), err
}

// scan returns the names with keys on this server.
func (v *server) scan(ctx context.Context, prefix string) (names []string, err error) {
	escape := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
	match := escape.Replace(v.s.key(prefix)) + "*"
	for cursor := uint64(0); ; {
		var keys []string
		if keys, cursor, err = v.rdb.Scan(ctx, cursor, match, 1000).Result(); err != nil {
			return nil, v.wrap(err)
		}
		for _, k := range keys {
			if !v.s.cfg.Plain || !strings.HasPrefix(k, v.s.cfg.Prefix+":left:") && !strings.HasPrefix(k, v.s.cfg.Prefix+":revoked:") {
				names = append(names, strings.TrimPrefix(k, v.s.key("")))
			}
		}
		if cursor == 0 {
			return names, nil
		}
	}
}

// Revoke ends the lease of that ID: a mark on a majority keeps it from being renewed and from
// claiming anything, and its keys are deleted.
func (s *Store) Revoke(ctx context.Context, lease string) error {
	nothing := func(string) {}
	mark := func(v *server) (string, error) {
		return v.rdb.Set(ctx, s.revoked(lease), "1", 2*s.cfg.MaxTTL).Result() // by then it has run out, renewed or not
	}
	var names []string
	err := everywhere(ctx, s, mark, nothing)
	if err == nil {
		names, err = s.scan(ctx, "")
	}
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	for some := range slices.Chunk(names, 200) {
		keys := make([]string, len(some))
		for i, name := range some {
			keys[i] = s.key(name)
		}
		remove := func(v *server) (string, error) { return "", v.revoke(lease, some, keys) }
		if err := everywhere(ctx, s, remove, nothing); err != nil {
			return fmt.Errorf("revoke: %w", err)
		}
	}
	return nil
}

// revoke deletes the keys of a lease on one server, among these.
func (v *server) revoke(lease string, names, keys []string) error {
	got, err := v.call(look, maxLimit, keys)
	if err != nil {
		return err
	}
	var there []string
	var args []any
	for i, name := range names {
		text, _ := got[2*i].(string)
		if text == "" {
			continue
		}
		if own, _, in, ok := parse(text[1:]); ok && in.Lease == lease {
			there = append(there, keys[i], v.s.mark(own))
			args = append(args, own, (2 * maxLimit).Milliseconds(), v.s.channel(name))
		}
	}
	if len(there) == 0 {
		return nil
	}
	_, err = v.call(leave, maxLimit, there, args...)
	return err
}
