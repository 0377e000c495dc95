package redisstore

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"sync"
)

// script is one verb, which Redis runs as one step. All reads that can fail a verb come before its
// first write: Redis does not undo what a script did before an error.
type script struct {
	name string
	made func() (text, sha string)
	once bool // the store does not repeat it by itself
}

// newScript returns a script, which is put together when it is used first: every process of the
// program has all of them, and few run any.
func newScript(name string, parts ...string) *script {
	return &script{name: name, made: sync.OnceValues(func() (text, sha string) {
		text = headLua + strings.Join(parts, "")
		sum := sha1.Sum([]byte(text))
		return text, hex.EncodeToString(sum[:])
	})}
}

func (sc *script) text() string {
	text, _ := sc.made()
	return text
}

func (sc *script) sha() string {
	_, sha := sc.made()
	return sha
}

// notRepeated marks a script that only the caller may repeat after an unknown outcome: a repeat by
// the store would hide that there was one.
func notRepeated(s *script) *script {
	s.once = true
	return s
}

// headLua begins each script. It reads the time and {p}:server, and sets steady where the server
// goes on with the history that is written there, as it nearly always does. guardLua handles the
// other cases.
const headLua = `
local S=KEYS[1]
local B=string.sub(S,1,-7)
local call=redis.call
local T=call('TIME')
local now=T[1]*1000+math.floor(T[2]/1000)
local V=call('HMGET',S,'n','id','epoch','calm','since','max')
local count,drew=tonumber(V[1]) or 0,false
local epoch=V[3] or ''
local calm,since,most=tonumber(V[4]) or 0,tonumber(V[5]) or 0,tonumber(V[6]) or 0
local rep=call('INFO','replication')
local steady=V[2] and since<=now and string.find(rep,'role:master',1,true) and string.find(rep,'master_replid:'..V[2]..'\r',1,true)
`

// baseLua draws tokens and revisions. Lua has one kind of number, exact to 2^53, and tokens are
// below 2^48. Joined to a string a large number becomes 1e+14: hence F. Redis writes out a number
// that is an argument of a call.
//
// A token is at least the time. During a hold-off (guard.go) it is at least the time at which the
// hold-off ends for the lease that claims: the clock that drew the lost tokens may have been ahead.
// A lease with a larger ttl that claims nothing makes it no later: a server that loses everything
// soon after would draw smaller ones.
const baseLua = `
local function F(n) return string.format('%.0f',n) end
local function draw(odd,ttl)
  local c=math.max(now,calm,since+(ttl or 0))*64
  if c<=count then c=count+1 end
  if c%2~=odd then c=c+1 end
  count,drew=c,true
  return c
end
local function save() if drew then call('HSET',S,'n',count) end end
`

// leaseLua reads leases. A lease whose expiry is further away than its ttl was renewed by a clock
// that has been set back since, or by another server's clock: it counts as renewed now.
const leaseLua = `
local L={}
local function known(id,x,t,c)
  local l={x=tonumber(x) or 0,t=tonumber(t) or 0,c=c or ''}
  if l.x>now+l.t+1 then
    l.x=now+l.t+1
    call('HSET',B..'lease:'..id,'x',l.x)
  end
  l.live=l.x>now
  L[id]=l
  return l
end
local function lease(id)
  if L[id] then return L[id] end
  local v=call('HMGET',B..'lease:'..id,'x','t','c')
  return known(id,v[1],v[2],v[3])
end
local function forget(id)
  call('DEL',B..'lease:'..id,B..'spent:'..id,B..'asks:'..id)
  if L[id] then L[id].live=false end
end
local function tell(id,what)
  local l=lease(id)
  if l.c~='' then call(ARGV[1],B..'to:'..l.c,what..' '..id) end
end
`

