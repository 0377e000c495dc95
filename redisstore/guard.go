package redisstore

// Redis acknowledges a write before it is on disk, and before a replica has it. So a server that
// was restarted, or a replica that was promoted, may have forgotten renewals, claims, releases and
// whole leases that were acknowledged, and cannot know which.
//
// It does know that it goes on with another history: a primary draws a new replication ID when it
// starts and when it is promoted (master_replid; Redis itself compares it to see whether data is
// the same). The hash {p}:server keeps the ID under which the store's data was written. Each script
// that grants, claims, moves or renews reads the server's ID (2 µs) and compares. Where the two
// differ, the script writes the new ID, a new epoch, and the end of a hold-off (the field calm):
// now plus the largest ttl ever granted. Until then nobody is newly granted a place.
//
// Why that makes no two leaders: let X believe that it leads, by an answer of an earlier history
// that is lost here, and let another claim be granted the name here at time g. X's deadline comes
// from a renewal that was accepted. A lease knows the epoch of its last answer:
//
//   - A renewal answered by an earlier server was sent before this server took over, so before
//     `since`. Its deadline is at most since + X's ttl.
//   - A renewal answered here under X's old epoch ran before the script that noticed the change, so
//     again before `since`. Only the clock matters for this, not what the answer says of X's claims.
//   - From then on every script refuses a lease that comes with another epoch, before it does
//     anything. The lease then asks what is left of it (sync.go). Where a place that it holds is
//     missing, waits, or has another token, the lease ends and Renew returns ErrGone. So X is not
//     renewed past since + ttl.
//
// And g ≥ since + max(the largest ttl known here (most), the ttl of the lease that is granted the
// place). All times are on this server's clock, and the clients' clocks run at its rate within the
// drift that the library allows. If two clients notice the change at once, their scripts run one
// after the other, and the second finds the new ID. A lease granted during the hold-off is of this
// history, and its ttl does not prolong the hold-off. A failover during the hold-off is noticed
// like the first, and begins a new one. A replica that is promoted in place keeps its connections,
// scripts and run ID, but draws a new replication ID. So does a primary that is demoted, takes over
// another's data, and is promoted again.
//
// A release that was lost leaves a claim that the session has given up, and the session lives on.
// The same question finds it, and the lease releases it again. Counters may have gone back, but a
// token is at least the time in 1/64 ms.
//
// If the server has no marker at all, this is the first use, or all data is lost. Then the hold-off
// lasts until the server has run for the ttl of the lease that claims or, if the server was ever
// promoted (master_replid2), for that ttl from now. In a cluster it is always from now: a slot may
// have come without its keys to a server that has run for long, when the slots of a dead one are
// given to others.
//
// A primary that was made a replica keeps its connections too, and would answer with what it has:
// each script refuses there.
//
// A replication ID also changes when a primary gets its first replica, or has had none for an hour.
// That loses nothing: the process is the same (run_id) and was never a replica (no master_replid2).
//
// The largest ttl is not that of all times, or one long lease would make every later restart a long
// pause. It is the largest that was granted or renewed in this period or the one before
// (periodLua). A period is longer than any ttl. A lease that lives was granted or renewed less than
// its ttl ago, so in one of the two: had two periods begun since, a whole period would lie between,
// and the lease would be over. When another history begins, its clock begins the period anew, and
// what was known is kept for a whole period: by its end the deadlines of all earlier leases are
// over too.
//
// What remains possible, as Caps and the docs say:
//
//   - A former primary that lives on in its own part of a network and keeps its clients.
//     Config.Replicas ends their sessions.
//   - A lost lease with a larger ttl than any that the server still knows of, and than that of the
//     lease that is granted the place.
//   - FLUSHALL, keys removed by hand, eviction, a clock that is set forward: then the server ends
//     leases early without a notice.
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
      call('HSET',S,'n',base,'base',base,'mt',now)
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
