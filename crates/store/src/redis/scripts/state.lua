-- State of one lock: reading it, writing it back once at the end, and what follows from its changes.
--
-- This text and its siblings make one library of Redis functions, which is the machine of `domain` on Redis: the same answers
-- and the same state for the same commands at the same times. What differs is a bug; the differential tests look for it.
-- It touches nothing but its keys, all in one slot on a cluster; TIME is its only clock; a token is a string of digits,
-- never a number that Lua formats by itself. Functions are made once, when the library is loaded; what is local here is
-- made anew by `begin`, and nothing is remembered from one call to the next.
--
-- Keys: lock, queue, waiting, deadlines, fence, ended; outside a cluster also registry, by agent, waitfor, by type.
-- Arguments: node, command, name of the lock, digest of the holder, agent, holder id, channel, then what the command needs.

-- The libraries of Lua cannot be reached while this is loaded; the first call finds them.
local format, floor, sub, concat, max, min
local call, ARGV
local LOCK, QUEUE, WAITING, DEADLINES, FENCE, ENDED, REGISTRY, BY_AGENT, WAITFOR, BY_TYPE
local command, name, who, agent, holder_id, CHANNEL, is_task, now, now_text

local function digits(number)
  if number == now then return now_text end
  return format('%.0f', number)
end

-- RFC 3339 with microseconds. Two moments of one day share the work for its date.
local day_done, date_done
local function iso(micros)
  local seconds = floor(micros / 1000000)
  local day = floor(seconds / 86400)
  if day ~= day_done then
    local z = day + 719468
    local era = floor(z / 146097)
    local of_era = z - era * 146097
    local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
    local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
    local m = floor((5 * of_year + 2) / 153)
    local month = m < 10 and m + 3 or m - 9
    year = year + era * 400 + (month <= 2 and 1 or 0)
    date_done = format('%04d-%02d-%02dT', year, month, of_year - floor((153 * m + 2) / 5) + 1)
    day_done = day
  end
  local of_day = seconds - day * 86400
  local minute = floor(of_day / 60)
  return date_done .. format('%02d:%02d:%02d.%06dZ', floor(minute / 60), minute % 60, of_day % 60, micros - seconds * 1000000)
end

-- A hold as text: numbers, then its requests, then agent, holder (empty if it is the agent) and purpose, told apart by their
-- lengths. In the lock it stands as three fields: short ones, which Redis keeps in little memory.
local function numbers(hold)
  return concat({
    hold.mode, hold.token, digits(hold.acquired), digits(hold.expires), hold.claimed and 1 or 0, hold.remember and 1 or 0,
    hold.priority, hold.beats,
  }, ' ')
end

local function names(hold)
  return #hold.agent .. ' ' .. #hold.holder .. ' ' .. hold.agent .. hold.holder .. hold.purpose
end

local function write_hold(hold)
  return numbers(hold) .. ' ' .. hold.requests .. ' ' .. names(hold)
end

local function read_hold(text)
  local mode, token, acquired, expires, claimed, remember, priority, beats, requests, a, h, at =
    text:match('^(%a) (%d+) (%d+) (%d+) (%d) (%d) (%-?%d+) (%d+) ([%x,]+) (%d+) (%d+) ()')
  a, h = tonumber(a), tonumber(h)
  return {
    mode = mode, token = token, acquired = tonumber(acquired), expires = tonumber(expires), claimed = claimed == '1',
    remember = remember == '1', priority = priority, beats = tonumber(beats), requests = requests,
    agent = sub(text, at, at + a - 1), holder = sub(text, at + a, at + a + h - 1), purpose = sub(text, at + a + h),
  }
end

local function read_fields(of_numbers, requests, of_names)
  return read_hold(of_numbers .. ' ' .. requests .. ' ' .. of_names)
end

-- As `holders` lists those who share.
local function shown(hold)
  return '{"agent_id":' .. cjson.encode(hold.agent) .. ',"acquired_at":"' .. iso(hold.acquired) .. '"}'
end

-- Holds are read when needed, changed in memory, and written at the end. `false`: known not to be there.
local holds, befores, had_before, changed, was_changed
local count, mode, next_expiry, queued
local was_held, was_queued, was_mode, all_read
local changes, messages, listed, unlisted
-- The last token and score of this lock; whether any request is known to be over; the wish of an acquisition; when the
-- next server will have been silent for too long, unless it is heard of.
local fence, fence_touched, has_ended, wish, silent_by
-- When the first waiter gives up, as long as that is known.
local first_deadline

local function begin_time(ask)
  if not format then
    format, floor, sub, concat, max, min = string.format, math.floor, string.sub, table.concat, math.max, math.min
  end
  local clock = ask('TIME')
  now = clock[1] * 1000000 + clock[2]
  now_text = clock[1] .. sub('00000' .. clock[2], -6)
end

