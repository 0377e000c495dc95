package redlockstore

import "github.com/redis/go-redis/v9"

// Values are ours by their first 32 characters; the next ten count updates. Times are in
// milliseconds, relative but for the server's own.

const lua = `
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local function own(key, id)
  local v = redis.pcall('GET', key)
  if type(v) == 'table' then return 'other' end
  if not v then return 'none' end
  if string.sub(v, 1, 32) == id then return 'own', v end
  return 'other'
end
`

var (
	// enter sets keys that are free. KEYS: the mark of a revoked lease, then key and mark of each
	// claim. ARGV: the moment after which nothing is done, ttl, then value and channel of each
	// claim. It answers with the time, then state and time left of each.
	enter = redis.NewScript(lua + `
local now = clock()
local out, revoked = {now}, redis.call('EXISTS', KEYS[1]) == 1
for i = 1, (#KEYS - 1) / 2 do
  local key, mark, value, channel = KEYS[2*i], KEYS[2*i+1], ARGV[2*i+1], ARGV[2*i+2]
  local is = own(key, string.sub(value, 1, 32))
  if revoked then is = 'revoked'
  elseif now > tonumber(ARGV[1]) then is = 'late'
  elseif is == 'own' then redis.call('PEXPIRE', key, ARGV[2])
  elseif is == 'none' then
    if redis.call('EXISTS', mark) == 1 then is = 'spent'
    else
      redis.call('SET', key, value, 'PX', ARGV[2])
      redis.call('PUBLISH', channel, '+' .. string.sub(value, 1, 32))
      is = 'own'
    end
  end
  out[2*i] = is
  out[2*i+1] = redis.call('PTTL', key)
end
return out`)

	// extend starts the ttl of keys afresh that are ours, and sets none. KEYS: the mark of a
	// revoked lease, then the keys. ARGV: ttl, then the value's beginning of each. It answers with
	// the time, whether the lease was revoked, then the state of each.
	extend = redis.NewScript(lua + `
local revoked = redis.call('EXISTS', KEYS[1])
local out = {clock(), revoked}
for i = 2, #KEYS do
  out[i+1] = own(KEYS[i], ARGV[i])
  if out[i+1] == 'own' and revoked == 0 then redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
end
return out`)

	// leave deletes keys that are ours, and leaves marks. KEYS: key and mark of each claim. ARGV:
	// for each claim the value's beginning, for how long its mark is kept (0: none), and the
	// channel.
	leave = redis.NewScript(lua + `
local out = {clock()}
for i = 1, #KEYS / 2 do
  local id, keep, channel = ARGV[3*i-2], tonumber(ARGV[3*i-1]), ARGV[3*i]
  if keep > 0 then redis.call('SET', KEYS[2*i], '1', 'PX', keep) end
  if own(KEYS[2*i-1], id) == 'own' then
    redis.call('DEL', KEYS[2*i-1])
    redis.call('PUBLISH', channel, '-' .. id)
  end
end
return out`)

	// update replaces a value of ours by a later one, and leaves its expiry. KEYS: the key. ARGV:
	// value, channel.
	update = redis.NewScript(lua + `
local is, v = own(KEYS[1], string.sub(ARGV[1], 1, 32))
if is == 'own' and string.sub(v, 33, 42) < string.sub(ARGV[1], 33, 42) then
  redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL')
  redis.call('PUBLISH', ARGV[2], '=' .. string.sub(ARGV[1], 1, 42))
end
return {clock(), is}`)

	// look reads keys. It answers with the time, then what is there ("=" and the value, "" for
	// nothing, "!" and the type of what is no string) and the time left of each.
	look = redis.NewScript(lua + `
local out = {clock()}
for i = 1, #KEYS do
  local v = redis.pcall('GET', KEYS[i])
  if type(v) == 'table' then v = '!' .. redis.call('TYPE', KEYS[i]).ok
  elseif v then v = '=' .. v
  else v = '' end
  out[2*i] = v
  out[2*i+1] = redis.call('PTTL', KEYS[i])
end
return out`)
)
