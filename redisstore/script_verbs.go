package redisstore

// The verbs of a lease. ARGV: the command that publishes, the lease, the epoch it knows, up to
// which number its claims are settled; then the verb's arguments.

// mineLua reads the caller's lease with the fields in want.
const mineLua = `
local lid=ARGV[2]
local want={'x','t','c','w','g','p'}
local function mine()
  local v={}
  if #want<=1000 then v=call('HMGET',B..'lease:'..lid,unpack(want)) else
    for i=1,#want,1000 do
      for j,f in ipairs(call('HMGET',B..'lease:'..lid,unpack(want,i,math.min(i+999,#want)))) do v[i+j-1]=f end
    end
  end
  local l=known(lid,v[1],v[2],v[3])
  l.w,l.g,l.p=tonumber(v[4]) or 0,v[5] or '0',v[6]
  l.seat=v
  local w=tonumber(ARGV[4]) or 0
  if w>l.w then l.w,l.wnew=w,true end
  return l
end
local function settle(l) if l.wnew then call('HSET',B..'lease:'..lid,'w',l.w) end end
`

var (
	grantScript = newScript("grant", baseLua, guardLua, periodLua, `
local key=B..'lease:'..ARGV[2]
local t=tonumber(ARGV[4])
call('HSET',key,'o',ARGV[3],'t',t,'x',now+1+t,'c',ARGV[5],'u',now)
call('PEXPIRE',key,t+60000)
lasts(t)
return {'OK',epoch}
`)

	// PEXPIRE comes first: it is allowed also where the memory is full, and then so is all that
	// follows.
	renewScript = newScript("renew", baseLua, guardLua, periodLua, leaseLua, mineLua, `
want[7]='u'
local me=mine()
if not me.live then return {'LOST',epoch} end
if ARGV[3]~=epoch then return {'EPOCH',epoch} end
local key=B..'lease:'..lid
call('PEXPIRE',key,me.t+60000)
call('HSET',key,'x',now+1+me.t)
lasts(me.t)
settle(me)
if me.p then
  call('PEXPIRE',B..'spent:'..lid,me.t+60000)
  call('ZREMRANGEBYSCORE',B..'spent:'..lid,'-inf',me.w)
  if call('EXISTS',B..'spent:'..lid)==0 then call('HDEL',key,'p') end
end
if (tonumber(me.seat[7]) or 0)+86400000<now then
  call('HSET',key,'u',now)
  for i,f in ipairs(call('HKEYS',key)) do
    local name=string.match(f,'^s%w*:(.*)$')
    if name then
      redis.pcall('PEXPIRE',B..'line:'..name,259200000) -- of a name that is forbidden now only this fails
      redis.pcall('PEXPIRE',B..'meta:'..name,259200000)
    end
  end
end
call('PEXPIRE',B..'names',259200000)
return {'OK',epoch,me.g}
`)

	claimScript = newScript("claim", quickClaimLua, baseLua, guardLua, leaseLua, lineLua, strikeLua, journalLua, mineLua, enterLua, `
local n=tonumber(ARGV[5])
for i=0,n-1 do want[7+i]='s'..ARGV[7+i*7]..':'..ARGV[6+i*7] end
local me=mine()
if not me.live then return {'LOST',epoch} end
if ARGV[3]~=epoch then return {'EPOCH',epoch} end
local c={}
for i=1,n do
  local a=(i-1)*7+6
  c[i]={name=ARGV[a],seat=ARGV[a+1],slots=ARGV[a+2],n=tonumber(ARGV[a+3]),id=ARGV[a+4],value=ARGV[a+5],try=ARGV[a+6]=='1',p=me.seat[6+i]}
  open(c[i].name)
end
for i=1,n do if spent(me,c[i]) then return {'GONE',epoch} end end
for i=1,n do
  local k=misfit(c[i])
  if k then return {'MISFIT',epoch,i,k} end
end
for i=1,n do displace(me,c[i]) end
local function leave()
  for i=1,n do
    local p=call('HGET',B..'lease:'..lid,'s'..c[i].seat..':'..c[i].name)
    if p then advance(strike(lid,c[i].seat,c[i].name,p,me.w)) end
  end
  settle(me)
  finish()
  return {'TAKEN',epoch,hush or 0}
end
for i=1,n do if c[i].try and not free(c[i]) then return leave() end end
local out={'OK',epoch,me.g}
for i=1,n do enter(me,c[i]) end
for i=1,n do
  if c[i].try and c[i].tok>open(c[i].name).h then return leave() end
end
finish()
for i=1,n do
  local m=open(c[i].name)
  local held=c[i].tok<=m.h
  out[#out+1]=F(c[i].tok)
  out[#out+1]=held and 1 or 0
  out[#out+1]=held and 0 or left(m)
end
return out
`)

	// tryScript enters claims whose refusal means something: it is not repeated.
	tryScript = func() *script { s := *claimScript; return notRepeated(&s) }()

	releaseScript = newScript("release", quickReleaseLua, baseLua, guardLua, leaseLua, lineLua, strikeLua, journalLua, mineLua, dropLua, `
local n=tonumber(ARGV[5])
for i=0,n-1 do want[7+i]='s'..ARGV[7+i*8]..':'..ARGV[6+i*8] end
local me=mine()
if not me.live then return {'OK',epoch} end
if ARGV[3]~=epoch then return {'EPOCH',epoch} end
for i=0,n-1 do open(ARGV[6+i*8]) end -- whoever may not use one of the names is refused before anything is done
for i=0,n-1 do drop(me,6+i*8,me.seat[7+i]) end
settle(me)
finish()
return {'OK',epoch}
`)

	exchangeScript = newScript("exchange", quickExchangeLua, baseLua, guardLua, leaseLua, lineLua, strikeLua, journalLua, mineLua, enterLua, dropLua, `
local c={name=ARGV[13],seat=ARGV[14],slots='0',n=tonumber(ARGV[15]),id=ARGV[16],value=ARGV[17]}
want[7]='s'..ARGV[6]..':'..ARGV[5]
want[8]='s'..c.seat..':'..c.name
local me=mine()
if not me.live then return {'LOST',epoch} end
if ARGV[3]~=epoch then return {'EPOCH',epoch} end
c.p=me.seat[8]
if spent(me,c) then return {'GONE',epoch} end
drop(me,5,me.seat[7])
displace(me,c)
enter(me,c)
local m=open(c.name)
local held=c.tok<=m.h
settle(me)
finish()
return {'OK',epoch,me.g,F(c.tok),held and 1 or 0,held and 0 or left(m)}
`)
)