local function begin(keys, args)
  call, ARGV = redis.call, args
  begin_time(call)
  LOCK, QUEUE, WAITING, DEADLINES, FENCE, ENDED = keys[1], keys[2], keys[3], keys[4], keys[5], keys[6]
  REGISTRY, BY_AGENT, WAITFOR, BY_TYPE = keys[7], keys[8], keys[9], keys[10]
  command, name, who, agent, holder_id, CHANNEL = args[2], args[3], args[4], args[5], args[6], args[7]
  is_task = sub(name, 1, 5) == 'task:'
  holds, befores, had_before, changed, was_changed = {}, {}, {}, {}, false
  count, mode, next_expiry, queued = 0, nil, nil, 0
  was_held, was_queued, was_mode, all_read = false, 0, nil, false
  changes, messages, listed, unlisted = {}, {}, {}, {}
  fence, fence_touched, has_ended, wish, silent_by = nil, false, nil, nil, nil
  first_deadline = nil
end

local function read_before(other, text)
  befores[other], had_before[other] = text and read_hold(text) or false, text and true
end

local function load()
  local seen = call('HMGET', LOCK, 'n', 'mode', 'next', 'queue_length', 'h:' .. who, 'r:' .. who, 'a:' .. who, 'b:' .. who)
  if seen[1] then
    was_held, count, mode, next_expiry = true, tonumber(seen[1]), sub(seen[2], 1, 1) == 'e' and 'x' or 's', tonumber(seen[3])
    was_mode = mode
    queued = tonumber(seen[4])
    if queued > 0 then queued = call('ZCARD', QUEUE) end
  else
    queued = call('ZCARD', QUEUE)
  end
  was_queued = seen[4] and tonumber(seen[4]) or 0
  holds[who] = seen[5] and read_fields(seen[5], seen[6], seen[7]) or false
  read_before(who, seen[8])
end

local function hold_of(other)
  if holds[other] == nil then
    local seen = call('HMGET', LOCK, 'h:' .. other, 'r:' .. other, 'a:' .. other, 'b:' .. other)
    holds[other] = seen[1] and read_fields(seen[1], seen[2], seen[3]) or false
    read_before(other, seen[4])
  end
  return holds[other] or nil
end

local function read_all()
  if all_read then return end
  all_read = true
  local fields, found = was_held and call('HGETALL', LOCK) or {}, {}
  for i = 1, #fields, 2 do found[fields[i]] = fields[i + 1] end
  for field, text in pairs(found) do
    local other = sub(field, 3)
    if sub(field, 1, 2) == 'h:' and holds[other] == nil then
      holds[other] = read_fields(text, found['r:' .. other], found['a:' .. other])
      read_before(other, found['b:' .. other])
    end
  end
end

local function touch(other)
  changed[other] = true
  was_changed = true
end

local function expires_by(at)
  if not next_expiry or at < next_expiry then next_expiry = at end
end

local function last()
  if not fence then
    local seen = call('HMGET', FENCE, 'token', 'score', 'kept')
    fence = { token = tonumber(seen[1] or 0), score = tonumber(seen[2] or 0), kept = tonumber(seen[3] or 0) }
  end
  return fence
end

local function next_score()
  local fenced = last()
  fenced.score = max(fenced.score + 1 / 2048, now / 1000)
  fenced.changed = true
  return fenced.score
end

-- Requests that are over: a ring of the requests in order, and each request with its end.
local function any_ended()
  if has_ended == nil then has_ended = call('EXISTS', ENDED) == 1 end
  return has_ended
end

local function end_of(request)
  if not any_ended() then return nil end
  local found = call('HGET', ENDED, request)
  if not found then return nil end
  local at = found:find(' ', 1, true)
  if tonumber(sub(found, 1, at - 1)) <= now then return nil end
  return sub(found, at + 1)
end

local FORGOTTEN = { timed_out = true, refused = true, server_silent = true, hung_up = true }
local function remember(request, why)
  if FORGOTTEN[why] then return end
  local expiry = now + REPEAT_MS * 1000
  local ring = call('HMGET', ENDED, 'head', 'tail')
  local head, tail = tonumber(ring[1] or 1), tonumber(ring[2] or 0) + 1
  for _ = 1, BATCH do
    if head >= tail then break end
    local oldest = call('HGET', ENDED, '#' .. head)
    local at = oldest:find(' ', 1, true)
    local until_, of = sub(oldest, 1, at - 1), sub(oldest, at + 1)
    if tail - head < MAX_REPEATS and tonumber(until_) > now then break end
    local kept = call('HGET', ENDED, of)
    if kept and sub(kept, 1, at) == until_ .. ' ' then call('HDEL', ENDED, '#' .. head, of)
    else call('HDEL', ENDED, '#' .. head) end
    head = head + 1
  end
  local text = digits(expiry)
  call('HSET', ENDED, 'head', head, 'tail', tail, '#' .. tail, text .. ' ' .. request, request, text .. ' ' .. why)
  call('PEXPIRE', ENDED, REPEAT_MS)
  has_ended = true
end

local function each_request(requests, act)
  for request in requests:gmatch('%x+') do act(request) end
end

-- A request that lives again has no end any more.
local function revive(requests)
  if any_ended() then
    each_request(requests, function(request) call('HDEL', ENDED, request) end)
  end
end

local function first_word(why) return why:match('^%S+') end

local function happened(...)
  changes[#changes + 1] = { ... }
end

local function tell(message) messages[#messages + 1] = message end
