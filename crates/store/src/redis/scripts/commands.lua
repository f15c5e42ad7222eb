-- The commands, each equivalent to its counterpart in the `domain` crate, and `apply_command`, which runs one: it writes
-- the state, publishes the messages and builds the reply at the end.

local function first_request(hold) return hold.requests:match('^%x+') end
local function has_request(hold, request) return hold and hold.requests:find(request, 1, true) ~= nil end

-- The hold that a request shares, or the shared hold under an upgrade that is not claimed yet.
local function hold_of_request(request)
  if has_request(hold_of(caller), request) then return holds[caller] end
  if has_request(upgraded_from[caller], request) then return upgraded_from[caller] end
end

local function held_reply(hold)
  if hold then return { 'held', encode_hold(hold) } end
  return { 'ended', 'expired' }
end

local function grant_reply()
  local hold = hold_of(caller)
  return hold and { 'updated', encode_hold(hold) } or { 'not_found' }
end

local function start_lease(hold, expires)
  hold.claimed, hold.expires = true, expires
  upgraded_from[caller] = false
  lower_next_expiry(expires)
  mark_dirty(caller)
end

local function position(waiter) return call('ZRANK', QUEUE, waiter.member) + 1 end

local function read_params()
  params = {
    request = ARGV[8], mode = ARGV[9], ttl = tonumber(ARGV[10]), claimed = ARGV[11] == '1', leave_tombstone = ARGV[12] == '1',
    priority = ARGV[13], purpose = ARGV[14], wait = tonumber(ARGV[15]), served_by = ARGV[16] ~= '' and ARGV[16] or nil,
    fixed_fields = ARGV[17],
  }
end

local function grant_to_caller(previous)
  local lease = params.ttl
  if not params.claimed then lease = claim_timeout_ms(not params.wait or params.served_by) end
  upgraded_from[caller] = not params.claimed and previous or false
  grant(caller, {
    mode = params.mode, acquired = now, expires = now + lease * 1000, claimed = params.claimed, leave_tombstone = params.leave_tombstone,
    priority = params.priority, heartbeats = 0, requests = params.request, agent = agent, holder = holder_id, purpose = params.purpose,
  })
  return held_reply(holds[caller])
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
  hold.requests = hold.requests .. ',' .. params.request
  hold.is_new = true
  hold.leave_tombstone = hold.leave_tombstone or params.leave_tombstone
  mark_dirty(caller)
  local expires = now + params.ttl * 1000
  if params.claimed and (not hold.claimed or expires > hold.expires) then
    start_lease(hold, max(expires, hold.expires))
  end
  return held_reply(hold)
end

-- A repeated request keeps its position; it may come through another server or with a later deadline.
local function refresh_wait(waiter)
  if params.wait then
    local deadline = now + params.wait * 1000
    local is_longer = deadline > waiter.deadline + MIN_WAIT_EXTENSION_MS * 1000
    if is_longer or waiter.served_by ~= params.served_by then
      dequeue(waiter)
      waiter.fixed_fields, waiter.served_by = fixed_fields_of(waiter.member), params.served_by
      if is_longer then waiter.deadline = deadline end
      enqueue(waiter)
      if is_longer and WAITFOR then call('PEXPIRE', WAITFOR, max(MIN_QUEUE_TTL_MS, params.wait + 5000)) end
      if params.served_by then record_server_heartbeat(params.served_by) end
    end
  end
  return { 'waiting', position(waiter), digits(waiter.deadline) }
end

local function enqueue_caller(score)
  if params.served_by then record_server_heartbeat(params.served_by) end
  local waiter = {
    who = caller, fixed_fields = params.fixed_fields, requested_at = iso(now), deadline = now + params.wait * 1000, served_by = params.served_by,
    upgrade = hold_of(caller) ~= nil or nil, score = score, agent_id = agent,
  }
  if has_tombstones() then call('HDEL', ENDED, params.request) end
  enqueue(waiter)
  record_change('queued', agent, holder_id)
  add_message('queued:' .. agent)
  return { 'waiting', position(waiter), digits(waiter.deadline) }
