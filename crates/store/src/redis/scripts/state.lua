-- State of one lock: read on demand, changed in memory, and written back once at the end.
--
-- The files in this folder form one library of Redis functions. It implements the lock state machine of the `domain`
-- crate a second time: the same commands at the same times must give the same replies and the same state. The
-- differential tests compare both.
--
-- A function touches only the keys it was given, which share one slot on a cluster, and takes the time only from TIME.
-- Tokens are handled as strings of digits because Lua would lose precision when formatting them as numbers. Functions
-- are created once, when the library is loaded; `reset` initialises all local state, so nothing survives from one call
-- to the next.
--
-- Keys: lock, queue, waiting, deadlines, fence, ended; outside a cluster also registry, by agent, waitfor, by type.
-- Arguments: node id, command, lock name, holder digest, agent id, holder id, channel, then those of the command.
-- The fields of every key are documented in encoding.rs.

-- Lua's standard libraries are not accessible while a library loads; the first call binds them.
local format, floor, sub, concat, max, min
local call, ARGV
local LOCK, QUEUE, WAITING, DEADLINES, FENCE, ENDED, REGISTRY, BY_AGENT, WAITFOR, BY_TYPE
local command, name, caller, agent, holder_id, CHANNEL, is_task, now, now_text

local function digits(number)
  if number == now then return now_text end
  return format('%.0f', number)
end

-- Formats RFC 3339 with microseconds. The date part is cached because most timestamps of a call fall on the same day.
local cached_day, cached_date
local function iso(micros)
  local seconds = floor(micros / 1000000)
  local day = floor(seconds / 86400)
  if day ~= cached_day then
    local z = day + 719468
    local era = floor(z / 146097)
    local of_era = z - era * 146097
    local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
    local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
    local m = floor((5 * of_year + 2) / 153)
    local month = m < 10 and m + 3 or m - 9
    year = year + era * 400 + (month <= 2 and 1 or 0)
    cached_date = format('%04d-%02d-%02dT', year, month, of_year - floor((153 * m + 2) / 5) + 1)
    cached_day = day
  end
  local of_day = seconds - day * 86400
  local minute = floor(of_day / 60)
  return cached_date .. format('%02d:%02d:%02d.%06dZ', floor(minute / 60), minute % 60, of_day % 60, micros - seconds * 1000000)
end

-- A hold is encoded as numbers, then its request keys, then agent id, holder id (empty if equal to the agent id) and
-- purpose, delimited by their lengths. The lock stores these three parts as separate fields because Redis stores short
-- fields compactly.
local function encode_numbers(hold)
  return concat({
    hold.mode, hold.token, digits(hold.acquired), digits(hold.expires), hold.claimed and 1 or 0, hold.leave_tombstone and 1 or 0,
    hold.priority, hold.heartbeats,
  }, ' ')
end

local function encode_names(hold)
  return #hold.agent .. ' ' .. #hold.holder .. ' ' .. hold.agent .. hold.holder .. hold.purpose
end

local function encode_hold(hold)
  return encode_numbers(hold) .. ' ' .. hold.requests .. ' ' .. encode_names(hold)
end

local function decode_hold(text)
  local mode, token, acquired, expires, claimed, leave_tombstone, priority, heartbeats, requests, agent_len, holder_len, at =
    text:match('^(%a) (%d+) (%d+) (%d+) (%d) (%d) (%-?%d+) (%d+) ([%x,]+) (%d+) (%d+) ()')
  agent_len, holder_len = tonumber(agent_len), tonumber(holder_len)
  return {
    mode = mode, token = token, acquired = tonumber(acquired), expires = tonumber(expires), claimed = claimed == '1',
    leave_tombstone = leave_tombstone == '1', priority = priority, heartbeats = tonumber(heartbeats), requests = requests,
    agent = sub(text, at, at + agent_len - 1), holder = sub(text, at + agent_len, at + agent_len + holder_len - 1),
    purpose = sub(text, at + agent_len + holder_len),
  }
end

local function decode_hold_fields(numbers, requests, names)
  return decode_hold(numbers .. ' ' .. requests .. ' ' .. names)
end

-- One entry of the `holders` field, which lists the holders of a shared lock.
local function sharer_json(hold)
  return '{"agent_id":' .. cjson.encode(hold.agent) .. ',"acquired_at":"' .. iso(hold.acquired) .. '"}'
end

-- Holds by holder digest, read on demand. `false` means known to be absent. `upgraded_from` has the shared hold that an
-- unclaimed upgrade replaces.
local holds, upgraded_from, had_upgraded_from, dirty, is_dirty
local holder_count, mode, next_expiry, queue_length
local was_held, stored_queue_length, stored_mode, has_read_all
local changes, messages, added_sharers, removed_sharers
-- The last token and queue score; whether there are tombstones; the parameters of an acquire; the earliest time
-- at which a server times out unless it sends a heartbeat.
local fence, is_fence_dirty, tombstones_exist, params, next_server_timeout
-- The earliest deadline of a waiter; nil if unknown.
local first_deadline

local function read_clock(call_redis)
  if not format then
    format, floor, sub, concat, max, min = string.format, math.floor, string.sub, table.concat, math.max, math.min
  end
  local clock = call_redis('TIME')
  now = clock[1] * 1000000 + clock[2]
  now_text = clock[1] .. sub('00000' .. clock[2], -6)
end

