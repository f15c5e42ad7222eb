-- State of one lock: read on demand, changed in memory, and written back once at the end of a step.
--
-- The files in this folder form one library of Redis functions. It implements the lock state machine of the `domain`
-- crate a second time: the same commands at the same times must give the same replies and the same state. The
-- differential tests compare both.
--
-- A call carries one step on a cluster, and the waiting steps of a server elsewhere. It touches only the keys it was
-- given, and outside a cluster the indexes of agents whose waits end. It takes the time only from TIME, once. Tokens are
-- handled as strings of digits because Lua would lose precision when formatting them as numbers. Functions are created
-- once, when the library is loaded; `begin_call` and `begin_step` initialise all local state, so only buffers and caches
-- of texts survive a call.
--
-- Keys: outside a cluster first registry and token, which all steps share; then for each step lock, queue, waiting,
-- deadlines, fence, ended; outside a cluster also by agent, waitfor, by type.
-- Arguments: node id; then for each step their number (negative: skip it unless the step before it succeeded), command,
-- holder digest, agent id, holder id, channel, and those of the command. The fields of every key are documented in encoding.rs.

-- Lua's standard libraries are not accessible while a library loads; the first call binds them.
local format, floor, sub, match, find, max, min
local call, PUBLISH, REGISTRY, TOKEN, now, now_text
local ARGV, at, last_argument
local LOCK, QUEUE, WAITING, DEADLINES, FENCE, ENDED, BY_AGENT, WAITFOR, BY_TYPE
local command, caller, agent, holder_id, CHANNEL, is_task

-- Texts of numbers and times: the steps of a call have many in common, and Redis formats the numbers it gets slowly.
local digits_of, iso_of
local small_digits = {}
local function digits(number)
  local texts = number < 1000 and small_digits or digits_of
  local text = texts[number]
  if not text then
    text = format('%.0f', number)
    texts[number] = text
  end
  return text
end

-- A time in microseconds as Unix seconds with milliseconds.
local function seconds(text) return sub(text, 1, -7) .. '.' .. sub(text, -6, -4) end

-- RFC 3339 with microseconds.
local dates = {}
local function iso(micros)
  local known = iso_of[micros]
  if known then return known end
  local second = floor(micros / 1000000)
  local day = floor(second / 86400)
  if not dates[day] then
    local z = day + 719468
    local era = floor(z / 146097)
    local of_era = z - era * 146097
    local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
    local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
    local m = floor((5 * of_year + 2) / 153)
    local month = m < 10 and m + 3 or m - 9
    year = year + era * 400 + (month <= 2 and 1 or 0)
    dates = { [day] = format('%04d-%02d-%02d', year, month, of_year - floor((153 * m + 2) / 5) + 1) }
  end
  local minute = floor(second / 60)
  local text = format('%sT%02d:%02d:%02d.%06dZ', dates[day], floor(minute / 60) % 24, minute % 60, second % 60, micros - second * 1000000)
  iso_of[micros] = text
  return text
end

-- A hold is encoded as numbers, then its request keys, then agent id, holder id (empty if equal to the agent id) and
-- purpose, delimited by their lengths. The lock stores these three parts as separate fields because Redis stores short
-- fields compactly. `numbers` caches the text of a hold until it changes. `claimed` is 0, 1, or 2 if the lease started with
-- the promotion and only the server that sent the command, which a field of its own names, can have reported it.
local function encode_numbers(hold)
  local text = hold.numbers
  if not text then
    text = hold.mode .. ' ' .. hold.token .. ' ' .. hold.acquired .. ' ' .. digits(hold.expires) .. ' ' .. hold.claimed .. ' '
      .. hold.leave_tombstone .. ' ' .. hold.priority .. ' ' .. digits(hold.heartbeats)
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

local function decode_hold(text)
  local numbers, requests, names = match(text, '^(%a %d+ %d+ %d+ %d %d %-?%d+ %d+) ([%x,]+) (.*)$')
  local hold = decode_numbers(numbers)
  hold.requests = requests
  decode_names(hold, names)
  return hold
end

