-- The shortest way, for most calls: one counter takes hits, and no other descriptor has a say. Each text in alone/
-- either does what decide.lua would do, or changes nothing and leaves the call to decide.lua. Functions and tables
-- would cost a call several times as much as what it does. So there are none here but decide_window, which
-- renew.lua needs too. Without its text in alone/, a call of an algorithm takes Redis 2.2 (fixed_window) to 3.1
-- (buckets) times as long.
--
-- ARGV: the deadline, with what the call has to know of the whole request; then one check each. stop: fixed windows
-- that are not over are not charged when one counter is (1), or nothing is charged but reported costs (2). Then about the descriptors outside of this call: whether
-- any is over, whether one denies, how many are in quota mode, and how many of these are over.
local deadline, stop, any_over, denied, quotas, quotas_over = parse('<dBBBI4I4', ARGV[1])
if now > deadline then return pack('<d', now) end

local MOST = 9007199254740992
-- The algorithm, if this is such a call, and the numbers of its check. A reported cost that does not fit is left to
-- decide.lua.
local alone, _, flags, requests, burst, window, numerator, denominator, hits, wanted, lease
local lease_time, reported, at = 0
if #ARGV == 2 and any_over + denied + quotas == 0 then
  _, alone, flags, requests, burst, window, numerator, denominator, hits, at =
    parse('<I4BBdddBdd', ARGV[2])
  -- Only reported costs that do not fit make debts. The ends of periods are counted in decide.lua.
  if alone >= CARRIES then alone = alone ~= CARRIES + CALENDAR and alone - CARRIES or nil end
  wanted = hits > 1 and hits or 1
  if flags >= 16 and (alone == SLIDING_LOG or alone == SLIDING_WINDOW) then lease, lease_time, at = parse('<dd', ARGV[2], at) end
  reported = flags % 4 > 1
  -- Without unsynced hits, and without hits to give back; nor one that may be cold.
  local is_plain = at > #ARGV[2] and flags % 2 == 0
  if not is_plain or alone and is_cold and is_cold(alone, requests, denominator, window) then alone = nil end
end
