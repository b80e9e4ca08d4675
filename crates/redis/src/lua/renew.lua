-- Leases of many counters and nothing else, each by itself, the short way: in each.lua they take Redis 1.4 times as
-- long. One that fails does so alone, and has no lease; nor does one that is cold.
--
-- KEYS: the counters. ARGV and reply: as for decide.lua, for checks of sliding windows that take no hits.
if now > parse('<d', ARGV[1]) then return pack('<d', now) end
local replies, granted = { pack('<d', now) }, {}
for i, key in ipairs(KEYS) do
  local _, _, _, requests, _, window, numerator, denominator, _, lease, lease_time = parse('<I4BBdddBdddd', ARGV[i + 1])
  local fine, reply, hits
  if not (is_cold and is_cold(SLIDING_WINDOW, requests, requests, window)) then
    fine, reply, hits = pcall(decide_window, key, requests, window, numerator, denominator, 0, lease, lease_time)
  end
  replies[i + 1] = fine and reply or pack('<dddddddd', 1, 0, 0, 0, now, 1, -1, -1)
  granted[i] = fine and hits or pack('<dd', 0, 0)
end
local reply = table.concat(replies) .. table.concat(granted)
return with_since and with_since(reply) or reply
