-- The commands, each equivalent to its counterpart in the `domain` crate, and `apply_step`, which runs one: it writes the
-- state at the end, and builds the reply.

-- By name; a command without a function only does what is due.
local COMMANDS = {}

local function first_request(hold) return match(hold.requests, '^%x+') end
local function if_shared_by(wanted, hold) return hold and find(hold.requests, wanted, 1, true) and hold or nil end

-- The hold that a request shares, or the shared hold under an upgrade that is not claimed yet.
local function hold_of_request(wanted)
  local hold = hold_of(caller)
  return if_shared_by(wanted, hold) or hold and if_shared_by(wanted, hold.previous)
end

local function start_lease(hold, expires)
  hold.claimed, hold.expires, hold.previous = '1', expires, nil
  lower_next_expiry(expires)
  mark_dirty(hold)
end

local function waiting_reply(waiter)
  return { 'waiting', call('ZRANK', QUEUE, waiter.member) + 1, digits(waiter.deadline) }
end

local function grant_to_caller(previous)
  local lease = claimed == '1' and ttl or claim_timeout_ms(not wait or served_by)
  local hold = {
    digest = caller, mode = wanted_mode, acquired = now_text, expires = now + lease * 1000, claimed = claimed, leave_tombstone = remembers,
    priority = ARGV[at + 11], heartbeats = 0, requests = request, agent = agent, holder = holder_id, purpose = ARGV[at + 12],
    previous = claimed == '0' and previous or nil,
  }
  grant(hold)
  return { 'held', encode_numbers(hold) }
end

