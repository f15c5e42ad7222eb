-- One lock as it is at one moment: its fields, the first of its queue with their scores, and how many wait. Changes nothing.
if ARGV[1] ~= '' and redis.call('CLUSTER', 'MYID') ~= ARGV[1] then
  return redis.error_reply('ANOTHERPRIMARY this script was sent to another primary')
end
local clock = redis.call('TIME')
return {
  string.format('%.0f', clock[1] * 1000000 + clock[2]), redis.call('HGETALL', KEYS[1]),
  redis.call('ZRANGE', KEYS[2], 0, ARGV[2], 'WITHSCORES'), redis.call('ZCARD', KEYS[2]),
}
