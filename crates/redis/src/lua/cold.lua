-- COLD_START=deny: a counter whose hits may have been lost counts as full until they would be over.
--
-- The last argument: the longest that hits may count in a limit that is held, the longest lease time that the node has
-- read, since when nothing is missing as the node knows it; all in microseconds. Then the key of the server's mark,
-- which is the last key too unless it is in another slot. The mark says since when nothing is missing (see mark.lua).
-- Without it everything may be.
local cold_argument = table.remove(ARGV)
local held_max, lease, complete_since, mark = struct.unpack('<ddd', cold_argument)
mark = cold_argument:sub(mark)
if KEYS[#KEYS] == mark then table.remove(KEYS) end
local marked = redis.pcall('GET', mark)
if not marked then
  complete_since = now + lease
  redis.call('SET', mark, struct.pack('<dddd', complete_since, lease, now, 0), 'EX', MARK_LIFE)
elseif type(marked) == 'string' then
  complete_since, lease = struct.unpack('<dd', marked)
  -- This server's clock was set back. Whatever was lost was lost before now.
  if complete_since > now + lease then
    complete_since = now + lease
    redis.call('SET', mark, struct.pack('<d', complete_since) .. marked:sub(9), 'KEEPTTL')
  end
end
-- Otherwise the mark's slot is on its way to another server of a Cluster: what the node knows has to do.

-- Whether hits of this limit may be missing; `burst` is the capacity of a bucket. A bucket of more than N takes longer to drain. Calendar budgets and bans are exempt.
local function is_cold(algorithm, requests, burst, window)
  if algorithm == CALENDAR or algorithm == BAN then return false end
  local counts = window
  if (algorithm == TOKEN_BUCKET or algorithm == LEAKY_BUCKET) and requests > 0 and burst > requests then
    counts = math.ceil(burst * window / requests)
  end
  return counts <= held_max and now < complete_since + counts
end

-- A reply, with since when nothing is missing. A call that came too late did nothing, and has none.
local function with_since(reply)
  if type(reply) ~= 'string' or #reply <= 8 then return reply end
  return reply .. struct.pack('<d', complete_since)
end