end

-- A holder has one wait per lock: a newer request replaces the older one, and moves to the end if it wants another
-- mode.
local function supersede(older)
  remove_waiter(older, 'superseded')
  local is_same_mode = (older.mode == 'exclusive' and 'x' or 's') == params.mode
  return enqueue_caller(is_same_mode and older.score or next_score())
end

local function load_breaker()
  local text = call('HGET', FENCE, 'crowd')
  if not text then return 0, 0, 0 end
  local window_start, refusals, open_until = text:match('(%d+) (%d+) (%d+)')
  return tonumber(window_start), tonumber(refusals), tonumber(open_until)
end

local function refuse_queue_full(window_start, refusals, open_until)
  if refusals == 0 or window_start + BREAKER_WINDOW_MS * 1000 <= now then
    window_start, refusals = now, 1
  else
    refusals = refusals + 1
  end
  if refusals >= BREAKER_THRESHOLD then refusals, open_until = 0, now + BREAKER_OPEN_MS * 1000 end
  call('HSET', FENCE, 'crowd', concat({ digits(window_start), refusals, digits(open_until) }, ' '))
  is_fence_dirty = true
  record_change('queue_full', agent, holder_id)
  return { 'queue_full', queue_length }
end

local function refuse_held()
  local reply = { 'refused', queue_length }
  for _, digest in ipairs(sorted_holds(function() return true end, MAX_REFUSAL_HOLDERS + 1)) do
    if digest ~= caller and #reply < MAX_REFUSAL_HOLDERS + 2 then reply[#reply + 1] = encode_hold(holds[digest]) end
  end
  return reply
end

local function acquire()
  read_params()
  local ended = tombstone_reason(params.request)
  if ended then return { 'ended', ended } end
  local hold = hold_of(caller)
  if hold then
    local won = hold_of_request(params.request)
    if won then
      -- For a request that a server holds open, the lease starts with this reply, unless the request still waits for
      -- other locks.
      if params.claimed and params.served_by and won == hold and not hold.claimed then
        start_lease(hold, now + params.ttl * 1000)
        record_change('claimed', agent, holder_id)
      end
      return held_reply(won)
    end
    if hold.mode == 'x' or params.mode == 's' then return join_hold(hold) end
    if can_hold(params.mode, caller) then return grant_to_caller(hold) end
  end
  local waiter = waiter_of(caller)
  if waiter then
    if waiter.request == params.request then return refresh_wait(waiter) end
    if params.wait then return supersede(waiter) end
  end
  if queue_length == 0 and can_hold(params.mode, caller) then return grant_to_caller(nil) end
  local window_start, refusals, open_until = load_breaker()
  if open_until > now then return { 'circuit_open', digits(open_until) } end
  if not params.wait then return refuse_held() end
  if queue_length >= MAX_WAITERS then return refuse_queue_full(window_start, refusals, open_until) end
  return enqueue_caller(next_score())
end

local function hold_won_by(request)
  local hold = hold_of(caller)
  return has_request(hold, request) and hold or nil
end

-- Finds a hold by token. Until an upgrade is claimed, its holder only knows the token of the shared hold.
local function hold_with_token(token)
  local hold = hold_of(caller)
  if not hold then return nil end
  if hold.token == token then return hold end
  local previous = upgraded_from[caller]
  return previous and previous.expires > now and previous.token == token and previous or nil
end

local function claim()
  local request, hold = ARGV[8], hold_won_by(ARGV[8])
  if not hold then return { 'not_found' } end
  local expires = now + ARGV[9] * 1000
  -- A repeated claim must not restart its lease; a request that joined an older grant may need a longer one.
  local is_running = hold.claimed and (first_request(hold) == request or expires <= hold.expires)
  if not is_running then
    start_lease(hold, expires)
    record_change('claimed', agent, holder_id)
  end
  return grant_reply()
end

