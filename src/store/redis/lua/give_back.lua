-- Gives back what one slot charged for a request that another slot denied: from the stamp under which it was charged, at
-- most what is there. It asks nothing and moves no counter's time.
--
-- KEYS: the counters. ARGV: the time after which nothing is done; for each a check, its stamp and its level.
if now > struct.unpack('<d', ARGV[1]) then return struct.pack('<d', now) end

-- The short way, for most of what leases give back: hits of the newest entry of a sliding window (see window.lua), some
-- of which stay. Whether that was it.
local function from_newest(key, place, hits)
  local text = redis.call('GETRANGE', key, '0', '47')
  if #text <= 16 then return false end
  local _, before, newest, sum = struct.unpack('<dddd', text)
  if newest ~= place then return false end
  if #text > 32 then _, before = struct.unpack('<dd', redis.call('GETRANGE', key, '-16', '-1')) end
  local stays = hits < sum - before
  if stays then redis.call('SETRANGE', key, '24', struct.pack('<d', sum - hits)) end
  return stays
end

local made = {}
for i, key in ipairs(KEYS) do
  local _, algorithm, _, requests, burst, window, numerator, denominator, hits, stamp, level =
    struct.unpack('<I4BBI4I4dBdddd', ARGV[i + 1])
  if algorithm ~= 1 or not from_newest(key, stamp, hits) then
    local kind = made[algorithm] or kinds[algorithm]()
    made[algorithm] = kind
    local s = kind.open(key)
    if s.exists then
      local c = { requests = requests, burst = burst, window = window, numerator = numerator, denominator = denominator }
      kind.give_back(s, c, stamp, hits, level)
      if kind.save then kind.save(s) end
    end
  end
end
return struct.pack('<dd', now, 1)
