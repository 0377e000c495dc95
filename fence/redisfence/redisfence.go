// Package redisfence fences what a leader writes to Redis: the check and the effect are one script.
//
//	keys := redisfence.Fence{Key: "{ledger}:fence"}
//	err := redisfence.Raise(ctx, client, keys, s)                                  // once a term, before its first read
//	_, err = redisfence.Call(ctx, client, keys, s, "SET", "{ledger}:total", 17)    // one command
//	v, err := redisfence.Eval(ctx, client, keys, s, script, []string{"{ledger}:a"}, 5) // a script of one's own
//
// s is fence.Of(term). The client is go-redis's Client, ClusterClient or Conn; this package imports
// none. Not its Ring: that moves the keys of a shard it cannot reach to another one, so that two
// leaders may each have a fence and data of their own. Set its MaxRetries to -1: it repeats by
// itself a command whose answer was lost, and the error is then that of the last attempt only.
//
// Redis runs a script alone. After a newer leader's Raise every older token gets a
// *fence.StaleError and nothing is written. In a cluster the fence's key and the keys written must
// share a hash slot, which a tag in braces gives them ("{ledger}:fence", "{ledger}:total"); the
// server refuses the script otherwise (CROSSSLOT).
//
// It holds until Redis loses writes: by the promotion of a replica, a restart without appendfsync
// always, an eviction, FLUSHALL. Where the loss shows, a write gets fence.ErrNotRaised. A script
// that fails half way keeps what it wrote, as ever in Redis. For data that must not be lost, use a
// fence in etcd or SQL. More: docs/fencing.md.
package redisfence

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
)

// Fence is where the largest token is kept: a hash with the fields name, token and origin, without
// a TTL.
type Fence struct {
	Key string
}

// Cmd is what a client returns: *redis.Cmd is one.
type Cmd interface{ Result() (any, error) }

// Client is a client of go-redis, or one that is shaped like it.
type Client[C Cmd] interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) C
}

// Raise makes the fence refuse smaller tokens from now on. Call it once a term, before the first
// read of what will be written. The error is a *fence.StaleError if a larger token was raised, a
// *fence.OriginError if one of another store was. After any other error whether it was raised is
// unknown; repeat the call.
func Raise[C Cmd](ctx context.Context, c Client[C], f Fence, s fence.Stamp) error {
	if err := f.check(s); err != nil {
		return err
	}
	_, err := run(ctx, c, s, raiseScript, []string{f.Key}, nil)
	return err
}

// Adopt makes s count, whatever the fence knew. It is for an operator, after the store of the
// election was restored or replaced, who has made sure that no leader of the old store runs.
func Adopt[C Cmd](ctx context.Context, c Client[C], f Fence, s fence.Stamp) error {
	if err := f.check(s); err != nil {
		return err
	}
	_, err := run(ctx, c, s, adoptScript, []string{f.Key}, nil)
	return err
}

// Call runs one command on one key under the fence ("SET", "{ledger}:total", 17) and returns its
// answer, nil where Redis answers nil. The errors are those of [Raise], fence.ErrNotRaised, and the
// command's own. After an error of the network whether it ran is unknown. Lua takes up to some 7900
// arguments in one command ("too many results to unpack"): split longer ones.
func Call[C Cmd](ctx context.Context, c Client[C], f Fence, s fence.Stamp, command, key string, args ...any) (any, error) {
	return Eval(ctx, c, f, s, callBody, []string{key}, append([]any{command}, args...)...)
}

// Eval runs a Lua script under the fence and returns what it returns, nil for nil. The script sees
// its own keys and arguments, as if the fence were not there: KEYS[1] is keys[0], ARGV[1] is
// args[0]. It must not write the fence's key. Errors are those of [Call].
func Eval[C Cmd](ctx context.Context, c Client[C], f Fence, s fence.Stamp, script string, keys []string, args ...any) (any, error) {
	if err := f.check(s); err != nil {
		return nil, err
	}
	if slices.Contains(keys, f.Key) {
		return nil, invalid("the key %q is the fence itself", f.Key)
	}
	if strings.HasPrefix(script, "#!") {
		return nil, invalid("a script under a fence has no #! line: leave it out")
	}
	return run(ctx, c, s, guard(script), append([]string{f.Key}, keys...), args)
}

func (f Fence) check(s fence.Stamp) error {
	if f.Key == "" {
		return invalid("the fence has no key: use one with the tag of the keys it guards, such as {%s}:fence", s.Name)
	}
	return s.Valid()
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("redisfence: %w: %s", primacy.ErrInvalid, fmt.Sprintf(format, args...))
}
