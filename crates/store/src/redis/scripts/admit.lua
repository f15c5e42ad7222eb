-- Counts the locks of an acquisition in the minute that began with an agent's first one. Answers when the agent may ask
-- again, in Unix milliseconds, or zero. KEYS: rate. ARGV: node, how many locks, how many it may ask for in a minute.
if ARGV[1] ~= '' and redis.call('CLUSTER', 'MYID') ~= ARGV[1] then
  return redis.error_reply('ANOTHERPRIMARY this script was sent to another primary')
end
local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000000 + clock[2])
local asked = tonumber(redis.call('GET', KEYS[1]) or 0)
if asked == 0 then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', 60000)
  return { now, 0 }
end
if asked + ARGV[2] > tonumber(ARGV[3]) then return { now, redis.call('PEXPIRETIME', KEYS[1]) } end
redis.call('INCRBY', KEYS[1], ARGV[2])
return { now, 0 }
