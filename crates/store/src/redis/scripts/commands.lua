-- The commands, each equivalent to its counterpart in the `domain` crate, and `apply_step`, which runs one: it writes the
-- state at the end, and builds the reply.

local function first_request(hold) return match(hold.requests, '^%x+') end
local function has_request(hold, wanted) return hold and hold.requests:find(wanted, 1, true) ~= nil end

-- The hold that a request shares, or the shared hold under an upgrade that is not claimed yet.
local function hold_of_request(wanted)
  local hold = hold_of(caller)
  if has_request(hold, wanted) then return hold end
  if hold and has_request(hold.previous, wanted) then return hold.previous end
end

local function start_lease(hold, expires)
  hold.claimed, hold.expires, hold.previous = '1', expires, nil
  lower_next_expiry(expires)
  mark_dirty(hold)
end

-- A holder that another call promoted adds its own index entry, before it asks for anything else.
local function record_claim()
  record_change('claimed', caller, agent)
  is_in_agent_index = true
  if REGISTRY and call('HEXISTS', WAITING, 'a:' .. agent) == 0 then is_awaited = false end
end

-- A request that holds a lock while it waits for another: a deadlock search must find it, and the call that promoted it may
-- have failed to add it.
local function index_unclaimed() is_in_agent_index = true end

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