local function reset(keys, args)
  call, ARGV = redis.call, args
  read_clock(call)
  LOCK, QUEUE, WAITING, DEADLINES, FENCE, ENDED = keys[1], keys[2], keys[3], keys[4], keys[5], keys[6]
  REGISTRY, BY_AGENT, WAITFOR, BY_TYPE = keys[7], keys[8], keys[9], keys[10]
  command, name, caller, agent, holder_id, CHANNEL = args[2], args[3], args[4], args[5], args[6], args[7]
  is_task = sub(name, 1, 5) == 'task:'
  holds, upgraded_from, had_upgraded_from, dirty, is_dirty = {}, {}, {}, {}, false
  holder_count, mode, next_expiry, queue_length = 0, nil, nil, 0
  was_held, stored_queue_length, stored_mode, has_read_all = false, 0, nil, false
  changes, messages, added_sharers, removed_sharers = {}, {}, {}, {}
  fence, is_fence_dirty, tombstones_exist, params, next_server_timeout = nil, false, nil, nil, nil
  first_deadline = nil
end

local function decode_upgraded_from(digest, text)
  upgraded_from[digest], had_upgraded_from[digest] = text and decode_hold(text) or false, text and true
end

local function load_lock()
  local fields = call('HMGET', LOCK, 'n', 'mode', 'next', 'queue_length', 'h:' .. caller, 'r:' .. caller, 'a:' .. caller, 'b:' .. caller)
  if fields[1] then
    was_held, holder_count, mode, next_expiry = true, tonumber(fields[1]), sub(fields[2], 1, 1) == 'e' and 'x' or 's', tonumber(fields[3])
    stored_mode = mode
    queue_length = tonumber(fields[4])
    if queue_length > 0 then queue_length = call('ZCARD', QUEUE) end
  else
    queue_length = call('ZCARD', QUEUE)
  end
  stored_queue_length = fields[4] and tonumber(fields[4]) or 0
  holds[caller] = fields[5] and decode_hold_fields(fields[5], fields[6], fields[7]) or false
  decode_upgraded_from(caller, fields[8])
end

local function hold_of(digest)
  if holds[digest] == nil then
    local fields = call('HMGET', LOCK, 'h:' .. digest, 'r:' .. digest, 'a:' .. digest, 'b:' .. digest)
    holds[digest] = fields[1] and decode_hold_fields(fields[1], fields[2], fields[3]) or false
    decode_upgraded_from(digest, fields[4])
  end
  return holds[digest] or nil
end

local function read_all()
  if has_read_all then return end
  has_read_all = true
  local fields, found = was_held and call('HGETALL', LOCK) or {}, {}
  for i = 1, #fields, 2 do found[fields[i]] = fields[i + 1] end
  for field, text in pairs(found) do
    local digest = sub(field, 3)
    if sub(field, 1, 2) == 'h:' and holds[digest] == nil then
      holds[digest] = decode_hold_fields(text, found['r:' .. digest], found['a:' .. digest])
      decode_upgraded_from(digest, found['b:' .. digest])
    end
  end
end

local function mark_dirty(digest)
  dirty[digest] = true
  is_dirty = true
end

local function lower_next_expiry(at)
  if not next_expiry or at < next_expiry then next_expiry = at end
end

local function load_fence()
  if not fence then
    local fields = call('HMGET', FENCE, 'token', 'score', 'kept')
    fence = { token = tonumber(fields[1] or 0), score = tonumber(fields[2] or 0), renewed_at = tonumber(fields[3] or 0) }
  end
  return fence
end

local function next_score()
  local loaded = load_fence()
  loaded.score = max(loaded.score + 1 / 2048, now / 1000)
  loaded.is_dirty = true
  return loaded.score
end

-- Tombstones of ended requests: a ring buffer of request keys in order of their end, plus one field per request with
-- its reason.
local function has_tombstones()
  if tombstones_exist == nil then tombstones_exist = call('EXISTS', ENDED) == 1 end
  return tombstones_exist
end

local function tombstone_reason(request)
  if not has_tombstones() then return nil end
  local found = call('HGET', ENDED, request)
  if not found then return nil end
  local at = found:find(' ', 1, true)
  if tonumber(sub(found, 1, at - 1)) <= now then return nil end
  return sub(found, at + 1)
end

local NO_TOMBSTONE = { timed_out = true, refused = true, server_silent = true, hung_up = true }
local function add_tombstone(request, reason)
  if NO_TOMBSTONE[reason] then return end
  local expiry = now + TOMBSTONE_TTL_MS * 1000
  local bounds = call('HMGET', ENDED, 'head', 'tail')
  local head, tail = tonumber(bounds[1] or 1), tonumber(bounds[2] or 0) + 1
  for _ = 1, BATCH_SIZE do
    if head >= tail then break end
    local oldest = call('HGET', ENDED, '#' .. head)
    local at = oldest:find(' ', 1, true)
    local expiry_text, oldest_request = sub(oldest, 1, at - 1), sub(oldest, at + 1)
    if tail - head < MAX_TOMBSTONES and tonumber(expiry_text) > now then break end
    local stored = call('HGET', ENDED, oldest_request)
    if stored and sub(stored, 1, at) == expiry_text .. ' ' then call('HDEL', ENDED, '#' .. head, oldest_request)
    else call('HDEL', ENDED, '#' .. head) end
    head = head + 1
  end
  local text = digits(expiry)
  call('HSET', ENDED, 'head', head, 'tail', tail, '#' .. tail, text .. ' ' .. request, request, text .. ' ' .. reason)
  call('PEXPIRE', ENDED, TOMBSTONE_TTL_MS)
  tombstones_exist = true
end

local function each_request(requests, visit)
  for request in requests:gmatch('%x+') do visit(request) end
end

-- A request that holds or waits again has no tombstone.
local function remove_tombstones(requests)
  if has_tombstones() then
    each_request(requests, function(request) call('HDEL', ENDED, request) end)
  end
end

local function reason_code(reason) return reason:match('^%S+') end

local function record_change(...)
  changes[#changes + 1] = { ... }
end

local function add_message(message) messages[#messages + 1] = message end
