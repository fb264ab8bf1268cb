"""The scripts that run inside the Redis server, each as one atomic step.

They choose and they write; what a rollout is after a change is worked out in Python, from what was read. All
use commands of Redis 6.2 and before.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

READ = """
local prefix, queue, limit = ARGV[1], ARGV[2], ARGV[3]
local rows = {}
local function add(id)
  local state = redis.call('HMGET', prefix .. 'rollout:' .. id, 'r', 's', 'a', 'j', 'w', 'v')
  if state[1] then rows[#rows + 1] = {id, state, redis.call('GET', prefix .. 'body:' .. id)} end
end
for at = 4, #ARGV do add(ARGV[at]) end
if queue ~= '' then
  local clock = redis.call('TIME')
  local now = clock[1] + clock[2] / 1000000
  local late = redis.call('ZRANGEBYSCORE', prefix .. 'leases', '-inf', now, 'LIMIT', 0, 500)
  for _, id in ipairs(late) do add(id) end
  if #late > 0 then return {1, rows} end
  local first = redis.call('ZRANGE', prefix .. queue, 0, limit - 1)
  for _, member in ipairs(first) do add(string.sub(member, 17)) end
end
return {0, rows}
"""
"""The rollouts with these ids. Or those whose leases have run out; if there is none, the first of a queue.
Of each: its id; run, status, attempts, what else changes, worker, version; and its body."""

COMMIT = """
local prefix, writer, connection, number, checks = unpack(ARGV, 1, 5)
if writer ~= '' and redis.call('HGET', prefix .. writer, 'c') ~= connection then return 'fenced' end
local at = 6
for _ = 1, checks do
  if (redis.call('HGET', prefix .. ARGV[at], ARGV[at + 1]) or '') ~= ARGV[at + 2] then return 'changed' end
  at = at + 3
end
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local places = tonumber(redis.call('GET', prefix .. 'places') or '0')
local own = {}
local function place()
  places = places + 1
  return string.format('%016.0f', places)
end
local function list(kind, run)
  return prefix .. 'of:' .. kind .. ':' .. run
end
function own.put(id, status, attempts, changing, reward, worker, seconds)
  local key, leases = prefix .. 'rollout:' .. id, prefix .. 'leases'
  local run, before, holder, arrived, priority = unpack(redis.call('HMGET', key, 'r', 's', 'w', 'n', 'p'))
  local queues = {prefix .. 'queue', prefix .. 'queue:' .. run}
  if before == 'running' then
    redis.call('ZREM', leases, id)
    redis.call('SREM', prefix .. 'held:' .. holder, id)
  elseif before == 'queued' then
    for _, queue in ipairs(queues) do redis.call('ZREM', queue, arrived .. id) end
  end
  if before ~= status then
    redis.call('ZREM', list('status:' .. before, run), id)
    redis.call('ZADD', list('status:' .. status, run), arrived, id)
  end
  if worker ~= '' then
    redis.call('ZADD', leases, string.format('%.6f', now + seconds), id)
    redis.call('SADD', prefix .. 'held:' .. worker, id)
  elseif status == 'queued' then
    for _, queue in ipairs(queues) do redis.call('ZADD', queue, priority, arrived .. id) end
  end
  if reward ~= '' then redis.call('ZADD', list('reward', run), reward, arrived .. id) end
  redis.call('HSET', key, 's', status, 'a', attempts, 'j', changing, 'w', worker)
  redis.call('HINCRBY', key, 'v', 1)
end
function own.new(id, run, priority, step, split, body, ...)
  local arrived = place()
  redis.call('HSET', prefix .. 'rollout:' .. id, 'r', run, 's', '', 'w', '', 'n', arrived, 'p', priority,
             't', step, 'l', split)
  redis.call('SET', prefix .. 'body:' .. id, body)
  for _, kind in ipairs({'run', 'step:' .. step, 'split:' .. split}) do
    redis.call('ZADD', list(kind, run), arrived, id)
  end
  own.put(id, ...)
end
function own.touch(id)
  redis.call('HINCRBY', prefix .. 'rollout:' .. id, 'v', 1)
end
function own.add(key, field, value)
  redis.call('HSET', prefix .. key, field, place() .. ':' .. value)
end
function own.remove(key, field)
  redis.call('HDEL', prefix .. key, field)
end
function own.tell(channel, name)
  redis.call('PUBLISH', channel, name)
end
while at <= #ARGV do
  local last = at + 1 + ARGV[at + 1]
  own[ARGV[at]](unpack(ARGV, at + 2, last))
  at = last + 1
end
redis.call('SET', prefix .. 'places', string.format('%.0f', places))
if writer ~= '' then redis.call('HSET', prefix .. writer, 'n', number) end
return 'written'
"""
"""Carries out a transaction, whole or not at all: prefix, writer, number of its connection, number of the
transaction; checks, (key, field, value)...; (change, words, word...)... It is refused if the writer has
another connection by now, or if a field holds another value than it did when it was read."""

LAST = """
local prefix, kind = ARGV[1], ARGV[2]
local found = {}
for at = 3, #ARGV do
  local attempt = redis.call('HGET', prefix .. 'rollout:' .. ARGV[at], 'a') or '0'
  found[#found + 1] = redis.call('HVALS', prefix .. kind .. ':' .. ARGV[at] .. ':' .. attempt)
end
return found
"""
"""What is kept of the last attempt of each rollout, one kind of it."""

SCRIPTS: Mapping[str, str] = MappingProxyType({"read": READ, "commit": COMMIT, "last": LAST})
