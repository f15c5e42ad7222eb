-- Registers an agent, or changes one. Answers with its fields, or nothing if the name is taken or unknown.
-- KEYS: profile, capacity. ARGV: node, 1 to create, profile or nothing, most tasks or nothing, draining or nothing,
-- the profile of an agent that says nothing, most tasks of such an agent.
if ARGV[1] ~= '' and redis.call('CLUSTER', 'MYID') ~= ARGV[1] then
  return redis.error_reply('ANOTHERPRIMARY this script was sent to another primary')
end
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000000 + clock[2])
local named = redis.call('HGET', KEYS[1], 'named')
if ARGV[2] == '1' then
  if named == '0' then return { now } end
elseif not named then
  return { now }
end
if not named then
  redis.call('HSET', KEYS[1], 'profile', ARGV[6], 'registered_at', now, 'heard', now, 'draining', 0)
  redis.call('HSET', KEYS[2], 'max_tasks', ARGV[7], 'active_tasks', 0, 'queued_tasks', 0, 'status', 'active')
end
redis.call('HSET', KEYS[1], 'named', 0)
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'profile', ARGV[3]) end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'max_tasks', ARGV[4]) end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'draining', ARGV[5])
  if redis.call('HGET', KEYS[2], 'status') ~= 'offline' then
    redis.call('HSET', KEYS[2], 'status', ARGV[5] == '1' and 'draining' or 'active')
  end
end
return { now, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]) }