// enterLua enters claims. spent and misfit say why one may not enter. displace removes what its
// lease has on the seat under another ID.
const enterLua = `
local function spent(me,c)
  if c.p then
    local tok,slots,n,id=unpacked(c.p)
    if id==c.id then return false end
  end
  if c.n<=me.w then return true end
  return me.p and call('ZSCORE',B..'spent:'..lid,F(c.n))
end
local function sweep(m)
  local all=call('ZRANGE',m.line,0,-1)
  for j=1,#all do
    local id,slots,tok,t=parts(all[j])
    if not lease(id).live then
      remove(m,all[j],slots,t)
      forget(id)
    end
  end
  advance(m,true)
end
local function misfit(c)
  if c.slots=='0' then return nil end
  local m=open(c.name)
  if m.kn>0 and m.k~=c.slots then
    sweep(m)
    if m.kn>0 then
      finish()
      return m.k
    end
  end
end
local function displace(me,c)
  if not c.p then return end
  local tok,slots,n,id=unpacked(c.p)
  if id==c.id then
    c.tok=tok
    return
  end
  advance(strike(lid,c.seat,c.name,c.p,me.w))
end
local function room(m,c)
  local first=call('ZRANGE',m.line,0,0)
  if not first[1] then return true end
  if c.slots=='0' then return false end
  local kinds=call('ZCARD',m.line)
  return m.kn==kinds and (tonumber(c.slots)<0 or kinds<tonumber(c.slots))
end
local function free(c)
  local m=open(c.name)
  if not c.tok then
    if not room(m,c) then advance(m,true) end
    return room(m,c) and may(L[lid].t)
  end
  if c.tok>m.h then advance(m,true) end
  return c.tok<=m.h
end
local function enter(me,c)
  local m=open(c.name)
  if c.tok then
    if c.tok>m.h then advance(m,true) end
    return
  end
  local tok=draw(1,me.t)
  local t=F(tok)
  c.tok,m.empty=tok,false
  call('ZADD',m.line,t,lid..' '..c.slots..' '..t..' '..c.seat..' '..c.id)
  call('HSET',B..'lease:'..lid,'s'..c.seat..':'..c.name,t..' '..c.slots..' '..F(c.n)..' '..c.id)
  if c.value~='' then call('HSET',m.key,'v'..t,c.value) end
  if c.slots~='0' then
    m.k=c.slots
    m.kn=m.kn+1
  end
  m.changed,m.own=true,tok
  if m.new and call('ZCARD',m.line)==1 and may(me.t) then m.h=tok else advance(m) end
end
`

// dropLua gives one place up: by token, or by claim ID where the token is not known. A claim that
// does not stand yet may not enter any more.
const dropLua = `
local function drop(me,a,p)
  local name,seat,token,n,id=ARGV[a],ARGV[a+1],tonumber(ARGV[a+2]),tonumber(ARGV[a+3]),ARGV[a+4]
  if p then
    local tok,slots,pn,pid=unpacked(p)
    if pid==id then
      if token==0 or token==tok then
        advance(strike(lid,seat,name,p,me.w))
        if ARGV[a+5]~='' then record(ARGV[a+5],ARGV[a+6],ARGV[a+7]) end
      end
      return
    end
  end
  spend(lid,me.w,n)
end
`
