-- Gives a lock in the registry its new score, or takes it out, unless somebody put it in again since it was looked at.
-- KEYS: registry. ARGV: node, lock, the score that was seen, the new one or nothing.
if ARGV[1] ~= '' and redis.call('CLUSTER', 'MYID') ~= ARGV[1] then
  return redis.error_reply('ANOTHERPRIMARY this script was sent to another primary')
end
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2]) or 0) ~= tonumber(ARGV[3]) then return 0 end
if ARGV[4] == '' then return redis.call('ZREM', KEYS[1], ARGV[2]) end
return redis.call('ZADD', KEYS[1], ARGV[4], ARGV[2])
