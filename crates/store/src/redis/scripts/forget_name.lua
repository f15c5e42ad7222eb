-- Forgets the names of locks that are not in the registry any more. Not for clusters, where the two are apart.
-- KEYS: names, registry. ARGV: node, then locks.
for i = 2, #ARGV do
  if not redis.call('ZSCORE', KEYS[2], ARGV[i]) then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
