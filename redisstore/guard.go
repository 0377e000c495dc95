package redisstore

// Redis acknowledges a write before it is on disk, and before a replica has it. So a server that
// was restarted, or a replica that was promoted, may have forgotten renewals, claims, releases and
// whole leases that were acknowledged, and cannot know which.
//
// It does know that it goes on with another history: a primary draws a new replication ID when it
// starts and when it is promoted (master_replid). The hash {p}:server keeps the ID under which the
// store's data was written, and each script compares the two. Where they differ, the script writes
// the new ID, a new epoch, and the end of a hold-off (the field calm): now plus the largest ttl.
// Until then nobody is newly granted a place.
//
// Why that makes no two leaders: let X believe that it leads, by an answer of an earlier history
// that is lost here, and let another claim be granted the name here at time g.
//
//   - X's deadline comes from a renewal that was accepted. One that an earlier server answered was
//     sent before this server took over, so before `since`. One that was answered here under X's
//     old epoch ran before the script that noticed the change, so before `since` too.
//   - From then on every script refuses a lease that comes with another epoch. The lease then asks
//     what is left of it (sync.go). Where a place that it holds is missing, waits, or has another
//     token, the lease ends and Renew returns ErrGone.
//   - So X's deadline is at most since + X's ttl, and g is at least since + max(the largest ttl
//     known here, the ttl of the lease that is granted the place). All these times are on this
//     server's clock, and a client's clock runs at its rate within the drift that the library
//     allows.
//
// A failover during the hold-off begins another one. A lease granted during the hold-off is of this
// history, and does not prolong it. A release that was lost leaves a claim of a session that lives
// on: the same question finds it, and it is released again. Counters may have gone back, but a
// token is at least the time in 1/64 ms.
//
// A server without an ID is used for the first time, or has lost all. Then the hold-off lasts until
// the server has run for the ttl of the lease that claims. It lasts for that ttl from now if the
// server was ever promoted (master_replid2), and in a cluster: there a slot may have come without
// its keys to a server that has run for long.
//
// A primary that was made a replica keeps its connections and would answer with what it has: each
// script refuses there. A primary that gets its first replica, or has had none for an hour, draws a
// new ID too. That loses nothing: the process is the same (run_id) and was never a replica.
//
// The largest ttl is the largest that was granted or renewed in this period or the one before
// (periodLua): that of all times would make every later restart a long pause. A period is longer
// than any ttl, so a lease that lives was granted or renewed in one of the two. Another history
// begins the period anew by its own clock, and keeps what was known for a whole period.
//
// What remains possible, as Caps and the docs say: a former primary that lives on with its clients
// (Config.Replicas ends their sessions); a lost lease with a larger ttl than any that the server
// knows of; FLUSHALL, keys removed by hand, eviction, and a clock that is set forward, which end
// leases early without a notice.
const guardLua = `
if not steady then
  local id=string.match(rep,'master_replid:(%x+)')
  if not id then return {'NOID'} end
  if string.find(rep,'role:slave',1,true) then return {'REPLICA'} end
  if id~=V[2] then
    local info=call('INFO','server')
    local run=string.match(info,'run_id:(%x+)')
    local never=string.match(rep,'master_replid2:0+%f[%X]')
    local same=run and run==call('HGET',S,'run') and never
    if not V[2] then
      since=now
      if never and not string.find(info,'_mode:cluster',1,true) then
        since=(math.floor(now/1000)-tonumber(string.match(info,'uptime_in_seconds:(%d+)'))+1)*1000
        if since>now then since=now end
      end
      calm=since
    elseif not same then
      since=now
      calm=now+most
    end
    call('PERSIST',S) -- does nothing, but is allowed also where the memory is full, and then so is all that follows
    if not same then
      epoch=string.sub(id,1,16)
      local base=draw(0)
      count=base+1 -- an older line is shown with it from now on: its next change needs a larger one
      call('HSET',S,'n',count,'base',base,'mt',now)
    end
    call('HSET',S,'id',id,'run',run or '','epoch',epoch,'since',since,'calm',calm)
  elseif since>now then
    since=now
    calm=now+most
    call('PERSIST',S)
    call('HSET',S,'since',since,'calm',calm,'mt',now)
  end
end
local hush=nil
local function may(ttl)
  local t=since+ttl
  if calm>t then t=calm end
  if t<=now then return true end
  if not hush or t-now<hush then hush=t-now end
  return false
end
`

// periodLua notes a ttl that is granted or renewed. The field max is the largest of this period and
// the one before, mc that of this period, which began at mt.
const periodLua = `
local period=3600000
local function lasts(t)
  local v=call('HMGET',S,'mc','mt')
  local mc,mt=tonumber(v[1]) or 0,tonumber(v[2])
  if mt and now-mt>=period then
    call('HSET',S,'max',math.max(mc,t),'mc',t,'mt',now)
  elseif t>mc or not mt then
    call('HSET',S,'max',math.max(most,t),'mc',math.max(mc,t),'mt',mt or now)
  end
end
`