-- Holds by holder digest, read on demand; `false` if absent. `previous` is the shared hold that an unclaimed upgrade replaces.
local holds, dirty, is_dirty
local holder_count, mode, queue_length
local was_held, stored_queue_length, stored_mode, has_read_all
local changes, change_count, added_sharers, removed_sharers
-- Lower bounds: no lease ends before the first, no wait times out before the second; nil if unknown.
local next_expiry, next_deadline, stored_deadline
-- Last token and queue score of the lock, with the fields that change; whether there are tombstones; the earliest time at
-- which a server times out unless it sends a heartbeat.
local fence, fence_changes, tombstones_exist, next_server_timeout
-- Of the whole call: the last token; outside a cluster what the registry gets (when a lock is due, or false), and what
-- the indexes get (the TTL of a new entry, or false).
local last_token, is_token_new, due_times, index_changes
-- The server that answers its own waiters from the reply to a release, and the one that the step is a heartbeat of.
local answering, alive_server
-- The arguments of an acquire.
local request, wanted_mode, ttl, claimed, remembers, wait, served_by

local function begin_call(node_id, keys)
  if not format then
    format, floor, sub, match, find, max, min = string.format, math.floor, string.sub, string.match, string.find, math.max, math.min
  end
  call = redis.call
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
  digits_of, iso_of = {}, {}
  now_text = digits(now)
  last_token, is_token_new, due_times, index_changes = nil, false, {}, {}
  REGISTRY, TOKEN, PUBLISH = nil, nil, 'SPUBLISH'
  if node_id == '' then REGISTRY, TOKEN, PUBLISH = keys[1], keys[2], 'PUBLISH' end
end

local function begin_step(keys, first, args, before, last)
  QUEUE, WAITING, DEADLINES, FENCE, ENDED = keys[first + 1], keys[first + 2], keys[first + 3], keys[first + 4], keys[first + 5]
  BY_AGENT, WAITFOR, BY_TYPE = keys[first + 6], keys[first + 7], keys[first + 8]
  ARGV, at, last_argument = args, before, last
  command, caller, agent, holder_id, CHANNEL = args[at + 1], args[at + 2], args[at + 3], args[at + 4], args[at + 5]
  holds, dirty, is_dirty = {}, {}, false
  holder_count, mode, queue_length = 0, nil, 0
  was_held, stored_queue_length, stored_mode, has_read_all = false, 0, nil, false
  changes, change_count, added_sharers, removed_sharers = nil, 0, nil, nil
  next_expiry, next_deadline, stored_deadline = nil, nil, nil
  fence, fence_changes, tombstones_exist, next_server_timeout, answering, alive_server = nil, nil, nil, nil, nil, nil
end

-- Only an unclaimed hold can have one.
local function read_previous(hold)
  local text = hold.claimed == '0' and call('HGET', LOCK, 'b:' .. hold.digest)
  if text then hold.previous, hold.had_previous = decode_hold(text), true end
end

-- The names of the caller's hold are not read: the caller knows them. Its purpose is read on demand.
local function load_lock()
  holds[caller] = false
  local fields = call('HMGET', LOCK, 'n', 'mode', 'next', 'queue_length', 'h:' .. caller, 'r:' .. caller)
  if not fields[1] then
    queue_length = call('ZCARD', QUEUE)
    return
  end
  was_held, holder_count, mode = true, tonumber(fields[1]), fields[2] == 'exclusive' and 'x' or 's'
  stored_mode, stored_queue_length, next_expiry = mode, tonumber(fields[4]), tonumber(fields[3])
  if stored_queue_length > 0 then
    queue_length = call('ZCARD', QUEUE)
    local expiry, deadline = match(fields[3], '^(%d+) (%d+)$')
    next_expiry, next_deadline, stored_deadline = tonumber(expiry), tonumber(deadline), tonumber(deadline)
  end
  if not fields[5] then return end
  local hold = decode_numbers(fields[5])
  hold.digest, hold.requests, hold.agent, hold.holder = caller, fields[6], agent, holder_id
  read_previous(hold)
  holds[caller], has_read_all = hold, holder_count == 1
end

local function hold_from_fields(digest, numbers, requests, names)
  local hold = decode_hold(numbers .. ' ' .. requests .. ' ' .. names)
  hold.digest = digest
  read_previous(hold)
  holds[digest] = hold
  return hold
end