-- The holder has the lock in the same or a stronger mode: the request shares that grant, and extends it if needed.
local function join_hold(hold)
  local _, commas = hold.requests:gsub(',', '')
  if commas + 1 >= MAX_REQUESTS_PER_HOLD then
    local oldest = first_request(hold)
    hold.requests = sub(hold.requests, #oldest + 2)
    add_tombstone(oldest, 'superseded')
  end
  hold.requests = hold.requests .. ',' .. request
  hold.has_new_requests = true
  if hold.claimed == '2' then hold.claimed = '1' end
  if remembers == '1' then hold.leave_tombstone = '1' end
  mark_dirty(hold)
  local expires = now + ttl * 1000
  if claimed == '1' and (hold.claimed == '0' or expires > hold.expires) then
    start_lease(hold, max(expires, hold.expires))
  end
  return { 'held', encode_numbers(hold) }
end

-- A repeated request keeps its position; it may come through another server or with a later deadline.
local function refresh_wait(waiter)
  if wait then
    local deadline = now + wait * 1000
    local is_longer = deadline > waiter.deadline + MIN_WAIT_EXTENSION_MS * 1000
    if is_longer or waiter.served_by ~= served_by then
      waiter.served_by = served_by
      if is_longer then waiter.deadline = deadline end
      requeue(waiter)
      if is_longer and REGISTRY then set_index(WAITFOR, max(MIN_QUEUE_TTL_MS, wait + 5000)) end
      if served_by then record_server_heartbeat(served_by) end
    end
  end
  return waiting_reply(waiter)
end

-- Without a score the caller goes to the end of the queue.
local function enqueue_caller(score)
  if served_by then record_server_heartbeat(served_by) end
  local waiter = {
    who = caller, fixed_fields = ARGV[at + 15], requested_at = iso(now), deadline = now + wait * 1000, served_by = served_by,
    upgrade = hold_of(caller) ~= nil or nil, score = score or next_score(), agent_id = agent,
  }
  if has_tombstones() then call('HDEL', ENDED, request) end
  enqueue(waiter)
  -- An agent that holds nothing and waits for nothing else closes no cycle.
  local is_alone = REGISTRY and not index_changes[BY_AGENT] and not index_changes[WAITFOR] and call('EXISTS', BY_AGENT, WAITFOR) == 0
  record_change('queued', caller, agent, nil, is_alone)
  if REGISTRY then set_index(WAITFOR, max(MIN_QUEUE_TTL_MS, wait + 5000)) end
  publish('queued:' .. agent)
  if score or waiter.upgrade then return waiting_reply(waiter) end
  return { 'waiting', queue_length, digits(waiter.deadline) }
end

local function refuse_queue_full(window_start, refusals, open_until)
  if refusals == 0 or window_start + BREAKER_WINDOW_MS * 1000 <= now then window_start, refusals = now, 0 end
  refusals = refusals + 1
  if refusals >= BREAKER_THRESHOLD then refusals, open_until = 0, now + BREAKER_OPEN_MS * 1000 end
  set_fence('crowd', digits(window_start) .. ' ' .. refusals .. ' ' .. digits(open_until))
  record_change('queue_full', caller, agent)
  return { 'queue_full', queue_length }
end

local function refuse_held()
  local reply = { 'refused', queue_length }
  for _, hold in ipairs(sorted_holds(function() return true end, MAX_REFUSAL_HOLDERS + 1)) do
    if hold.digest ~= caller and #reply < MAX_REFUSAL_HOLDERS + 2 then reply[#reply + 1] = encode_hold(hold) end
  end
  return reply
end

function COMMANDS.acquire()
  request, wanted_mode, ttl, claimed, remembers = ARGV[at + 6], ARGV[at + 7], tonumber(ARGV[at + 8]), ARGV[at + 9], ARGV[at + 10]
  wait, served_by = nil, nil
  if last_argument > at + 12 then
    wait, served_by = tonumber(ARGV[at + 13]), ARGV[at + 14]
    if served_by == '' then served_by = nil end
  end
  local ended = tombstone_reason(request)
  if ended then return { 'ended', ended } end
  local hold = hold_of(caller)
  if hold then
    local won = hold_of_request(request)
    if won then
      -- If a server holds the request open, the lease starts with this reply, unless the request waits for other locks.
      local starts_lease = claimed == '1' and served_by and hold.claimed == '0' or hold.claimed == '2'
      if starts_lease and won == hold then
        start_lease(hold, now + ttl * 1000)
        record_change('claimed', caller, agent)
      end
      return { 'held', encode_numbers(won) }
    end
    if hold.mode == 'x' or wanted_mode == 's' then return join_hold(hold) end
    if can_hold(wanted_mode, caller) then return grant_to_caller(hold) end
  end
  local waiter = waiter_of(caller)
  if waiter then
    if waiter.request == request then return refresh_wait(waiter) end
    -- A holder has one wait per lock: a newer request replaces the older one, and moves to the end if its mode differs.
    if wait then
      remove_waiter(waiter, 'superseded')
      return enqueue_caller(waiter.mode == wanted_mode and waiter.score or nil)
    end
  end
  if queue_length == 0 and can_hold(wanted_mode, caller) then return grant_to_caller(nil) end
  local window_start, refusals, open_until = match(load_fence().crowd or '0 0 0', '(%d+) (%d+) (%d+)')
  if tonumber(open_until) > now then return { 'circuit_open', open_until } end
  if not wait then return refuse_held() end
  if queue_length >= MAX_WAITERS then return refuse_queue_full(tonumber(window_start), tonumber(refusals), tonumber(open_until)) end
  return enqueue_caller()
end

-- Finds a hold by token. Until an upgrade is claimed, its holder only knows the token of the shared hold.
local function hold_with_token(token)
  local hold = hold_of(caller)
  local previous = hold and hold.previous
  if hold and hold.token ~= token then hold = previous and previous.expires > now and previous.token == token and previous end
  -- A holder that knows its token needs no report.
  if hold and hold.claimed == '2' then hold.claimed, hold.numbers = '1', nil end
  return hold
end

local function updated(hold) return hold and { 'updated', encode_numbers(hold) } or { 'not_found' } end

function COMMANDS.claim()
  local wanted, expires = ARGV[at + 6], now + ARGV[at + 7] * 1000
  local hold = if_shared_by(wanted, hold_of(caller))
  -- A repeated claim must not restart its lease; a request that joined an older grant may need a longer one.
  if hold and not (hold.claimed == '1' and (first_request(hold) == wanted or expires <= hold.expires)) then
    start_lease(hold, expires)
    record_change('claimed', caller, agent)
  end
  return updated(hold)
end

function COMMANDS.extend_unclaimed()
  local hold, expires = if_shared_by(ARGV[at + 6], hold_of(caller)), now + ARGV[at + 7] * 1000
  if hold and expires > hold.expires then
    hold.expires, hold.claimed = expires, hold.claimed == '2' and '1' or hold.claimed
    mark_dirty(hold)
  end
  -- The index may have lost it to a late update by another server, and deadlock searches need it.
  if hold and REGISTRY then set_index(BY_AGENT, INDEX_TTL_MS) end
  return updated(hold)
end

function COMMANDS.extend()
  local hold = hold_with_token(ARGV[at + 6])
  if not hold then return { 'not_found' } end
  hold.expires, hold.heartbeats, hold.numbers = max(now + ARGV[at + 7] * 1000, hold.expires), hold.heartbeats + 1, nil
  -- It may be the shared hold under the caller's upgrade.
  mark_dirty(holds[caller])
  if REGISTRY then set_index(BY_AGENT, INDEX_TTL_MS) end
  return updated(hold)
end

function COMMANDS.release()
  if not hold_with_token(ARGV[at + 6]) then return { 'not_found' } end
  end_hold(holds[caller], 'released')
  return { 'done' }
end

-- A lease that started with its promotion, and that no caller got: by its token, or by its request and the server that started it.
function COMMANDS.return_unreported()
  local hold, wanted = hold_of(caller), ARGV[at + 6]
  local is_meant = hold and hold.claimed == '2' and (hold.token == wanted
    or if_shared_by(wanted, hold) and call('HGET', LOCK, 's:' .. caller) == ARGV[at + 7])
  if not is_meant then return { 'not_found' } end
  end_hold(hold, 'hung_up')
  return { 'done' }
end

function COMMANDS.downgrade()
  local hold = hold_with_token(ARGV[at + 6])
  if hold and hold.mode == 'x' then
    hold.mode, mode, hold.previous = 's', 's', nil
    added_sharers = note_sharer(added_sharers, hold)
    mark_dirty(hold)
  end
  return updated(hold)
end

function COMMANDS.verify()
  read_all()
  for _, hold in pairs(holds) do
    for _, one in ipairs(hold and { hold, hold.previous } or {}) do
      if one.token == ARGV[at + 6] and one.expires > now then return { 'valid', encode_hold(one) } end
    end
  end
  return { 'not_found' }
end

function COMMANDS.query()
  local wanted = ARGV[at + 6]
  local ended = tombstone_reason(wanted)
  if ended then return { 'ended', ended } end
  local hold = hold_of_request(wanted)
  if hold then return { 'held', encode_numbers(hold) } end
  local waiter = waiter_of(caller)
  if waiter and waiter.request == wanted then return waiting_reply(waiter) end
  return { 'not_found' }
end

function COMMANDS.cancel()
  local wanted, reason, include_claimed = ARGV[at + 6], ARGV[at + 7], ARGV[at + 8] == '1'
  local waiter = waiter_of(caller)
  if waiter and waiter.request ~= wanted then waiter = nil end
  local hold = not waiter and if_shared_by(wanted, hold_of(caller))
  if waiter then
    remove_waiter(waiter, reason)
  elseif hold then
    if hold.requests:find(',', 1, true) then
      hold.requests = (',' .. hold.requests):gsub(',' .. wanted, '', 1):gsub('^,', '')
      hold.has_new_requests = true
      mark_dirty(hold)
    elseif hold.claimed == '0' or include_claimed or reason == 'cancelled' then
      end_hold(hold, reason)
    end
  end
  if not tombstone_reason(wanted) then add_tombstone(wanted, reason) end
  return { 'done' }
end

-- The caller disconnected from one server; another server may hold its request open by now.
function COMMANDS.disconnect()
  local waiter = waiter_of(caller)
  if waiter and waiter.request == ARGV[at + 6] and waiter.served_by ~= ARGV[at + 9] then return { 'done' } end
  return COMMANDS.cancel()
end

COMMANDS['break'] = function()
  local reply = { 'broken' }
  for _, hold in ipairs(sorted_holds(function() return true end, holder_count)) do
    reply[#reply + 1] = encode_hold(hold)
    end_hold(hold, 'broken')
  end
  return reply
end

function COMMANDS.abort()
  local expected, reason = ARGV[at + 6], ARGV[at + 7]
  local waiter = waiter_of(caller)
  if expected ~= '' and (not waiter or waiter.request ~= expected) then return { 'not_found' } end
  if waiter then remove_waiter(waiter, reason) end
  local hold = hold_of(caller)
  if hold then
    end_hold(hold, reason)
    if hold.leave_tombstone == '0' then add_tombstones(hold.requests, reason) end
  end
  return { 'done' }
end

-- Updates the `holders` field, which is informational and lists at most MAX_LISTED_SHARERS.
local function update_sharers(list)
  list = list == '[]' and '' or sub(list, 2, -2) .. ','
  for _, entry in ipairs(removed_sharers or {}) do
    local from, to = find(list, entry .. ',', 1, true)
    if from then list = sub(list, 1, from - 1) .. sub(list, to + 1) end
  end
  for _, entry in ipairs(holder_count <= MAX_LISTED_SHARERS and added_sharers or {}) do list = list .. entry .. ',' end
  return '[' .. sub(list, 1, -2) .. ']'
end

-- The arguments of HSET. The buffer is kept, because tables are most of the garbage.
local fields, field_count = {}, 0
local function set(field, value)
  fields[field_count + 1], fields[field_count + 2] = field, value
  field_count = field_count + 2
end

local function encode_bounds()
  return digits(next_expiry) .. (queue_length > 0 and ' ' .. digits(earliest_deadline()) or '')
end

-- Writes the changed fields of the lock hash.
local function write_lock()
  if holder_count == 0 then
    if was_held then call('DEL', LOCK) end
    return
  end
  field_count = 0
  set('n', digits(holder_count))
  set('queue_length', digits(queue_length))
  local removed, latest_expiry = {}, 0
  for digest, state in pairs(dirty) do
    local hold = holds[digest]
    if hold then
      set('h:' .. digest, encode_numbers(hold))
      if hold.is_new or hold.has_new_requests then set('r:' .. digest, hold.requests) end
      if hold.is_new then set('a:' .. digest, encode_names(hold)) end
      if hold.is_new and hold.claimed == '2' then set('s:' .. digest, answering) end
      latest_expiry = max(latest_expiry, hold.expires, hold.previous and hold.previous.expires or 0)
      if holder_count == 1 then next_expiry = hold.expires end
      if is_task then set('heartbeat_count', digits(hold.heartbeats)) end
      if hold.is_new and (mode == 'x' or holder_count == 1) then
        set('acquired_at', iso(tonumber(hold.acquired)))
        set('purpose', hold.purpose)
        if mode == 'x' then set(is_task and 'holder_agent_id' or 'exclusive_holder', hold.agent) end
      end
    else
      for _, field in ipairs({ 'h:', 'r:', 'a:', 's:' }) do removed[#removed + 1] = field .. digest end
    end
    if hold and hold.previous then
      set('b:' .. digest, encode_hold(hold.previous))
    elseif state == 'had_previous' then
      removed[#removed + 1] = 'b:' .. digest
    end
  end
  set('next', encode_bounds())
  if latest_expiry > 0 then set('expires_at', iso(latest_expiry)) end
  if mode ~= stored_mode then
    set('mode', mode == 'x' and 'exclusive' or 'shared')
    removed[#removed + 1] = mode == 'x' and 'holders' or 'exclusive_holder'
  end
  if mode == 's' and (added_sharers or removed_sharers) then
    set('holders', update_sharers(stored_mode == 's' and call('HGET', LOCK, 'holders') or '[]'))
  end
  call('HSET', LOCK, unpack(fields, 1, field_count))
  for from = 1, was_held and #removed or 0, 1000 do call('HDEL', LOCK, unpack(removed, from, min(from + 999, #removed))) end
  -- Other holders may have a later expiry.
  if latest_expiry > 0 then
    call('PEXPIRE', LOCK, digits(floor((latest_expiry - now) / 1000) + EXPIRY_GRACE_MS), unpack(was_held and holder_count > 1 and { 'GT' } or {}))
  end
end

-- The earliest time at which something can be due, in Unix seconds; nil if the lock is idle.
local function next_due()
  if holder_count == 0 and queue_length == 0 then return nil end
  local due = next_expiry or now + VISIT_INTERVAL_MS * 1000
  if queue_length > 0 then
    due = min(due, earliest_deadline(), now + VISIT_INTERVAL_MS * 1000, next_server_timeout or due)
  end
  return seconds(digits(due))
end

local function apply_step()
  load_lock()
  if command == 'server_heartbeat' then record_server_heartbeat(ARGV[at + 6])
  elseif command == 'release' and ARGV[at + 7] ~= '' then answering = ARGV[at + 7] end
  expire_due()
  if command == 'sweep' then expire_silent_servers() end
  promote()
  local hold, run = hold_of(caller), COMMANDS[command]
  if hold then end_if_expired(hold) end
  local outcome = run and run() or { 'done' }
  promote()

  if is_dirty then
    write_lock()
    if REGISTRY and not is_task and (was_held or holder_count > 0) then set_index(BY_TYPE, holder_count > 0 and INDEX_TTL_MS) end
  elseif was_held and (queue_length ~= stored_queue_length or next_deadline ~= stored_deadline) then
    call('HSET', LOCK, 'queue_length', digits(queue_length), 'next', encode_bounds())
  end
  write_fence()
  if command == 'sweep' then
    -- Only the sweep postpones the next visit. Otherwise a busy lock would never be visited.
    local due_at = next_due() or ''
    outcome = { 'swept', due_at, queue_length }
    if REGISTRY then
      due_times[LOCK] = nil
      if due_at == '' then call('ZREM', REGISTRY, LOCK) else call('ZADD', REGISTRY, due_at, LOCK) end
    end
  elseif REGISTRY and (changes or is_dirty and command ~= 'extend') then
    local due_at, noted = next_due(), due_times[LOCK]
    -- All times have the same number of digits.
    due_times[LOCK] = due_at and (noted and noted < due_at and noted or due_at) or false
  end
  for i = 1, change_count do outcome[#outcome + 1] = changes[i] end
  return outcome
end
