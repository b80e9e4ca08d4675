-- The shortest way, for most calls: one counter takes hits, and no other descriptor has a say. Each text in alone/ does
-- what decide.lua comes to then, or changes nothing and leaves it to that. Functions and tables would cost a call
-- several times as much as what it does, so there are none here.
--
-- ARGV: the time after which nothing is done, and what is told of the whole request; a check each. stop: fixed windows
-- that are not over are not charged as soon as one counter is. Then what is known of descriptors that are not asked
-- here: whether any is over, whether one denies, how many are in quota mode, and over in it.
local deadline, stop, any_over, denied, quotas, quotas_over = struct.unpack('<dBBBI4I4', ARGV[1])
if now > deadline then return { now } end

local call, floor, ceil = redis.call, math.floor, math.ceil
local MOST = 9007199254740992
-- The algorithm, if this call is one of those; the numbers of its check.
local alone, _, flags, requests, burst, window, numerator, denominator, hits, wanted
if #ARGV == 2 and any_over + denied + quotas == 0 then
  _, alone, flags, requests, burst, window, numerator, denominator, hits, wanted =
    struct.unpack('<I4BBI4I4dBdd', ARGV[2])
  -- Neither a lease nor carried hits; neither given back nor reported.
  if wanted <= #ARGV[2] or flags % 4 > 0 then alone = nil end
  wanted = hits > 1 and hits or 1
end
