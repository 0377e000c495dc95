package redisstore

// The verbs that read leases and lines, and those of operators and journals.

// standsLua returns of a claim of the caller's lease: its token, 1 if it holds, else 0 and in how
// many ms it is worth to look again. Where an error keeps the line from being read, as the user's
// rights may for one name, it returns -1 and that error, and the other claims are still told.
const standsLua = `
local function readable(name,tok)
  local m=open(name)
  if tok>m.h then advance(m,true) end
  if tok<=m.h then return 1,0 end
  return 0,left(m)
end
local function stands(name,p)
  local tok=unpacked(p)
  local ok,held,ms=pcall(readable,name,tok)
  if ok then return tok,held,ms end
  return tok,-1,type(held)=='table' and held.err or tostring(held)
end
`

var (
	// lookScript returns {token, held, ms} for each of some claims of a lease; token 0 where it
	// does not stand.
	lookScript = newScript("look", baseLua, guardLua, leaseLua, lineLua, mineLua, standsLua, `
local n=tonumber(ARGV[5])
for i=0,n-1 do want[7+i]='s'..ARGV[7+i*3]..':'..ARGV[6+i*3] end
local me=mine()
if not me.live then return {'LOST',epoch} end
if ARGV[3]~=epoch then return {'EPOCH',epoch} end
local out={'OK',epoch,me.g}
for i=0,n-1 do
  local p=me.seat[7+i]
  local tok,slots,pn,id
  if p then tok,slots,pn,id=unpacked(p) end
  if id==ARGV[8+i*3] then
    local k,held,ms=stands(ARGV[6+i*3],p)
    out[#out+1]=F(k)
    out[#out+1]=held
    out[#out+1]=ms
  else
    for j=1,3 do out[#out+1]=0 end
  end
end
finish()
return out
`)

	// syncScript returns all of a lease, in any epoch: {name, seat, claim ID, token, held, ms} for
	// each claim, and the requests after ARGV[5].
	syncScript = newScript("sync", baseLua, guardLua, leaseLua, lineLua, mineLua, standsLua, `
local me=mine()
if not me.live then return {'LOST',epoch} end
call('ZREMRANGEBYSCORE',B..'asks:'..lid,'-inf',ARGV[5])
local all,claims=call('HGETALL',B..'lease:'..lid),{}
for i=1,#all,2 do
  local seat,name=string.match(all[i],'^s(%w*):(.*)$')
  if seat then
    local tok,slots,n,id=unpacked(all[i+1])
    local k,held,ms=stands(name,all[i+1])
    claims[#claims+1]={name,seat,id,F(tok),held,ms}
  end
end
finish()
return {'OK',epoch,me.g,claims,call('ZRANGE',B..'asks:'..lid,0,-1,'WITHSCORES')}
`)

	updateScript = newScript("update", baseLua, guardLua, leaseLua, lineLua, mineLua, `
want[7]='s'..ARGV[6]..':'..ARGV[5]
local me=mine()
local p=me.seat[7]
if not me.live then return {'LOST',epoch} end
if ARGV[3]~=epoch then return {'EPOCH',epoch} end
if not p then return {'GONE',epoch} end
local tok,slots,n,id=unpacked(p)
local want=tonumber(ARGV[7])
if id~=ARGV[8] or want~=0 and want~=tok then return {'GONE',epoch} end
local m=open(ARGV[5])
call('HSET',m.key,'v'..F(tok),ARGV[9])
m.changed=true
finish()
return {'OK',epoch}
`)

	transferScript = newScript("transfer", baseLua, guardLua, leaseLua, lineLua, strikeLua, journalLua, mineLua, dropLua, `
local name,seat=ARGV[5],ARGV[6]
want[7]='s'..seat..':'..name
local me=mine()
local p=me.seat[7]
if not me.live then return {'LOST',epoch} end
if ARGV[3]~=epoch then return {'EPOCH',epoch} end
if not p then return {'GONE',epoch} end
local tok,slots,n,id=unpacked(p)
local token=tonumber(ARGV[7])
if id~=ARGV[9] or token~=0 and token~=tok then return {'GONE',epoch} end
local m=open(name)
if slots~='0' or tok>m.h then return {'REFUSED',epoch} end
local heir=tonumber(ARGV[13])
if heir<=tok then return {'NOHEIR',epoch} end
local is=call('ZRANGEBYSCORE',m.line,ARGV[13],ARGV[13])[1]
if not is then return {'NOHEIR',epoch} end
local hid,hslots=parts(is)
if hslots~='0' or not lease(hid).live then return {'NOHEIR',epoch} end
if hid==lid then return {'SAME',epoch} end
local over=call('ZRANGEBYSCORE',m.line,'('..F(tok),'('..ARGV[13])
for i=1,#over do
  local oid,oslots,otok,seat=string.match(over[i],'^(%S+) (%-?%d+) (%d+) (%S*) ')
  local op=call('HGET',B..'lease:'..oid,'s'..seat..':'..name)
  if op then struck(oid,seat,name,op) else remove(m,over[i],oslots,otok) end
end
drop(me,5,p)
settle(me)
finish()
return {'OK',epoch}
`)

	// endScript ends a lease with every claim. A lease whose time is over may still have claims in
	// lines.
	endScript = newScript("end", baseLua, guardLua, leaseLua, lineLua, `
local lid=ARGV[2]
local all=call('HGETALL',B..'lease:'..lid)
if not all[1] then return {'OK',epoch} end
local ch=call('HGET',B..'lease:'..lid,'c')
forget(lid)
L[lid]={x=0,t=0,c='',live=false}
for i=1,#all,2 do
  local seat,name=string.match(all[i],'^s(%w*):(.*)$')
  if seat then
    local tok,slots,n,id,t=unpacked(all[i+1])
    local m=open(name)
    remove(m,lid..' '..slots..' '..t..' '..seat..' '..id,slots,t)
  end
end
for i=1,#order do advance(order[i]) end
finish()
call(ARGV[1],B..'to:'..ch,'s '..lid)
return {'OK',epoch}
`)

	// removeScript removes the claim on a name that has this token.
	removeScript = newScript("remove", baseLua, guardLua, leaseLua, lineLua, strikeLua, `
local m=open(ARGV[2])
local mem=call('ZRANGEBYSCORE',m.line,ARGV[3],ARGV[3])[1]
if not mem then return {'OK',epoch} end
local id,slots,t,seat=string.match(mem,'^(%S+) (%-?%d+) (%d+) (%S*) ')
local p=call('HGET',B..'lease:'..id,'s'..seat..':'..m.name)
if p then struck(id,seat,m.name,p) else remove(m,mem,slots,t) end
advance(m,true)
finish()
return {'OK',epoch}
`)

	askScript = newScript("ask", baseLua, guardLua, leaseLua, lineLua, `
local m=open(ARGV[2])
local tok=tonumber(ARGV[3])
local mem=call('ZRANGEBYSCORE',m.line,ARGV[3],ARGV[3])[1]
if not mem or tok>m.h then return {'GONE',epoch} end
local id,slots=parts(mem)
if not lease(id).live then return {'GONE',epoch} end
if slots~='0' then return {'REFUSED',epoch} end
local key=B..'asks:'..id
call('ZADD',key,draw(1),ARGV[3]..' '..F(count)..' '..ARGV[4])
call('PEXPIRE',key,lease(id).t+60000)
call('HINCRBY',B..'lease:'..id,'g',1)
tell(id,'s')
save()
return {'OK',epoch}
`)

	// linesScript returns lines: {revision, ms until it is worth to look again, then for each claim
	// owner, lease, slots, held, token, value}. A revision is odd while somebody stands in the line
	// and even while nobody does: so an empty line has one without a key. No revision is smaller
	// than the one drawn when this history began: an earlier one may have been of a line that is
	// lost. Nor is that of an empty line smaller than the last of any line that vanished by itself,
	// whose last change is two days old. Such a revision is written (twice a day; not where the
	// memory is full), so that a clock that is set back later draws no smaller one.
	linesScript = newScript("line", baseLua, guardLua, leaseLua, lineLua, `
local out={'OK',epoch}
local owners={}
for i=2,#ARGV do
  local m=open(ARGV[i])
  local all=call('ZRANGE',m.line,0,-1)
  local dead=false
  for j=1,#all do
    local id,slots,tok,t=parts(all[j])
    if not lease(id).live then
      remove(m,all[j],slots,t)
      forget(id)
      dead=true
    end
  end
  advance(m)
  if dead then all=call('ZRANGE',m.line,0,-1) end
  local one={0,left(m)}
  for j=1,#all do
    local id,slots,tok,t=parts(all[j])
    local o=owners[id] or call('HGET',B..'lease:'..id,'o') or ''
    owners[id]=o
    one[#one+1]=o
    one[#one+1]=id
    one[#one+1]=slots
    one[#one+1]=tok<=m.h and 1 or 0
    one[#one+1]=t
    one[#one+1]=call('HGET',m.key,'v'..t) or ''
  end
  out[#out+1]=one
end
finish()
local base=tonumber(call('HGET',S,'base')) or 0
for i=2,#ARGV do
  local r=tonumber(call('HGET',M[ARGV[i]].key,'r') or 0)
  if #out[i+1]==2 then
    call('ZREM',B..'names',ARGV[i])
    if count<(now-129600000)*64 then
      count=(now-86400000)*64
      redis.pcall('HSET',S,'n',F(count))
    end
    r=count+count%2
  elseif r<base then
    r=base+1
  end
  out[i+1][1]=F(r)
end
return out
`)

	// leftScript returns {ms left, ttl} for each of some leases, -1 where one has ended.
	leftScript = newScript("left", baseLua, guardLua, leaseLua, `
local out={'OK',epoch}
for i=2,#ARGV do
  local l=lease(ARGV[i])
  out[#out+1]=l.live and l.x-now-1 or -1
  out[#out+1]=l.t
end
return out
`)

	appendScript = notRepeated(newScript("append", baseLua, guardLua, journalLua, `
local there=call('HGET',B..'j:'..ARGV[2],ARGV[3])
if there then return {'OK',epoch,0,there} end
record(ARGV[2],ARGV[3],ARGV[4])
local over=call('ZCARD',B..'jk:'..ARGV[2])-tonumber(ARGV[5])
if over>0 then
  for i,key in ipairs(call('ZRANGE',B..'jk:'..ARGV[2],0,over-1)) do
    call('ZREM',B..'jk:'..ARGV[2],key)
    call('HDEL',B..'j:'..ARGV[2],key)
  end
end
return {'OK',epoch,1}
`))

	recordsScript = newScript("records", baseLua, guardLua, `
local from='+'
if ARGV[3]~='' then from='('..ARGV[3] end
local keys=call('ZREVRANGEBYLEX',B..'jk:'..ARGV[2],from,'-','LIMIT',0,ARGV[4])
local out={'OK',epoch}
for i=1,#keys do
  out[#out+1]=keys[i]
  out[#out+1]=call('HGET',B..'j:'..ARGV[2],keys[i]) or ''
end
return out
`)

	// namesScript returns members of an index that begin with a prefix, after one that is known
	// already.
	namesScript = newScript("names", baseLua, guardLua, `
local from='['..ARGV[3]
if ARGV[4]~='' then from='('..ARGV[4] end
local to='['..ARGV[3]..string.rep('\255',8)
if ARGV[3]=='' then to='+' end
local out={'OK',epoch}
for i,name in ipairs(call('ZRANGEBYLEX',B..ARGV[2],from,to,'LIMIT',0,200)) do
  out[#out+1]=name
  out[#out+1]=ARGV[2]=='journals' and call('EXISTS',B..'jk:'..name) or 1
end
return out
`)
)
