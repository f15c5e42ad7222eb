-- State of one lock: read on demand, changed in memory, and written back once at the end of a step.
--
-- The files in this folder form one library of Redis functions. It implements the lock state machine of the `domain`
-- crate a second time: the same commands at the same times must give the same replies and the same state. The
-- differential tests compare both.
--
-- A call carries one step on a cluster, and the waiting steps of a server elsewhere. It touches only the keys it was
-- given, and takes the time only from TIME, once. Tokens are handled as strings of digits because Lua would lose
-- precision when formatting them as numbers. Functions are created once, when the library is loaded; `begin_call` and
-- `begin_step` initialise all local state, so only the cache of formatted seconds survives a call.
--
-- Keys: outside a cluster first registry and token, which all steps share; then for each step lock, queue, waiting,
-- deadlines, fence, ended; outside a cluster also by agent, waitfor, by type.
-- Arguments: node id; then for each step their number, command, holder digest, agent id, holder id, channel, and those
-- of the command. The fields of every key are documented in encoding.rs.

-- Lua's standard libraries are not accessible while a library loads; the first call binds them.
local format, floor, sub, match, max, min
local call, PUBLISH, REGISTRY, TOKEN, now, now_text
local ARGV, at, last_argument
local LOCK, QUEUE, WAITING, DEADLINES, FENCE, ENDED, BY_AGENT, WAITFOR, BY_TYPE
local command, caller, agent, holder_id, CHANNEL, is_task

-- Texts of numbers and times by what they show: the steps of a call have many in common.
local digits_of, iso_of
local function digits(number)
  local text = digits_of[number]
  if not text then
    text = format('%.0f', number)
    digits_of[number] = text
  end
  return text
end

-- Formats RFC 3339 with microseconds.
local formatted_seconds, formatted_count = {}, 0
local function iso(micros)
  local known = iso_of[micros]
  if known then return known end
  local seconds = floor(micros / 1000000)
  local text = formatted_seconds[seconds]
  if not text then
    local day = floor(seconds / 86400)
    local z = day + 719468
    local era = floor(z / 146097)
    local of_era = z - era * 146097
    local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
    local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
    local m = floor((5 * of_year + 2) / 153)
    local month = m < 10 and m + 3 or m - 9
    year = year + era * 400 + (month <= 2 and 1 or 0)
    local of_day = seconds - day * 86400
    local minute = floor(of_day / 60)
    text = format('%04d-%02d-%02dT%02d:%02d:%02d.', year, month, of_year - floor((153 * m + 2) / 5) + 1,
      floor(minute / 60), minute % 60, of_day % 60)
    if formatted_count == 100 then formatted_seconds, formatted_count = {}, 0 end
    formatted_seconds[seconds], formatted_count = text, formatted_count + 1
  end
  text = text .. format('%06dZ', micros - seconds * 1000000)
  iso_of[micros] = text
  return text
end

-- A hold is encoded as numbers, then its request keys, then agent id, holder id (empty if equal to the agent id) and
-- purpose, delimited by their lengths. The lock stores these three parts as separate fields because Redis stores short
-- fields compactly. `numbers` caches the text of a hold until it changes.
local function encode_numbers(hold)
  local text = hold.numbers
  if not text then
    text = hold.mode .. ' ' .. hold.token .. ' ' .. hold.acquired .. ' ' .. digits(hold.expires) .. ' ' .. hold.claimed .. ' '
      .. hold.leave_tombstone .. ' ' .. hold.priority .. ' ' .. hold.heartbeats
    hold.numbers = text
  end
  return text
end

local function decode_numbers(text)
  local mode, token, acquired, expires, claimed, leave_tombstone, priority, heartbeats =
    match(text, '^(%a) (%d+) (%d+) (%d+) (%d) (%d) (%-?%d+) (%d+)')
  return {
    numbers = text, mode = mode, token = token, acquired = acquired, expires = tonumber(expires), claimed = claimed,
    leave_tombstone = leave_tombstone, priority = priority, heartbeats = tonumber(heartbeats),
  }
