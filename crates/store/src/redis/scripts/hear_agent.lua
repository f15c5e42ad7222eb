-- An agent was heard of. An unknown one becomes known by its name alone, if the caller says that there is room.
-- KEYS: profile, capacity. ARGV: node, the time as RFC 3339 if it is known, 1 if there is room, the profile of an agent that
-- was only named, its most tasks. Answers whether it is unknown (0), registered (1) or only named (2).
if ARGV[1] ~= '' and redis.call('CLUSTER', 'MYID') ~= ARGV[1] then
  return redis.error_reply('ANOTHERPRIMARY this script was sent to another primary')
end
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000000 + clock[2])
local seen = redis.call('HMGET', KEYS[1], 'named', 'draining')
if not seen[1] then
  if ARGV[3] ~= '1' then return { now, 0 } end
  redis.call('HSET', KEYS[1], 'profile', ARGV[4], 'registered_at', now, 'draining', 0, 'named', 1)
  redis.call('HSET', KEYS[2], 'max_tasks', ARGV[5], 'active_tasks', 0, 'queued_tasks', 0)
  seen = { '1', '0' }
end
redis.call('HSET', KEYS[1], 'heard', now)
redis.call('HSET', KEYS[2], 'last_heartbeat', ARGV[2], 'status', seen[2] == '1' and 'draining' or 'active')
return { now, seen[1] == '1' and 2 or 1 }
