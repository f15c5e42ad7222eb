-- Registers a function of a library, whose source follows.
--
-- On a cluster a call names the primary it is meant for. A node that took over must not run it before its clock is
-- trusted.
local function register(name, callback, flags)
  redis.register_function({
    function_name = LIBRARY .. '_' .. name,
    callback = function(keys, args)
      if args[1] ~= '' and redis.call('CLUSTER', 'MYID') ~= args[1] then return redis.error_reply('ANOTHERPRIMARY') end
      return callback(keys, args)
    end,
    flags = flags,
  })
end