local function hold_of(digest)
  local hold = holds[digest]
  if hold == nil and was_held and not has_read_all then
    local fields = call('HMGET', LOCK, 'h:' .. digest, 'r:' .. digest, 'a:' .. digest)
    hold = fields[1] and hold_from_fields(digest, fields[1], fields[2], fields[3]) or false
    holds[digest] = hold
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
      hold_from_fields(digest, text, found['r:' .. digest], found['a:' .. digest])
    end
  end
end

local function encode_names(hold)
  if not hold.purpose then decode_names(hold, call('HGET', LOCK, 'a:' .. hold.digest)) end
  return digits(#hold.agent) .. ' ' .. digits(#hold.holder) .. ' ' .. hold.agent .. hold.holder .. hold.purpose
end

local function encode_hold(hold)
  return encode_numbers(hold) .. ' ' .. hold.requests .. ' ' .. encode_names(hold)
end

local function mark_dirty(hold)
  hold.numbers = nil
  dirty[hold.digest] = hold.had_previous and 'had_previous' or dirty[hold.digest] or true
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
    local fields = call('HMGET', FENCE, 'token', 'score', 'kept', 'crowd')
    fence = { token = tonumber(fields[1] or 0), score = tonumber(fields[2] or 0), renewed_at = tonumber(fields[3] or 0), crowd = fields[4] }
  end
  return fence
end

local function set_fence(field, value)
  fence_changes = fence_changes or {}
  fence_changes[#fence_changes + 1] = field
  fence_changes[#fence_changes + 1] = value
end

-- Its TTL is renewed only now and then. On a cluster the fence keeps the last token for a day, elsewhere what waiters need.
local function write_fence()
  if not TOKEN and is_token_new then set_fence('token', digits(last_token)) end
  if not fence_changes then return end
  local ttl_ms = TOKEN and MIN_QUEUE_TTL_MS or FENCE_TTL_MS
  local is_renewal = load_fence().renewed_at + ttl_ms * 40 <= now
  if is_renewal then set_fence('kept', now_text) end
  call('HSET', FENCE, unpack(fence_changes))
  if is_renewal then call('PEXPIRE', FENCE, ttl_ms + ttl_ms / 25) end
end

local function next_score()
  local loaded = load_fence()
  loaded.score = max(loaded.score + 1 / 2048, now / 1000)
  set_fence('score', format('%.17g', loaded.score))
  return loaded.score
end

-- The token of a grant. On a cluster it follows the last one of this lock, elsewhere the last one of all locks.
local function next_token()
  last_token = last_token or tonumber(TOKEN and call('GET', TOKEN) or not TOKEN and load_fence().token or 0)
  last_token, is_token_new = min(max(last_token + 1, now), 9007199254740991), true
  return digits(last_token)
end

-- Tombstones of ended requests: a ring buffer of request keys in order of their end, and a field with the reason of each.
local function has_tombstones()
  if tombstones_exist == nil then tombstones_exist = call('EXISTS', ENDED) == 1 end
  return tombstones_exist
end

local function tombstone_reason(ended)
  local found = has_tombstones() and call('HGET', ENDED, ended)
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

local function reason_code(reason) return find(reason, ' ', 1, true) and match(reason, '^%S+') or reason end

local function set_index(index, ttl_ms)
  if not index then return end
  local entries = index_changes[index]
  if entries then entries[LOCK] = ttl_ms else index_changes[index] = { [LOCK] = ttl_ms } end
end

-- Notes a change for the reply: of the caller as text, of others with their names. `is_last` says whether it was the last
-- wait or hold of its agent. Also notes what it changes in the indexes, which a cluster cannot reach: those of the caller's
-- agent, or of the agent of a waiter, which names them. The sender of the command updates those of other agents.
local function record_change(kind, digest, agent_id, holder, is_last, details, waiter)
  local text = kind .. (is_last and ' 1' or ' 0') .. (details or '')
  change_count = change_count + 1
  changes = changes or {}
  changes[change_count] = digest == caller and '+' .. text or { text, agent_id, holder }
  if not REGISTRY then return end
  local held, awaited = waiter and waiter.held_index, waiter and waiter.wait_index
  if agent_id == agent then held, awaited = BY_AGENT, WAITFOR end
  if kind == 'granted' or kind == 'promoted' then set_index(held, INDEX_TTL_MS) elseif is_last and kind == 'hold_ended' then set_index(held, false) end
  if is_last and waiter then set_index(awaited, false) end
end

local function publish(message) call(PUBLISH, CHANNEL, message) end