end

local function decode_names(hold, text)
  local agent_length, holder_length, from = match(text, '^(%d+) (%d+) ()')
  local holder_from = from + agent_length
  hold.agent, hold.holder = sub(text, from, holder_from - 1), sub(text, holder_from, holder_from + holder_length - 1)
  hold.purpose = sub(text, holder_from + holder_length)
end

local function decode_hold_fields(numbers, requests, names)
  local hold = decode_numbers(numbers)
  hold.requests = requests
  decode_names(hold, names)
  return hold
end

local function decode_hold(text)
  local numbers, requests, names = match(text, '^(%a %d+ %d+ %d+ %d %d %-?%d+ %d+) ([%x,]+) (.*)$')
  return decode_hold_fields(numbers, requests, names)
end

-- Holds by holder digest, read on demand. `false` means known to be absent. A hold has the shared hold that its unclaimed
-- upgrade replaces in `previous`; `stored_previous` says which holds had one when they were read.
local holds, stored_previous, dirty, is_dirty
local holder_count, mode, next_expiry, queue_length
local was_held, stored_queue_length, stored_mode, has_read_all
local changes, change_count, added_sharers, removed_sharers
-- Whether the indexes of the caller's agent get or lose the lock; nil if nothing changes.
local is_in_agent_index, is_awaited
-- Last token and queue score of the lock; whether there are tombstones; the earliest time at which a server times out
-- unless it sends a heartbeat; the earliest deadline of a waiter, nil if unknown.
local fence, is_fence_kept, tombstones_exist, next_server_timeout, first_deadline
-- Of the whole call, outside a cluster: the last token, what the registry gets (when a lock is due, or false), and what
-- the indexes by type get (whether it is held).
local last_token, is_token_new, due_times, type_changes
-- The arguments of an acquire.
local request, wanted_mode, ttl, claimed, remembers, wait, served_by

local function begin_call(node_id, keys)
  if not format then
    format, floor, sub, match, max, min = string.format, math.floor, string.sub, string.match, math.max, math.min
  end
  call = redis.call
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
  digits_of, iso_of = {}, {}
  now_text = digits(now)
  last_token, is_token_new, due_times, type_changes = nil, false, {}, {}
  if node_id == '' then
    REGISTRY, TOKEN, PUBLISH = keys[1], keys[2], 'PUBLISH'
  else
    REGISTRY, TOKEN, PUBLISH = nil, nil, 'SPUBLISH'
  end
end

local function begin_step(keys, first, args, before, last)
  LOCK, QUEUE, WAITING, DEADLINES, FENCE, ENDED = keys[first], keys[first + 1], keys[first + 2], keys[first + 3], keys[first + 4], keys[first + 5]
  BY_AGENT, WAITFOR, BY_TYPE = keys[first + 6], keys[first + 7], keys[first + 8]
  ARGV, at, last_argument = args, before, last
  command, caller, agent, holder_id, CHANNEL = args[at + 1], args[at + 2], args[at + 3], args[at + 4], args[at + 5]
  -- After `ade:lock:`.
  is_task = sub(LOCK, 10, 14) == 'task:'
  holds, stored_previous, dirty, is_dirty = {}, nil, {}, false
  holder_count, mode, next_expiry, queue_length = 0, nil, nil, 0
  was_held, stored_queue_length, stored_mode, has_read_all = false, 0, nil, false
  changes, change_count, added_sharers, removed_sharers = nil, 0, nil, nil
  is_in_agent_index, is_awaited = nil, nil
  fence, is_fence_kept, tombstones_exist, next_server_timeout, first_deadline = nil, false, nil, nil, nil
end

local function set_previous(digest, hold, text)
  if not text then return end
  hold.previous = decode_hold(text)
  stored_previous = stored_previous or {}
  stored_previous[digest] = true
