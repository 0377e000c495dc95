package redisstore

import "strings"

// The short way of the calls that come most often: one exclusive claim that enters, one that holds
// and is given up, and both at once. Each stands at the head of its script, before anything else is
// defined, and does what the rest of the script would do. In every unusual case it leaves the call
// to the rest, and has written nothing. What it need not ask, and why:
//
//   - Whether a place may be granted now (may): the server is steady, there is no hold-off, and the
//     largest ttl has passed since it took over (since+most<=now).
//   - Whether others may be granted a place when one enters: the first of the line holds
//     exclusively and its lease lives, so nobody else does.
//   - Whether the leases of other waiters have ended: that is found when their turn comes.
//
// Numbers are given to Redis as strings where possible: Lua takes a third of a µs to write one.
//
// A line and its hash are both there or both absent, unless one was evicted or removed by hand.
// That is left to the rest too: a line without its hash may have a holder, and whoever took it for
// none would lead beside that one.
//
// A new line gets its three days as a time, to the second. So it and its hash vanish in one
// instant, and the server has one number less to write for each. The index of names gets them
// whenever a name is added: asking first whether it has a time to live takes as long.

// quickLua checks that the lease lives and knows this history. NAME, SEAT and MORE are replaced by
// where the name and the seat are, and by what else is read of the lease: each field takes the
// server as long as many lines of Lua.
func quickLua(name, seat, more string) string {
	return strings.NewReplacer("NAME", name, "SEAT", seat, "MORE", more).Replace(`
  if not steady or calm>now or ARGV[3]~=epoch then break end
  local lid,name,seat=ARGV[2],NAME,SEAT
  local lkey,mkey,line,field=B..'lease:'..lid,B..'meta:'..name,B..'line:'..name,'s'..seat..':'..name
  local l=call('HMGET',lkey,'x','t','w',fieldMORE)
  local x,t,w,settled=tonumber(l[1]),tonumber(l[2]),tonumber(l[3]) or 0,tonumber(ARGV[4])
  if not x or not t or x<=now or x>now+t+1 or since+math.max(most,t)>now then break end
`)
}

// quickTokenLua draws a token, and a revision for a line that has one: both larger than all before.
const quickTokenLua = `
  local tok=now*64
  if tok<=count then tok=count+1 end
  if tok%2==0 then tok=tok+1 end
  local k=string.format('%.0f',tok)
  local rev=k
  if m[1] and tonumber(m[1])>=tok then rev=string.format('%.0f',m[1]+1+m[1]%2) end
`

// quickNextLua finds the next in line behind mine, whose lease must live: oid (its lease ID), ok
// (its token) and o (the lease).
const quickNextLua = `
  local oid,ok=string.match(two[2],'^(%S+) 0 (%d+)')
  if not oid or tonumber(ok)<=(tonumber(m[2]) or 0) then break end
  local o=call('HMGET',B..'lease:'..oid,'x','t','c')
  local ox,ot=tonumber(o[1]),tonumber(o[2])
  if not ox or not ot or ox<=now or ox>now+ot+1 or since+ot>now then break end
`

// quickMineLua finds the claim that is given up: it wants the name alone, and is the first of its
// line. k is its token, n its number. The lease must have it just as the caller knows it: to
// compare takes less than to read out.
func quickMineLua(token, number, id string) string {
	return strings.NewReplacer("TOKEN", token, "NUMBER", number, "ID", id).Replace(`
  local k,n=TOKEN,NUMBER
  if l[4]~=k..' 0 '..n..' '..ID then break end
  local two=call('ZRANGE',line,'0','1')
  local mine=lid..' 0 '..k..' '..seat..' '..ID
  if two[1]~=mine then break end
`)
}

// quickHeldLua reads the line of a claim that others wait behind: it must hold.
const quickHeldLua = `
  local m=call('HMGET',mkey,'r','h','kn','e','v'..k)
  if not m[1] or m[3] and m[3]~='0' or now-(m[4] or 0)>86400000 then break end
  if tonumber(k)>(tonumber(m[2]) or 0) then break end
`

