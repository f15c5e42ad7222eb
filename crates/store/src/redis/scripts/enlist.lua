-- Puts a lock into the registry before something happens to it. Its score only sinks, and always changes: whoever saw
-- another score and wants to take the lock out does not.
-- KEYS: registry. ARGV: node, lock, when something may be due.
if ARGV[1] ~= '' and redis.call('CLUSTER', 'MYID') ~= ARGV[1] then
  return redis.error_reply('ANOTHERPRIMARY this script was sent to another primary')
end
local seen, due = redis.call('ZSCORE', KEYS[1], ARGV[2]), tonumber(ARGV[3])
if seen and tonumber(seen) <= due then due = tonumber(seen) - 0.001 end
redis.call('ZADD', KEYS[1], string.format('%.3f', due), ARGV[2])