-- The holder already has the lock in the same or a stronger mode: the request shares that grant, which lasts at least
-- as long as the request wants.
local function join_hold(hold)
  local _, commas = hold.requests:gsub(',', '')
  if commas + 1 >= MAX_REQUESTS_PER_HOLD then
    local oldest = first_request(hold)
    hold.requests = sub(hold.requests, #oldest + 2)
    add_tombstone(oldest, 'superseded')
  end
  hold.requests = hold.requests .. ',' .. request
  hold.has_new_requests = true
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
      dequeue(waiter)
      waiter.fixed_fields, waiter.served_by = fixed_fields_of(waiter.member), served_by
      if is_longer then waiter.deadline = deadline end
      enqueue(waiter)
      if is_longer and WAITFOR then call('PEXPIRE', WAITFOR, max(MIN_QUEUE_TTL_MS, wait + 5000)) end
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
  record_change('queued', caller, agent)
  publish('queued:' .. agent)
  if score or waiter.upgrade then return waiting_reply(waiter) end
  return { 'waiting', queue_length, digits(waiter.deadline) }
end

-- A holder has one wait per lock: a newer request replaces the older one, and moves to the end if it wants another
-- mode.
local function supersede(older)
  remove_waiter(older, 'superseded')
  local is_same_mode = (older.mode == 'exclusive' and 'x' or 's') == wanted_mode
  return enqueue_caller(is_same_mode and older.score or nil)
end

local function refuse_queue_full(window_start, refusals, open_until)
  if refusals == 0 or window_start + BREAKER_WINDOW_MS * 1000 <= now then
    window_start, refusals = now, 1
  else
    refusals = refusals + 1
  end
  if refusals >= BREAKER_THRESHOLD then refusals, open_until = 0, now + BREAKER_OPEN_MS * 1000 end
  write_fence('crowd', digits(window_start) .. ' ' .. refusals .. ' ' .. digits(open_until))
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

local function acquire()
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
    if claimed == '0' and hold.claimed == '0' then index_unclaimed() end
    local won = hold_of_request(request)
    if won then
      -- For a request that a server holds open, the lease starts with this reply, unless the request still waits for
      -- other locks.
      if claimed == '1' and served_by and won == hold and hold.claimed == '0' then
        start_lease(hold, now + ttl * 1000)
        record_claim()
      end
      return { 'held', encode_numbers(won) }
    end
    if hold.mode == 'x' or wanted_mode == 's' then return join_hold(hold) end
    if can_hold(wanted_mode, caller) then return grant_to_caller(hold) end
  end
  local waiter = waiter_of(caller)
  if waiter then
    if waiter.request == request then return refresh_wait(waiter) end
    if wait then return supersede(waiter) end
  end
  if queue_length == 0 and can_hold(wanted_mode, caller) then return grant_to_caller(nil) end
  local window_start, refusals, open_until = 0, 0, 0
  local crowd = call('HGET', FENCE, 'crowd')
  if crowd then
    window_start, refusals, open_until = match(crowd, '(%d+) (%d+) (%d+)')
    window_start, refusals, open_until = tonumber(window_start), tonumber(refusals), tonumber(open_until)
  end
  if open_until > now then return { 'circuit_open', digits(open_until) } end
  if not wait then return refuse_held() end
  if queue_length >= MAX_WAITERS then return refuse_queue_full(window_start, refusals, open_until) end
  return enqueue_caller()
end

local function hold_won_by(wanted)
  local hold = hold_of(caller)
  return has_request(hold, wanted) and hold or nil
end

-- Finds a hold by token. Until an upgrade is claimed, its holder only knows the token of the shared hold.
local function hold_with_token(token)
  local hold = hold_of(caller)
  if not hold then return nil end
  if hold.token == token then return hold end
  local previous = hold.previous
  return previous and previous.expires > now and previous.token == token and previous or nil
end

local function claim()
  local wanted = ARGV[at + 6]
  local hold = hold_won_by(wanted)
  if not hold then return { 'not_found' } end
  local expires = now + ARGV[at + 7] * 1000
  -- A repeated claim must not restart its lease; a request that joined an older grant may need a longer one.
  local is_running = hold.claimed == '1' and (first_request(hold) == wanted or expires <= hold.expires)
  if not is_running then
    start_lease(hold, expires)
    record_claim()
  end
  return { 'updated', encode_numbers(hold) }
end

local function extend_unclaimed()
  local hold = hold_won_by(ARGV[at + 6])
  if not hold then return { 'not_found' } end
  index_unclaimed()
  local expires = now + ARGV[at + 7] * 1000
  if expires > hold.expires then
    hold.expires = expires
    mark_dirty(hold)
  end
  return { 'updated', encode_numbers(hold) }
end

local function extend()
  local hold = hold_with_token(ARGV[at + 6])
  if not hold then return { 'not_found' } end
  hold.expires, hold.heartbeats, hold.numbers = max(now + ARGV[at + 7] * 1000, hold.expires), hold.heartbeats + 1, nil
  -- It may be the shared hold under the caller's upgrade.
  mark_dirty(holds[caller])
  return { 'updated', encode_numbers(hold) }
end

local function release()
  if not hold_with_token(ARGV[at + 6]) then return { 'not_found' } end
  end_hold(holds[caller], 'released')
  return { 'done' }
end

local function downgrade()
  local hold = hold_with_token(ARGV[at + 6])
  if not hold then return { 'not_found' } end
  if hold.mode == 'x' then
    hold.mode, mode, hold.previous = 's', 's', nil
    added_sharers = note_sharer(added_sharers, hold)
    mark_dirty(hold)
  end
  return { 'updated', encode_numbers(hold) }
end

local function verify()
  read_all()
  for _, hold in pairs(holds) do
    for _, one in ipairs(hold and { hold, hold.previous } or {}) do
      if one.token == ARGV[at + 6] and one.expires > now then return { 'valid', encode_hold(one) } end
    end
  end
  return { 'not_found' }
end

local function query()
  local wanted = ARGV[at + 6]
  local ended = tombstone_reason(wanted)
  if ended then return { 'ended', ended } end
  local hold = hold_of_request(wanted)
  if hold then return { 'held', encode_numbers(hold) } end
  local waiter = waiter_of(caller)
  if waiter and waiter.request == wanted then return waiting_reply(waiter) end
  return { 'not_found' }
end

local function cancel()
  local wanted, reason, include_claimed = ARGV[at + 6], ARGV[at + 7], ARGV[at + 8] == '1'
  local waiter = waiter_of(caller)
  if waiter and waiter.request ~= wanted then waiter = nil end
  local hold = not waiter and hold_won_by(wanted)
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
local function disconnect()
  local waiter = waiter_of(caller)
  if waiter and waiter.request == ARGV[at + 6] and waiter.served_by ~= ARGV[at + 9] then return { 'done' } end
  return cancel()
end

local function break_holds()
  local reply = { 'broken' }
  for _, hold in ipairs(sorted_holds(function() return true end, holder_count)) do
    reply[#reply + 1] = encode_hold(hold)
    end_hold(hold, 'broken')
  end
  return reply
end

local function abort()
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

local function no_op() return { 'done' } end

-- Updates the `holders` field, which is informational and lists at most MAX_LISTED_SHARERS; the holds themselves are
-- complete.
local function update_sharers(list)
  for _, entry in ipairs(removed_sharers or {}) do
    local from, to = list:find(entry, 1, true)
    if from then
      if sub(list, to + 1, to + 1) == ',' then to = to + 1 elseif sub(list, from - 1, from - 1) == ',' then from = from - 1 end
      list = sub(list, 1, from - 1) .. sub(list, to + 1)
    end
  end
  for _, entry in ipairs(added_sharers or {}) do
    if holder_count <= MAX_LISTED_SHARERS then list = sub(list, 1, -2) .. (list == '[]' and '' or ',') .. entry .. ']' end
  end
  return list
end

-- Writes the changed fields of the lock hash.
local function write_lock()
  if holder_count == 0 then
    if was_held then call('DEL', LOCK) end
    return
  end
  local fields, removed, latest_expiry = { 'n', holder_count, 'queue_length', queue_length }, {}, 0
  local function set(field, value)
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  for digest in pairs(dirty) do
    local hold = holds[digest]
    if hold then
      set('h:' .. digest, encode_numbers(hold))
      if hold.is_new or hold.has_new_requests then set('r:' .. digest, hold.requests) end
      if hold.is_new then set('a:' .. digest, encode_names(hold)) end
      latest_expiry = max(latest_expiry, hold.expires, hold.previous and hold.previous.expires or 0)
      if holder_count == 1 then next_expiry = hold.expires end
    else
      removed[#removed + 1], removed[#removed + 2], removed[#removed + 3] = 'h:' .. digest, 'r:' .. digest, 'a:' .. digest
    end
    if hold and hold.previous then
      set('b:' .. digest, encode_hold(hold.previous))
    elseif stored_previous and stored_previous[digest] then
      removed[#removed + 1] = 'b:' .. digest
    end
    if hold and (mode == 'x' or holder_count == 1) then
      if is_task then set('heartbeat_count', hold.heartbeats) end
      if hold.is_new then
        set('acquired_at', iso(tonumber(hold.acquired)))
        set('purpose', hold.purpose)
        if mode == 'x' then set(is_task and 'holder_agent_id' or 'exclusive_holder', hold.agent) end
      end
    end
  end
  set('next', digits(next_expiry))
  if latest_expiry > 0 then set('expires_at', iso(latest_expiry)) end
  if mode ~= stored_mode then
    set('mode', mode == 'x' and 'exclusive' or 'shared')
    if was_held then removed[#removed + 1] = mode == 'x' and 'holders' or 'exclusive_holder' end
  end
  if mode == 's' and (added_sharers or removed_sharers) then
    set('holders', update_sharers(stored_mode == 's' and call('HGET', LOCK, 'holders') or '[]'))
  end
  call('HSET', LOCK, unpack(fields))
  for from = 1, #removed, 1000 do call('HDEL', LOCK, unpack(removed, from, min(from + 999, #removed))) end
  if latest_expiry > 0 then
    local ms = floor((latest_expiry - now) / 1000) + EXPIRY_GRACE_MS
    -- Other holders may have a later expiry.
    if was_held and holder_count > 1 then call('PEXPIRE', LOCK, ms, 'GT') else call('PEXPIRE', LOCK, ms) end
  end
end

-- The earliest time at which something can be due, in Unix seconds; nil if the lock is idle.
local function next_due()
  if holder_count == 0 and queue_length == 0 then return nil end
  local due = next_expiry or now + VISIT_INTERVAL_MS * 1000
  if queue_length > 0 then
    due = min(due, earliest_deadline(), now + VISIT_INTERVAL_MS * 1000, next_server_timeout or due)
  end
  local text = digits(due)
  return sub(text, 1, -7) .. '.' .. sub(text, -6, -4)
end

local function note_type(is_held)
  local locks = type_changes[BY_TYPE]
  if not locks then
    locks = {}
    type_changes[BY_TYPE] = locks
  end
  locks[LOCK] = is_held
end

-- Updates the indexes of the caller's own agent, and notes the type. The sender of the command updates those of other
-- agents.
local function write_indexes()
  if command == 'extend' and hold_of(caller) then is_in_agent_index = true end
  if is_in_agent_index then
    call('SADD', BY_AGENT, LOCK)
    call('PEXPIRE', BY_AGENT, INDEX_TTL_MS)
  elseif is_in_agent_index == false then
    call('SREM', BY_AGENT, LOCK)
  end
  if is_awaited then
    local ms = max(MIN_QUEUE_TTL_MS, wait + 5000)
    call('SADD', WAITFOR, LOCK)
    if call('PTTL', WAITFOR) < ms then call('PEXPIRE', WAITFOR, ms) end
  elseif is_awaited == false then
    call('SREM', WAITFOR, LOCK)
  end
  if is_task or not is_dirty or holder_count > 0 and command == 'release' or holder_count == 0 and not was_held then return end
  -- A lock that changes hands stays listed; the next claim renews the entry.
  note_type(holder_count > 0)
end

local COMMANDS = {
  acquire = acquire, claim = claim, extend_unclaimed = extend_unclaimed, extend = extend, release = release,
  downgrade = downgrade, verify = verify, query = query, cancel = cancel, disconnect = disconnect,
  ['break'] = break_holds, abort = abort, server_heartbeat = no_op, tick = no_op, sweep = no_op,
}

local function apply_step()
  load_lock()
  if command == 'server_heartbeat' then record_server_heartbeat(ARGV[at + 6]) end
  expire_due()
  if command == 'sweep' then expire_silent_servers() end
  promote()
  local hold = hold_of(caller)
  if hold then end_if_expired(hold) end
  local outcome = COMMANDS[command]()
  promote()

  if is_dirty then write_lock() elseif was_held and queue_length ~= stored_queue_length then call('HSET', LOCK, 'queue_length', queue_length) end
  if fence and fence.is_token_new then write_fence('token', digits(fence.token)) end
  if fence and fence.is_score_new then write_fence('score', format('%.17g', fence.score)) end
  if command == 'sweep' then
    -- Only the sweep postpones the next visit. Otherwise a busy lock would never be visited.
    local due_at = next_due() or ''
    outcome = { 'swept', due_at, queue_length }
    if REGISTRY then
      due_times[LOCK] = nil
      if due_at == '' then call('ZREM', REGISTRY, LOCK) else call('ZADD', REGISTRY, due_at, LOCK) end
    end
  elseif REGISTRY and (changes or is_dirty and command ~= 'extend') then
    local due_at = next_due()
    -- All times have the same number of digits.
    if not due_at then due_times[LOCK] = false
    elseif not due_times[LOCK] or due_at < due_times[LOCK] then due_times[LOCK] = due_at end
  end
  if REGISTRY and (changes or is_in_agent_index or is_dirty and command == 'extend') then write_indexes() end
  for i = 1, change_count do outcome[#outcome + 1] = changes[i] end
  return outcome
end
