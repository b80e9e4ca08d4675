-- Gives back what leases did not spend, and what one slot charged for a request that another slot denied: from the
-- stamp of the charge, and at most what is there. It checks nothing and moves no counter's time.
--
-- KEYS: the counters. ARGV: the deadline of the call; the key of the server's generation (or of its mark), and the
-- beginning of the value under which the hits were charged; for each counter a check and its stamp: a place, and the
-- further numbers of a bucket.
if now > struct.unpack('<d', ARGV[1]) then return struct.pack('<d', now) end
-- The server has lost its data since: these hits are gone, and other hits may be in their place.
local data = redis.pcall('GET', ARGV[2])
local is_there = type(data) == 'string' and #ARGV[3] > 0 and data:sub(1, #ARGV[3]) == ARGV[3]
if not is_there then return struct.pack('<dd', now, 0) end

-- The short way, for most leases: hits of the newest entry of a sliding window (see window.lua), of which some
-- stay. It takes half as long. Returns whether it was possible.
local function from_newest(key, place, hits)
  local text = redis.call('GETRANGE', key, '0', '55')
  if #text <= 16 then return false end
  local _, before, newest, sum, first, first_sum = struct.unpack('<dddddd', text)
  if newest ~= place then return false end
  if first ~= newest then _, before = struct.unpack('<dd', redis.call('GETRANGE', key, '-16', '-1')) end
  local stays = hits < sum - before
  if stays then
    if first == newest then first_sum = sum - hits end
    redis.call('SETRANGE', key, '24', struct.pack('<ddd', sum - hits, first, first_sum))
  end
  return stays
end

local made = {}
local function give_back(key, packed)
  local _, algorithm, _, requests, burst, window, numerator, denominator, hits, at =
    struct.unpack('<I4BBdddBdd', packed)
  algorithm = algorithm % CARRIES
  -- The names of a slot or a hold are before its stamp.
  local names = algorithm == CONCURRENCY and 16 or algorithm == HOLDS and 40 or 0
  local stamp, level, rest, taken_back = struct.unpack('<dddd', packed, at + names)
  if algorithm == SLIDING_WINDOW and from_newest(key, stamp, hits) then return end
  local kind = made[algorithm] or kinds[algorithm]()
  made[algorithm] = kind
  local s = kind.open(key)
  if not s.exists then return end
  local c = { requests = requests, burst = burst, window = window, numerator = numerator, denominator = denominator }
  if names > 0 then c.detail = packed:sub(at, at + names - 1) end
  kind.give_back(s, c, stamp, hits, level, rest, taken_back)
  if kind.save then kind.save(s) end
end

-- One that fails does so alone: others may be in the same call.
for i = 1, #ARGV - 3 do pcall(give_back, KEYS[i], ARGV[i + 3]) end
return struct.pack('<dd', now, 1)