// lineLua reads and changes lines. M caches what was read of each, and finish writes it back. The
// claims that hold are those up to token h, always the first of the line: a place is granted by
// raising h. The channel of a line notifies those who observe it. Once a day a change prolongs the
// life of the keys, and where nothing changes the renewals do: if a line vanished under its claims,
// the next claim would hold.
const lineLua = `
local M,order={},{}
local function open(name)
  local m=M[name]
  if m then return m end
  m={name=name,line=B..'line:'..name,key=B..'meta:'..name}
  local v=call('HMGET',m.key,'r','h','k','kn','e')
  m.r,m.h,m.k,m.kn=tonumber(v[1]) or 0,tonumber(v[2]) or 0,v[3],tonumber(v[4]) or 0
  m.new,m.e=not v[1],tonumber(v[5]) or 0
  M[name]=m
  order[#order+1]=m
  return m
end
local function parts(mem)
  local id,slots,t=string.match(mem,'^(%S+) (%-?%d+) (%d+)')
  return id,slots,tonumber(t),t
end
local function remove(m,mem,slots,t)
  call('ZREM',m.line,mem)
  call('HDEL',m.key,'v'..t)
  if slots~='0' then m.kn=m.kn-1 end
  m.changed=true
end
local function grant(m,tok,id)
  m.h,m.changed=tok,true
  if m.own~=tok then tell(id,'h '..F(tok)..' '..epoch) end
end
local function soonest(m,t) if not m.left or t<m.left then m.left=t end end
local advance
local function shares(m,deep)
  local i=0
  if not deep and m.h>0 then i=call('ZCOUNT',m.line,'-inf',m.h) end
  while true do
    local page=call('ZRANGE',m.line,i,i+63)
    if not page[1] then return end
    for j=1,#page do
      local id,slots,tok,t=parts(page[j])
      local n,l=tonumber(slots),lease(id)
      if not l.live then
        remove(m,page[j],slots,t)
        forget(id)
      elseif n==0 then
        if i==0 then return advance(m,deep) end
        return
      else
        if n>0 and i>=n then return end
        if tok>m.h then
          if not may(l.t) then return end
          grant(m,tok,id)
        end
        soonest(m,l.x-now)
        i=i+1
      end
    end
  end
end
advance=function(m,deep)
  m.left=nil
  while true do
    local first=call('ZRANGE',m.line,0,0)
    if not first[1] then
      m.empty=true
      return
    end
    local id,slots,tok,t=parts(first[1])
    local l=lease(id)
    if l.live then
      if slots~='0' then
        soonest(m,l.x-now)
        return shares(m,deep)
      end
      if tok>m.h and may(l.t) then grant(m,tok,id) end
      if tok<=m.h then soonest(m,l.x-now) end
      return
    end
    remove(m,first[1],slots,t)
    forget(id)
  end
end
local keep=259200000
local function finish()
  for i=1,#order do
    local m=order[i]
    if m.changed then
      local r
      if m.r>count then count=m.r end
      if m.empty or m.empty==nil and call('EXISTS',m.line)==0 then
        call('DEL',m.key)
        call('ZREM',B..'names',m.name)
        r=draw(0)
      else
        r=draw(1)
        if m.k then
          call('HSET',m.key,'r',r,'h',m.h,'k',m.k,'kn',m.kn,'f',0) -- f is not used any more
        else
          call('HSET',m.key,'r',r,'h',m.h)
        end
        if now-m.e>86400000 then
          call('HSET',m.key,'e',now)
          call('PEXPIRE',m.line,keep)
          call('PEXPIRE',m.key,keep)
        end
        if m.new then
          if call('ZADD',B..'names',0,m.name)==1 and call('PTTL',B..'names')<0 then call('PEXPIRE',B..'names',keep) end
        end
      end
      call(ARGV[1],B..'on:'..m.name,'c')
    end
  end
  save()
end
local function unpacked(p)
  local t,slots,n,id=string.match(p,'^(%d+) (%-?%d+) (%d+) (.*)$')
  return tonumber(t),slots,tonumber(n),id,t
end
local function left(m)
  if m.left and hush and hush<m.left then return hush end
  return m.left or hush or 1000
end
`

// strikeLua removes a claim for good: its ID may not enter again.
const strikeLua = `
local function spend(id,w,n)
  if n<=w then return end
  call('ZADD',B..'spent:'..id,n,F(n))
  call('HSET',B..'lease:'..id,'p','1')
  call('PEXPIRE',B..'spent:'..id,call('PTTL',B..'lease:'..id))
end
local function strike(lid,seat,name,p,w)
  local tok,slots,n,id,t=unpacked(p)
  local m=open(name)
  if call('HDEL',B..'lease:'..lid,'s'..seat..':'..name)==1 then
    remove(m,lid..' '..slots..' '..t..' '..seat..' '..id,slots,t)
    spend(lid,w,n)
  end
  return m
end
local function struck(lid,seat,name,p)
  local w=tonumber(call('HGET',B..'lease:'..lid,'w')) or 0
  local m=strike(lid,seat,name,p,w)
  call('HINCRBY',B..'lease:'..lid,'g',1)
  tell(lid,'s')
  return m
end
`

// journalLua keeps a record in place of one with its key.
const journalLua = `
local year=34560000000
local function record(name,key,value)
  call('HSET',B..'j:'..name,key,value)
  call('ZADD',B..'jk:'..name,0,key)
  call('ZADD',B..'journals',0,name)
  call('PEXPIRE',B..'j:'..name,year)
  call('PEXPIRE',B..'jk:'..name,year)
  call('PEXPIRE',B..'journals',year)
end
`
