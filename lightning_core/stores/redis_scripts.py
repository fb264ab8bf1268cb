"""The scripts that run inside the Redis server, each as one atomic step.

Of the rules of `rules.py` only one is written again here, `started`: a lease must choose and take in
one step. Everything else is worked out in Python from what was read, and `COMMIT` writes it if the
rollout has not changed meanwhile. A rollout's state carries a version for that, raised by each write.

What a state holds is listed in `redis_rows`. All use commands of Redis 6.2 and before.
"""

from __future__ import annotations

FIELDS = ("r", "s", "a", "m", "o", "w", "u", "q", "v", "n")
"""The fields of a state, in the order of `redis_rows.State`."""
STATE = ", ".join(f"'{field}'" for field in FIELDS)

ENQUEUE = """
local prefix, channel, request = ARGV[1], ARGV[2], ARGV[3]
local new, queued = 0, false
for at = 4, #ARGV, 10 do
  local id, run, status, attempts, most, outcome, priority, step, split, body
    = unpack(ARGV, at, at + 9)
  local key = prefix .. 'rollout:' .. id
  if redis.call('EXISTS', key) == 0 then
    local place = string.format('%016.0f', redis.call('INCR', prefix .. 'places'))
    redis.call('HSET', key, 'r', run, 's', status, 'a', attempts, 'm', most, 'o', outcome,
               'w', '', 'u', '', 'q', request, 'v', 1, 'n', place, 't', step, 'l', split)
    redis.call('SET', prefix .. 'body:' .. id, body)
    for _, list in ipairs({'run', 'step:' .. step, 'split:' .. split, 'status:' .. status}) do
      redis.call('ZADD', prefix .. 'of:' .. list .. ':' .. run, place, id)
    end
    if status == 'queued' then
      redis.call('ZADD', prefix .. 'queue', priority, place .. id)
      redis.call('ZADD', prefix .. 'queue:' .. run, priority, place .. id)
      queued = true
    end
    new = new + 1
  elseif redis.call('HGET', key, 'q') == request then
    new = new + 1
  end
end
if queued then redis.call('PUBLISH', channel, '') end
return new
"""
"""Adds the unknown ones among the rollouts; returns how many, an earlier try included."""

LEASE = f"""
local prefix, queue, worker, limit, seconds, request, try = unpack(ARGV)
local leases, held = prefix .. 'leases', prefix .. 'held:' .. worker
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local taken = {{}}
local function take(id)
  local key = prefix .. 'rollout:' .. id
  taken[#taken + 1] = {{id, redis.call('HMGET', key, {STATE}), redis.call('GET', prefix .. 'body:' .. id)}}
end
local tries = prefix .. 'tries:' .. request
if tonumber(redis.call('GET', tries) or '0') > tonumber(try) then return {{'taken', taken}} end
if try ~= '0' then
  redis.call('SET', tries, try, 'EX', 3600)
  for _, id in ipairs(redis.call('SMEMBERS', held)) do
    if redis.call('HGET', prefix .. 'rollout:' .. id, 'q') == request then take(id) end
  end
  if #taken > 0 then return {{'taken', taken}} end
end
local late = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 500)
if #late > 0 then return {{'late', late}} end
local lasts = string.format('%.6f', now + seconds)
for _, member in ipairs(redis.call('ZRANGE', prefix .. queue, 0, limit - 1)) do
  local id = string.sub(member, 17)
  local key = prefix .. 'rollout:' .. id
  redis.call('ZREM', prefix .. 'queue', member)
  local run, place = unpack(redis.call('HMGET', key, 'r', 'n'))
  redis.call('ZREM', prefix .. 'queue:' .. run, member)
  redis.call('ZREM', prefix .. 'of:status:queued:' .. run, id)
  redis.call('ZADD', prefix .. 'of:status:running:' .. run, place, id)
  redis.call('HINCRBY', key, 'a', 1)
  redis.call('HINCRBY', key, 'v', 1)
  redis.call('HSET', key, 's', 'running', 'w', worker, 'u', lasts, 'q', request)
  redis.call('ZADD', leases, lasts, id)
  redis.call('SADD', held, id)
  take(id)
end
return {{'taken', taken}}
"""
"""Takes the first rollouts of a queue for a worker. If leases have run out it takes none and names
those: their end is worked out in Python, and the lease is asked for again. A try finds what earlier ones
took; one that the network delivers after a later one takes nothing."""

COMMIT = """
local own = {}
function own.APPEND(key, field, request, value)
  local new = redis.call('HSETNX', key, field, redis.call('HLEN', key) .. ':' .. request .. ':' .. value)
  if new == 0 and string.match(redis.call('HGET', key, field), '^%d+:([^:]*)') == request then return 1 end
  return new
end
local at, answers = 1, {}
local function word()
  at = at + 1
  return ARGV[at - 1]
end
while at <= #ARGV do
  local holds, known, answer = true, {}, 0
  for _ = 1, tonumber(word()) do
    local key, version = word(), word()
    holds = holds and (redis.call('HGET', key, 'v') or '') == version
    if version ~= '' then known[#known + 1] = key end
  end
  for _ = 1, tonumber(word()) do
    local words = tonumber(word())
    if holds then
      if own[ARGV[at]] then
        answer = answer + own[ARGV[at]](unpack(ARGV, at + 1, at + words - 1))
      else
        redis.call(unpack(ARGV, at, at + words - 1))
      end
    end
    at = at + words
  end
  if holds then
    for _, key in ipairs(known) do redis.call('HINCRBY', key, 'v', 1) end
  end
  answers[#answers + 1] = holds and answer or -1
end
return answers
"""
"""Carries out changes, each whole or not at all: [checks, (state key, version)..., commands, (words,
word...)...]... A change whose rollouts are not at these versions any more is left out and answered by -1,
the others by how many of their APPENDs were new. APPEND keeps a value under a free field of a hash, with
its place and request; the same request may try again."""

CALL = """
local prefix, id, attempt, name, running, call = unpack(ARGV)
local key = prefix .. 'calls:' .. attempt .. ':' .. id
local known = redis.call('HGET', key, name)
local taken = known and string.sub(known, 1, 1) == 'c'
if taken and (string.sub(call, 1, 1) ~= 'c' or string.sub(known, 10) == string.sub(call, 10)) then
  return 'stored'
end
if taken then return 'taken' end
if running == '1' then
  local status, last = unpack(redis.call('HMGET', prefix .. 'rollout:' .. id, 's', 'a'))
  if status ~= 'running' or last ~= attempt then return 'ended' end
end
redis.call('HSET', key, name, call)
return 'stored'
"""
"""Keeps a call: 'taken' if another has completed under its id, 'ended' if its attempt is to be running and is
not. A call begins with 'c' if it has completed, and then says in 8 bytes when it was recorded."""

LAST = """
local prefix, kind = ARGV[1], ARGV[2]
local found = {}
for at = 3, #ARGV do
  local attempt = redis.call('HGET', prefix .. 'rollout:' .. ARGV[at], 'a') or '0'
  found[#found + 1] = redis.call('HVALS', prefix .. kind .. ':' .. attempt .. ':' .. ARGV[at])
end
return found
"""
"""What is kept of the last attempt of each rollout, one kind of it."""

ALL = {"enqueue": ENQUEUE, "lease": LEASE, "commit": COMMIT, "call": CALL, "last": LAST}
