-- Takes up to n tokens from a bucket that holds burst tokens and gets rate a
-- second. KEYS[1] the bucket; ARGV rate, burst, n.
-- Returns how many were taken, and, when fewer than n, the microseconds until
-- the next one.
-- One token is 1e6 units, so that rate tokens a second are rate units a
-- microsecond: everything is an integer below 2^53. A bucket that is not there
-- is full. A clock that went back adds nothing, and counts from there on.
local rate, burst, n = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local full = burst * 1000000
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local units, back = full, false
local state = redis.call('GET', KEYS[1])
if state then
  local u, at = string.match(state, '^(%d+):(%d+)$')
  if u then
    back = tonumber(at) > now
    local elapsed = math.max(0, now - tonumber(at))
    -- More than it takes to fill would only lose precision.
    elapsed = math.min(elapsed, math.ceil(full / rate))
    units = math.min(full, tonumber(u) + elapsed * rate)
  end
end
local granted = math.min(n, math.floor(units / 1000000))
units = units - granted * 1000000
if granted > 0 or back then
  -- It is gone when it would be full again anyway.
  local ttl = math.ceil((full - units) / rate / 1000) + 1000
  redis.call('SET', KEYS[1], string.format('%.0f:%.0f', units, now), 'PX', string.format('%.0f', ttl))
end
local retry = 0
if granted < n then
  retry = math.max(1, math.ceil((1000000 - units) / rate))
end
return {granted, retry}