end

-- The names of the caller's hold are not read: the caller knows them. Its purpose is read on demand.
local function load_lock()
  local fields = call('HMGET', LOCK, 'n', 'mode', 'next', 'queue_length', 'h:' .. caller, 'r:' .. caller, 'b:' .. caller)
  if not fields[1] then
    holds[caller] = false
    if call('EXISTS', QUEUE, ENDED) == 0 then tombstones_exist = false else queue_length = call('ZCARD', QUEUE) end
    return
  end
  was_held, holder_count, mode, next_expiry = true, tonumber(fields[1]), fields[2] == 'exclusive' and 'x' or 's', tonumber(fields[3])
  stored_mode, stored_queue_length = mode, tonumber(fields[4])
  if stored_queue_length > 0 then queue_length = call('ZCARD', QUEUE) end
  if fields[5] then
    local hold = decode_numbers(fields[5])
    hold.digest, hold.requests, hold.agent, hold.holder = caller, fields[6], agent, holder_id
    set_previous(caller, hold, fields[7])
    holds[caller] = hold
  else
    holds[caller] = false
  end
end

local function hold_from_fields(digest, numbers, requests, names, previous)
  local hold = decode_hold_fields(numbers, requests, names)
  hold.digest = digest
  set_previous(digest, hold, previous)
  holds[digest] = hold
end

local function hold_of(digest)
  local hold = holds[digest]
  if hold == nil then
    local fields = call('HMGET', LOCK, 'h:' .. digest, 'r:' .. digest, 'a:' .. digest, 'b:' .. digest)
    if fields[1] then hold_from_fields(digest, unpack(fields, 1, 4)) else holds[digest] = false end
    hold = holds[digest]
  end
  return hold or nil
end

local function read_all()
  if has_read_all then return end
  has_read_all = true
  local fields, found = was_held and call('HGETALL', LOCK) or {}, {}
  for i = 1, #fields, 2 do found[fields[i]] = fields[i + 1] end
  for field, text in pairs(found) do
    local digest = sub(field, 3)
    if sub(field, 1, 2) == 'h:' and holds[digest] == nil then
      hold_from_fields(digest, text, found['r:' .. digest], found['a:' .. digest], found['b:' .. digest])
    end
  end
end

local function encode_names(hold)
  if not hold.purpose then decode_names(hold, call('HGET', LOCK, 'a:' .. hold.digest)) end
  return #hold.agent .. ' ' .. #hold.holder .. ' ' .. hold.agent .. hold.holder .. hold.purpose
end

local function encode_hold(hold)
  return encode_numbers(hold) .. ' ' .. hold.requests .. ' ' .. encode_names(hold)
end

local function mark_dirty(hold)
  hold.numbers = nil
  dirty[hold.digest] = true
  is_dirty = true
end

local function lower_next_expiry(time)
  if not next_expiry or time < next_expiry then next_expiry = time end
end