var quickClaimLua = `
repeat
  if ARGV[5]~='1' or ARGV[8]~='0' or ARGV[12]~='0' then break end` + quickLua("ARGV[6]", "ARGV[7]", ",'p','g'") + `
  local n=tonumber(ARGV[9])
  if l[4] or n<=w or n<=settled or l[5] and call('ZSCORE',B..'spent:'..lid,ARGV[9]) then break end
  local held,left,m=0,0,{}
  local there=call('EXISTS',line,mkey)
  if there==2 then m=call('HMGET',mkey,'r','h','kn','e') elseif there==1 then break end` +
	quickTokenLua + `  if there==2 then
    if not m[1] or m[3] and m[3]~='0' or now-(m[4] or 0)>86400000 then break end
    local first=call('ZRANGE',line,'0','0')[1]
    if not first then break end
    local id,h=string.match(first,'^(%S+) 0 (%d+)')
    if not id or tonumber(h)>(tonumber(m[2]) or 0) then break end
    local o=call('HMGET',B..'lease:'..id,'x','t')
    local ox,ot=tonumber(o[1]),tonumber(o[2])
    if not ox or not ot or ox<=now or ox>now+ot+1 then break end
    left=ox-now
    call('ZADD',line,k,lid..' 0 '..k..' '..seat..' '..ARGV[10])
    if ARGV[11]=='' then call('HSET',mkey,'r',rev) else call('HSET',mkey,'r',rev,'v'..k,ARGV[11]) end
  else
    held=1
    local e,till=T[1]..'000',T[1]+259200 ..'000'
    call('ZADD',line,k,lid..' 0 '..k..' '..seat..' '..ARGV[10])
    if ARGV[11]=='' then call('HSET',mkey,'r',k,'h',k,'e',e)
    else call('HSET',mkey,'r',k,'h',k,'e',e,'v'..k,ARGV[11]) end
    call('PEXPIREAT',line,till)
    call('PEXPIREAT',mkey,till)
    if call('ZADD',B..'names','0',name)==1 then call('PEXPIREAT',B..'names',till) end
  end
  call('HSET',lkey,field,k..' 0 '..ARGV[9]..' '..ARGV[10])
  call('HSET',S,'n',k)
  call(ARGV[1],B..'on:'..name,'c')
  return {'OK',epoch,l[6] or '0',k,held,left}
until true
`

// While the line stands, {p}:server need not know its revision: the next is larger than the line's
// last. When the line ends {p}:server must have the count, so that the next line of that name
// begins beyond it. Mostly it has: a claim writes its token as the count, and nothing was drawn for
// a lone line since. An empty line is shown with the count, or with the next number if the count is
// odd. So a count that is not smaller than the line's last revision makes a larger one.
//
// Who is alone in the line need not hold: the line ends all the same.
var quickReleaseLua = `
repeat
  if ARGV[5]~='1' or ARGV[11]~='' then break end` + quickLua("ARGV[6]", "ARGV[7]", "") +
	quickMineLua("ARGV[8]", "ARGV[9]", "ARGV[10]") + `
  if two[2] then` + quickHeldLua + quickNextLua + `
    local c=math.max(now*64,tonumber(m[1])+1,count+1)
    if c%2==0 then c=c+1 end
    call('ZREM',line,mine)
    call('HDEL',lkey,field)
    if o[3] and o[3]~='' then call(ARGV[1],B..'to:'..o[3],'h '..ok..' '..epoch..' '..oid) end
    if m[5] then call('HDEL',mkey,'v'..k) end
    call('HSET',mkey,'r',string.format('%.0f',c),'h',ok)
  else
    local r=tonumber(call('HGET',mkey,'r'))
    if not r then break end
    call('DEL',line,mkey)
    call('HDEL',lkey,field)
    call('ZREM',B..'names',name)
    if count<r then
      local c=math.max(now*64,r+1,count+1)
      call('HSET',S,'n',string.format('%.0f',c+c%2))
    end
  end
  if tonumber(n)>w and tonumber(n)>settled then
    call('ZADD',B..'spent:'..lid,n,n)
    call('PEXPIRE',B..'spent:'..lid,call('PTTL',lkey))
    if settled>w then call('HSET',lkey,'p','1','w',ARGV[4]) else call('HSET',lkey,'p','1') end
  elseif settled>w then
    call('HSET',lkey,'w',ARGV[4])
  end
  call(ARGV[1],B..'on:'..name,'c')
  return {'OK',epoch}
until true
`

// Where nobody else waits the line would end for a moment: that is left to the rest of the script.
var quickExchangeLua = `
repeat
  if ARGV[10]~='' then break end` + quickLua("ARGV[5]", "ARGV[6]", ",'p','g','s'..ARGV[14]..':'..ARGV[13]") + `
  local n2=tonumber(ARGV[15])
  if l[7] or n2<=w or n2<=settled or l[5] and call('ZSCORE',B..'spent:'..lid,ARGV[15]) then break end` +
	quickMineLua("ARGV[7]", "ARGV[8]", "ARGV[9]") + `
  if not two[2] or tonumber(n)>w and tonumber(n)>settled then break end` + quickHeldLua + quickNextLua + `
  local old=k` + quickTokenLua + `
  call('ZREM',line,mine)
  call('HDEL',lkey,field)
  if o[3] and o[3]~='' then call(ARGV[1],B..'to:'..o[3],'h '..ok..' '..epoch..' '..oid) end
  if m[5] then call('HDEL',mkey,'v'..old) end
  call('ZADD',line,k,lid..' 0 '..k..' '..ARGV[14]..' '..ARGV[16])
  local p=k..' 0 '..ARGV[15]..' '..ARGV[16]
  local other='s'..ARGV[14]..':'..name
  if settled>w then call('HSET',lkey,other,p,'w',ARGV[4]) else call('HSET',lkey,other,p) end
  if ARGV[17]=='' then call('HSET',mkey,'r',rev,'h',ok) else call('HSET',mkey,'r',rev,'h',ok,'v'..k,ARGV[17]) end
  call('HSET',S,'n',k)
  call(ARGV[1],B..'on:'..name,'c')
  return {'OK',epoch,l[6] or '0',k,0,ox-now}
until true
`
