package redisfence

import (
	"context"
	"fmt"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
)

// The scripts. KEYS[1] is the fence, ARGV[1] to ARGV[3] are the stamp; what follows is the
// caller's. They answer
//
//	{"ok", ANSWER}  {"stale", LARGEST}  {"origin", LARGEST, KNOWN}  {"name", KNOWN}  {"unraised", LARGEST}
const (
	// Tokens are compared as digits: Lua's numbers round above 2^53.
	prelude = `local name, token, origin = ARGV[1], ARGV[2], ARGV[3]
local seen = redis.call('HMGET', KEYS[1], 'name', 'token', 'origin')
local function newer(a, b)
  if #a ~= #b then return #a > #b end
  for i = 1, #a do
    if a:byte(i) ~= b:byte(i) then return a:byte(i) > b:byte(i) end
  end
  return false
end
if seen[2] then
  if seen[1] ~= name then return {'name', seen[1]} end
  if seen[3] ~= '' and seen[3] ~= origin then return {'origin', seen[2], seen[3]} end
  if newer(seen[2], token) then return {'stale', seen[2]} end
end
`
	write       = "redis.call('HSET', KEYS[1], 'name', name, 'token', token, 'origin', origin)\nreturn {'ok'}\n"
	raiseScript = prelude + write
	adoptScript = "local name, token, origin = ARGV[1], ARGV[2], ARGV[3]\n" + write

	// The caller's script is a function, with its own keys and arguments.
	opening = prelude + `if seen[2] ~= token then return {'unraised', seen[2] or '0'} end
local keys, args = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 4, #ARGV do args[i - 3] = ARGV[i] end
return {'ok', ((function(KEYS, ARGV)
`
	closing = "\nend)(keys, args))}\n"

	callBody = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"
)

// guard puts a script under the fence.
func guard(script string) string { return opening + script + closing }

// run sends a script and reads its answer.
func run[C Cmd](ctx context.Context, c Client[C], s fence.Stamp, script string, keys []string, args []any) (any, error) {
	answer, err := c.Eval(ctx, script, keys, append([]any{s.Name, s.Token.String(), s.Origin}, args...)...).Result()
	if err != nil {
		return nil, fmt.Errorf("fence %q: redis: %w", s.Name, err)
	}
	list, _ := answer.([]any)
	word := text(list, 0)
	largest := func() (t primacy.Token, err error) {
		err = t.UnmarshalText([]byte(text(list, 1)))
		return t, err
	}
	switch word {
	case "ok":
		if len(list) < 2 {
			return nil, nil // Redis ends a list at the first nil
		}
		if err, ok := list[1].(error); ok {
			return nil, fmt.Errorf("fence %q: redis: %w", s.Name, err)
		}
		return list[1], nil
	case "name":
		return nil, s.After(fence.Stamp{Name: text(list, 1), Token: s.Token})
	case "stale", "origin", "unraised":
		t, err := largest()
		if err != nil {
			return nil, fmt.Errorf("fence %q: redis: the fence is damaged, an operator has to Adopt a token: %w", s.Name, err)
		}
		switch word {
		case "stale":
			return nil, &fence.StaleError{Name: s.Name, Token: s.Token, Largest: t}
		case "origin":
			return nil, &fence.OriginError{Name: s.Name, Token: s.Token, Origin: s.Origin, Largest: t, Known: text(list, 2)}
		}
		return nil, fmt.Errorf("fence %q: %w %d: redis knows %d and may have lost writes: ask the term's Check, and only if it says yes Raise it and read again", s.Name, fence.ErrNotRaised, s.Token, t)
	}
	return nil, fmt.Errorf("fence %q: redis: the answer %v is none of the fence's", s.Name, answer)
}

// text returns the i-th element of an answer if it is text.
func text(list []any, i int) string {
	if i >= len(list) {
		return ""
	}
	s, _ := list[i].(string)
	return s
}