-- Entries of the `holders` field, which lists the holders of a shared lock.
local function note_sharer(list, hold)
  list = list or {}
  list[#list + 1] = '{"agent_id":' .. cjson.encode(hold.agent) .. ',"acquired_at":"' .. iso(tonumber(hold.acquired)) .. '"}'
  return list
end

local function load_fence()
  if not fence then
    local fields = call('HMGET', FENCE, 'token', 'score', 'kept')
    fence = { token = tonumber(fields[1] or 0), score = tonumber(fields[2] or 0), renewed_at = tonumber(fields[3] or 0) }
  end
  return fence
end

-- The TTL of the fence is renewed only now and then, not with every write. On a cluster it keeps the last token for a day;
-- elsewhere only what waiters need.
local function write_fence(...)
  local renewed_at = load_fence().renewed_at
  call('HSET', FENCE, ...)
  if is_fence_kept then return end
  is_fence_kept = true
  local ttl_ms = TOKEN and MIN_QUEUE_TTL_MS or FENCE_TTL_MS
  if renewed_at + ttl_ms * 40 <= now then
    call('HSET', FENCE, 'kept', now_text)
    call('PEXPIRE', FENCE, ttl_ms + ttl_ms / 25)
  end
end

local function next_score()
  local loaded = load_fence()
  loaded.score = max(loaded.score + 1 / 2048, now / 1000)
  loaded.is_score_new = true
  return loaded.score
end

-- The token of a grant. On a cluster it follows the last one of this lock, elsewhere the last one of all locks.
local function next_token()
  local last
  if TOKEN then last = last_token or tonumber(call('GET', TOKEN) or 0) else last = load_fence().token end
  local token = min(max(last + 1, now), 9007199254740991)
  if TOKEN then last_token, is_token_new = token, true else fence.token, fence.is_token_new = token, true end
  return digits(token)
end

-- Tombstones of ended requests: a ring buffer of request keys in order of their end, plus one field per request with
-- its reason.
local function has_tombstones()
  if tombstones_exist == nil then tombstones_exist = call('EXISTS', ENDED) == 1 end
  return tombstones_exist
end

local function tombstone_reason(ended)
  if not has_tombstones() then return nil end
  local found = call('HGET', ENDED, ended)
  if not found then return nil end
  local expiry, reason = match(found, '^(%d+) (.*)$')
  return tonumber(expiry) > now and reason or nil
end

local NO_TOMBSTONE = { timed_out = true, refused = true, server_silent = true, hung_up = true }
local function add_tombstone(ended, reason)
  if NO_TOMBSTONE[reason] then return end
  local bounds = call('HMGET', ENDED, 'head', 'tail')
  local head, tail = tonumber(bounds[1] or 1), tonumber(bounds[2] or 0) + 1
  for _ = 1, BATCH_SIZE do
    if head >= tail then break end
    local expiry, oldest = match(call('HGET', ENDED, '#' .. head), '^(%d+) (.*)$')
    if tail - head < MAX_TOMBSTONES and tonumber(expiry) > now then break end
    local stored = call('HGET', ENDED, oldest)
    if stored and sub(stored, 1, #expiry + 1) == expiry .. ' ' then call('HDEL', ENDED, '#' .. head, oldest)
    else call('HDEL', ENDED, '#' .. head) end
    head = head + 1
  end
  local expiry = digits(now + TOMBSTONE_TTL_MS * 1000)
  call('HSET', ENDED, 'head', head, 'tail', tail, '#' .. tail, expiry .. ' ' .. ended, ended, expiry .. ' ' .. reason)
  call('PEXPIRE', ENDED, TOMBSTONE_TTL_MS)
  tombstones_exist = true
end

local function add_tombstones(requests, reason)
  for ended in requests:gmatch('%x+') do add_tombstone(ended, reason) end
end

-- A request that holds or waits again has no tombstone.
local function remove_tombstones(requests)
  if not has_tombstones() then return end
  for ended in requests:gmatch('%x+') do call('HDEL', ENDED, ended) end
end

local function reason_code(reason) return match(reason, '^%S+') end

-- Notes a change for the reply: of the caller as text, of others with their names. `is_last` says whether it was the last
-- wait or hold of its agent.
local function record_change(kind, digest, agent_id, holder, is_last, details)
  local text = kind .. (is_last and ' 1' or ' 0') .. (details or '')
  change_count = change_count + 1
  changes = changes or {}
  changes[change_count] = digest == caller and '+' .. text or { text, agent_id, holder }
  if agent_id ~= agent then return end
  if kind == 'granted' then
    is_in_agent_index = true
    if is_last then is_awaited = false end
  elseif kind == 'hold_ended' then
    if is_last then is_in_agent_index = false end
  elseif kind == 'wait_ended' then
    if is_last then is_awaited = false end
  elseif kind == 'queued' then
    is_awaited = true
  end
end

local function publish(message) call(PUBLISH, CHANNEL, message) end
