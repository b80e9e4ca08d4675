-- Leases of many counters, and nothing else: each by itself, the short way.
--
-- KEYS: the counters. ARGV, and the reply: as decide.lua has them, for checks of sliding windows that take no hits.
if now > parse('<d', ARGV[1]) then return pack('<d', now) end
local told, granted = { pack('<d', now) }, {}
for i, key in ipairs(KEYS) do
  local _, _, _, requests, _, window, _, denominator, _, lease, lease_time = parse('<I4BBI4I4dBdddd', ARGV[i + 1])
  told[i + 1], granted[i] = decide_window(key, requests, window, denominator, 0, lease, lease_time)
end
return table.concat(told) .. table.concat(granted)
