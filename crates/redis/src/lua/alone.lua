-- The shortest way, for most calls: one counter takes hits, and no other descriptor has a say. Each text in alone/ does
-- what decide.lua comes to then, or changes nothing and leaves it to that. Functions and tables would cost a call
-- several times as much as what it does, so there are none here but for decide_window, which renew.lua needs too.
--
-- ARGV: the time after which nothing is done, and what is told of the whole request; a check each. stop: fixed windows
-- that are not over are not charged as soon as one counter is. Then what is known of descriptors that are not asked
-- here: whether any is over, whether one denies, how many are in quota mode, and over in it.
local deadline, stop, any_over, denied, quotas, quotas_over = parse('<dBBBI4I4', ARGV[1])
if now > deadline then return pack('<d', now) end

local MOST = 9007199254740992
-- The algorithm, if this call is one of those; the numbers of its check. A reported cost that does not fit is left to
-- decide.lua.
local alone, _, flags, requests, burst, window, numerator, denominator, hits, wanted, lease
local lease_time, reported, at = 0
if #ARGV == 2 and any_over + denied + quotas == 0 then
  _, alone, flags, requests, burst, window, numerator, denominator, hits, at =
    parse('<I4BBI4I4dBdd', ARGV[2])
  wanted = hits > 1 and hits or 1
  if flags >= 16 and (alone == SLIDING_LOG or alone == SLIDING_WINDOW) then lease, lease_time, at = parse('<dd', ARGV[2], at) end
  reported = flags % 4 > 1
  -- No carried hits, and none given back.
  if at <= #ARGV[2] or flags % 2 > 0 then alone = nil end
end