local function extend_unclaimed()
  local hold = hold_won_by(ARGV[8])
  if not hold then return { 'not_found' } end
  local expires = now + ARGV[9] * 1000
  if expires > hold.expires then
    hold.expires = expires
    mark_dirty(caller)
  end
  return grant_reply()
end

local function extend()
  local hold = hold_with_token(ARGV[8])
  if not hold then return { 'not_found' } end
  hold.expires = max(now + ARGV[9] * 1000, hold.expires)
  hold.heartbeats = hold.heartbeats + 1
  mark_dirty(caller)
  return { 'updated', encode_hold(hold) }
end

local function release()
  if not hold_with_token(ARGV[8]) then return { 'not_found' } end
  end_hold(caller, holds[caller], 'released')
  return { 'done' }
end

local function downgrade()
  local hold = hold_with_token(ARGV[8])
  if not hold then return { 'not_found' } end
  if hold.mode == 'x' then
    hold.mode, mode, upgraded_from[caller] = 's', 's', false
    added_sharers[#added_sharers + 1] = sharer_json(hold)
    mark_dirty(caller)
  end
  return { 'updated', encode_hold(hold) }
end

local function verify()
  read_all()
  for _, group in ipairs({ holds, upgraded_from }) do
    for _, hold in pairs(group) do
      if hold and hold.token == ARGV[8] and hold.expires > now then return { 'valid', encode_hold(hold) } end
    end
  end
  return { 'not_found' }
end

local function query()
  local ended = tombstone_reason(ARGV[8])
  if ended then return { 'ended', ended } end
  local hold = hold_of_request(ARGV[8])
  if hold then return held_reply(hold) end
  local waiter = waiter_of(caller)
  if waiter and waiter.request == ARGV[8] then return { 'waiting', position(waiter), digits(waiter.deadline) } end
  return { 'not_found' }
end

local function cancel()
  local request, reason, include_claimed = ARGV[8], ARGV[9], ARGV[10] == '1'
  local waiter = waiter_of(caller)
  if waiter and waiter.request ~= request then waiter = nil end
  local hold = not waiter and hold_won_by(request)
  if waiter then
    remove_waiter(waiter, reason)
  elseif hold then
    if hold.requests:find(',', 1, true) then
      hold.requests = (',' .. hold.requests):gsub(',' .. request, '', 1):gsub('^,', '')
      hold.is_new = true
      mark_dirty(caller)
    elseif not hold.claimed or include_claimed or reason == 'cancelled' then
      end_hold(caller, hold, reason)
    end
  end
  if not tombstone_reason(request) then add_tombstone(request, reason) end
  return { 'done' }
end

-- The caller disconnected from one server; another server may hold its request open by now.
local function disconnect()
  local waiter = waiter_of(caller)
  if waiter and waiter.request == ARGV[8] and waiter.served_by ~= ARGV[11] then return { 'done' } end
  return cancel()
end

local function break_holds()
  local reply = { 'broken' }
  for _, digest in ipairs(sorted_holds(function() return true end, holder_count)) do
    reply[#reply + 1] = encode_hold(holds[digest])
    end_hold(digest, holds[digest], 'broken')
  end
  return reply
end

local function abort()
  local request, reason = ARGV[8], ARGV[9]
  local waiter = waiter_of(caller)
  if request ~= '' and (not waiter or waiter.request ~= request) then return { 'not_found' } end
  if waiter then remove_waiter(waiter, reason) end
  local hold = hold_of(caller)
  if hold then
    end_hold(caller, hold, reason)
    if not hold.leave_tombstone then each_request(hold.requests, function(ended) add_tombstone(ended, reason) end) end
  end
  return { 'done' }
end

local function no_op() return { 'done' } end

-- The fence lives for a day after its last change. Its TTL is renewed at most once per FENCE_RENEW_INTERVAL_MS, not
-- with every grant.
local function write_fence()
  if fence and fence.is_dirty then
    if fence.renewed_at + FENCE_RENEW_INTERVAL_MS * 1000 > now then
      if fence.score == 0 then return call('HSET', FENCE, 'token', digits(fence.token)) end
      return call('HSET', FENCE, 'token', digits(fence.token), 'score', format('%.17g', fence.score))
    end
    is_fence_dirty = true
    call('HSET', FENCE, 'token', digits(fence.token), 'score', format('%.17g', fence.score), 'name', name)
  end
  if is_fence_dirty then
    call('HSET', FENCE, 'kept', digits(now))
    call('PEXPIRE', FENCE, FENCE_TTL_MS + FENCE_RENEW_INTERVAL_MS)
  end
end

-- A lock without previous holders is written with one HSET.
local function write_new_lock(digest, hold)
  next_expiry = hold.expires
  local is_exclusive, expires, previous = hold.mode == 'x', iso(hold.expires), upgraded_from[digest]
  call('HSET', LOCK, 'n', 1, 'mode', is_exclusive and 'exclusive' or 'shared', 'next', digits(hold.expires), 'queue_length', queue_length,
    'acquired_at', iso(hold.acquired), 'expires_at', expires, 'purpose', hold.purpose,
    is_task and 'holder_agent_id' or is_exclusive and 'exclusive_holder' or 'holders',
    (is_task or is_exclusive) and hold.agent or '[' .. sharer_json(hold) .. ']',
    'h:' .. digest, encode_numbers(hold), 'r:' .. digest, hold.requests, 'a:' .. digest, encode_names(hold))
  if is_task then call('HSET', LOCK, 'heartbeat_count', hold.heartbeats) end
  if previous then call('HSET', LOCK, 'b:' .. digest, encode_hold(previous)) end
  call('PEXPIRE', LOCK, floor((max(hold.expires, previous and previous.expires or 0) - now) / 1000) + EXPIRY_GRACE_MS)
end

-- Updates the `holders` field, which is informational and lists at most MAX_LISTED_SHARERS; the holds themselves are
-- complete.
local function update_sharers(list)
  for _, entry in ipairs(removed_sharers) do
    local from, to = list:find(entry, 1, true)
    if from then
      if sub(list, to + 1, to + 1) == ',' then to = to + 1 elseif sub(list, from - 1, from - 1) == ',' then from = from - 1 end
      list = sub(list, 1, from - 1) .. sub(list, to + 1)
    end
  end
  for _, entry in ipairs(added_sharers) do
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
    local hold, previous = holds[digest], upgraded_from[digest]
    if hold then
      if not was_held and holder_count == 1 then return write_new_lock(digest, hold) end
      set('h:' .. digest, encode_numbers(hold))
      if hold.is_new then
        set('r:' .. digest, hold.requests)
        set('a:' .. digest, encode_names(hold))
      end
      latest_expiry = max(latest_expiry, hold.expires, previous and previous.expires or 0)
      if holder_count == 1 then next_expiry = hold.expires end
    else
      removed[#removed + 1], removed[#removed + 2], removed[#removed + 3] = 'h:' .. digest, 'r:' .. digest, 'a:' .. digest
    end
    if previous then set('b:' .. digest, encode_hold(previous)) elseif had_upgraded_from[digest] then removed[#removed + 1] = 'b:' .. digest end
    if hold and (mode == 'x' or holder_count == 1) then
      if is_task then set('heartbeat_count', hold.heartbeats) end
      if hold.is_new then
        set('acquired_at', iso(hold.acquired))
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
  if mode == 's' and #added_sharers + #removed_sharers > 0 then
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
  local at = next_expiry or now + VISIT_INTERVAL_MS * 1000
  if queue_length > 0 then
    at = min(at, earliest_deadline(), now + VISIT_INTERVAL_MS * 1000, next_server_timeout or at)
  end
  return format('%.3f', at / 1000000)
end

-- Updates the indexes of the caller's own agent. The sender of the command updates those of other agents.
local function write_indexes()
  local is_free = holder_count == 0
  for _, change in ipairs(changes) do
    local kind, changed_agent, is_last = change[1], change[2], change[4] == 1
    if kind == 'granted' then
      if changed_agent == agent then
        call('SADD', BY_AGENT, LOCK)
        call('PEXPIRE', BY_AGENT, INDEX_TTL_MS)
        if is_last then call('SREM', WAITFOR, LOCK) end
      end
    elseif changed_agent == agent then
      if kind == 'hold_ended' then
        if is_last then call('SREM', BY_AGENT, LOCK) end
      elseif kind == 'wait_ended' then
        if is_last then call('SREM', WAITFOR, LOCK) end
      elseif kind == 'claimed' then
        -- A holder that another call promoted adds its own index entry, before it asks for anything else.
        call('SADD', BY_AGENT, LOCK)
        call('PEXPIRE', BY_AGENT, INDEX_TTL_MS)
        if call('HEXISTS', WAITING, 'a:' .. agent) == 0 then call('SREM', WAITFOR, LOCK) end
      elseif kind == 'queued' then
        local ms = max(MIN_QUEUE_TTL_MS, params.wait + 5000)
        call('SADD', WAITFOR, LOCK)
        if call('PTTL', WAITFOR) < ms then call('PEXPIRE', WAITFOR, ms) end
      end
    end
  end
  if command == 'extend' and hold_of(caller) then
    call('SADD', BY_AGENT, LOCK)
    call('PEXPIRE', BY_AGENT, INDEX_TTL_MS)
  end
  if BY_TYPE and is_dirty then
    if is_free then
      if was_held then call('SREM', BY_TYPE, LOCK) end
    elseif command ~= 'release' then
      -- A lock that changes hands stays listed; the next claim renews the entry.
      call('SADD', BY_TYPE, LOCK)
      call('PEXPIRE', BY_TYPE, INDEX_TTL_MS)
    end
  end
end

local COMMANDS = {
  acquire = acquire, claim = claim, extend_unclaimed = extend_unclaimed, extend = extend, release = release,
  downgrade = downgrade, verify = verify, query = query, cancel = cancel, disconnect = disconnect,
  ['break'] = break_holds, abort = abort, server_heartbeat = no_op, tick = no_op, sweep = no_op,
}

local function apply_command(keys, args)
  local reply
  if args[2] == 'acquire' then reply = fast_acquire(keys, args)
  elseif args[2] == 'extend' then reply = fast_extend(keys, args)
  elseif args[2] == 'release' then reply = fast_release(keys, args) end
  if reply then return reply end
  reset(keys, args)
  load_lock()
  if command == 'server_heartbeat' then record_server_heartbeat(ARGV[8]) end
  expire_due()
  if command == 'sweep' then expire_silent_servers() end
  promote()
  local hold = hold_of(caller)
  if hold then end_if_expired(caller, hold) end
  local outcome = COMMANDS[command]()
  promote()

  if is_dirty then write_lock() elseif was_held and queue_length ~= stored_queue_length then call('HSET', LOCK, 'queue_length', queue_length) end
  write_fence()
  local due_at = ''
  if command == 'sweep' or REGISTRY and (#changes > 0 or is_dirty and command ~= 'extend') then
    due_at = next_due() or ''
  end
  if REGISTRY then
    -- Only the sweep postpones the next visit. Otherwise a busy lock would never be visited.
    if due_at ~= '' then
      if command == 'sweep' then call('ZADD', REGISTRY, due_at, LOCK) else call('ZADD', REGISTRY, 'LT', due_at, LOCK) end
    elseif command == 'sweep' or #changes > 0 then
      if holder_count == 0 and queue_length == 0 then call('ZREM', REGISTRY, LOCK) end
    end
    if #changes > 0 or is_dirty and command == 'extend' then write_indexes() end
  end
  local publish = args[1] == '' and 'PUBLISH' or 'SPUBLISH'
  for _, message in ipairs(messages) do call(publish, CHANNEL, message) end
  return { digits(now), outcome, changes, due_at, queue_length }
end
