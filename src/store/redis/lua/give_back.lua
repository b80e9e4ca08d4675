-- Gives back what one slot charged for a request that another slot denied: from the stamp under which it was charged, at
-- most what is there. It asks nothing and moves no counter's time.
--
-- KEYS: the counters. ARGV: the time after which nothing is done; for each a check, its stamp and its level.
if now > struct.unpack('<d', ARGV[1]) then return { now } end
for i, key in ipairs(KEYS) do
  local c, stamp, level, _ = {}
  _, c.algorithm, _, c.requests, c.burst, c.window, c.numerator, c.denominator, c.hits, stamp, level =
    struct.unpack('<I4BBI4I4dBdddd', ARGV[i + 1])
  local kind = kinds[c.algorithm]()
  local s = kind.open(key)
  if s.exists then
    kind.give_back(s, c, stamp, c.hits, level)
    if kind.save then kind.save(s) end
  end
end
return { now, 1 }
