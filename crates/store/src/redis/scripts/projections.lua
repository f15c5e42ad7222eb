-- Projections: keys that repeat what the database says about an object, and the event streams. Each function touches one slot.
--
-- The first key of an object is a hash that guards the others. Its field `revision` is that of the object; `indexes` names the indexes in
-- other slots that have the object as a member; `pending` is there while these are not known to be up to date, and has the
-- earlier values of `indexes`, each after a line break.

local writers = {
  absent = function() end,
  string = function(key, values) redis.call('SET', key, values[1]) end,
  hash = function(key, values) redis.call('HSET', key, unpack(values)) end,
  set = function(key, values) redis.call('SADD', key, unpack(values)) end,
}

-- Replaces the keys of an object, unless they are of the same or a later revision. Returns the revision that is stored now, and the
-- field `pending`.
-- Keys: the guard, then the others. Arguments: node id, revision, `always` to replace whatever is stored or empty, indexes, then for each key:
-- kind, TTL in milliseconds or empty, number of values, the values.
local function project(keys, args)
  local revision, always, indexes = args[2], args[3] ~= '', args[4]
  local kind = redis.call('TYPE', keys[1]).ok
  if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', keys[1]) end
  local stored = redis.call('HMGET', keys[1], 'revision', 'indexes', 'pending')
  local stored_revision = tonumber(stored[1] or '')
  if stored_revision and not always and stored_revision >= tonumber(revision) then
    return { stored[1], stored[3] }
  end
  local pending = stored[3]
  if stored[2] ~= indexes or always then pending = (pending or '') .. '\n' .. (stored[2] or '') end
  local at = 5
  for _, key in ipairs(keys) do
    local kind, ttl, count = args[at], args[at + 1], tonumber(args[at + 2])
    local values = {}
    for i = 1, count do values[i] = args[at + 2 + i] end
    redis.call('DEL', key)
    writers[kind](key, values)
    if ttl ~= '' then redis.call('PEXPIRE', key, ttl) end
    at = at + 3 + count
  end
  redis.call('HSET', keys[1], 'revision', revision, 'indexes', indexes)
  if pending then redis.call('HSET', keys[1], 'pending', pending) end
  return { revision, pending }
end

-- Notes that the indexes are up to date, unless something has changed since. Returns the stored revision.
-- Keys: the guard. Arguments: node id, revision, the field `pending` at that time.
local function confirm(keys, args)
  local stored = redis.call('HMGET', keys[1], 'revision', 'pending')
  if stored[1] == args[2] and stored[2] == args[3] then redis.call('HDEL', keys[1], 'pending') end
  return stored[1]
end

-- Deletes the keys of an object that the database no longer has, unless they have changed since they were read.
-- Keys: the guard, then the others. Arguments: node id, the revision that was read.
local function remove(keys, args)
  if redis.call('HGET', keys[1], 'revision') ~= args[2] then return 0 end
  return redis.call('DEL', unpack(keys))
end

-- Creates a stream with its consumer groups if it is missing, and appends the entries that it does not have yet.
-- Keys: stream. Arguments: node id, maximum length, TTL in milliseconds, number of groups, their names, then for each entry: its id or *,
-- the number of its fields and values, the fields and values.
local function append_entries(keys, args)
  local stream, groups = keys[1], tonumber(args[4])
  for i = 5, 4 + groups do
    -- Fails if the group exists.
    redis.pcall('XGROUP', 'CREATE', stream, args[i], '0', 'MKSTREAM')
  end
  local appended, at = 0, 5 + groups
  while args[at] do
    local id, count = args[at], tonumber(args[at + 1])
    local fields = {}
    for i = 1, count do fields[i] = args[at + 1 + i] end
    local added = redis.pcall('XADD', stream, 'MAXLEN', '~', args[2], id, unpack(fields))
    if not added.err then
      appended = appended + 1
    elseif not string.find(added.err, 'equal or smaller', 1, true) then
      return added
    end
    at = at + 2 + count
  end
  redis.call('PEXPIRE', stream, args[3])
  return appended
end

register('project', project, {})
register('confirm', confirm, { 'allow-oom' })
register('remove', remove, { 'allow-oom' })
register('append_entries', append_entries, {})
