-- sliding_window, the short way: for one counter that is asked alone, mostly in two commands. Its results equal
-- those of sliding_window.lua and decide.lua.
--
-- A counter is one text of doubles: latest, base; the newest entry, the oldest entry; the number of dead entries;
-- and the entries before the newest in order, the dead ones first. An entry is a place (a bucket's number) and a
-- sum. Sums run on, and only differences mean something; base is the sum before the oldest entry that counts. So a
-- call reads and writes only the front, and appends new entries. Without entries the text is latest and base alone.
local call, floor, ceil = redis.call, math.floor, math.ceil
local pack, parse = struct.pack, struct.unpack

-- With so many dead entries the text is rewritten.
local DEAD_MAX = 16

-- The first entry of `entries` after the first one whose number (1: place, 9: sum) is over `bound`, from 0. Without
-- one, the number of entries.
local function first_over(entries, number, bound)
  local low, high = 0, #entries / 16
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if parse('<d', entries, 16 * middle + number) > bound then high = middle else low = middle end
  end
  return high
end

-- The bucket of a time. `numerator` buckets last one denominator: no product here is over 2^53.
local function place_of(time, numerator, denominator)
  local whole = floor(time / denominator)
  return whole * numerator + floor((time - whole * denominator) * numerator / denominator)
end

-- Takes `hits`, and then up to `lease` more for `lease_time`. Returns the reply to the check, and to the lease if
-- there is one. Where a reported cost does not fit, it returns nothing and changes nothing.
local function decide_window(key, requests, window, numerator, denominator, hits, lease, lease_time, reported)
  local text = call('GETRANGE', key, '0', '55')
  local latest, base, sum, dead, newest, first, first_sum = 0, 0, 0, 0
  if #text > 16 then
    latest, base, newest, sum, first, first_sum, dead = parse('<ddddddd', text)
  elseif #text > 0 then
    latest, base = parse('<dd', text)
    sum = base
  end
  local exists, moves, rewritten = #text > 0, now > latest
  if moves then latest = now end

  -- `rewritten`: the entries before the newest, when the text is rewritten.
  local gone = place_of(latest - window, numerator, denominator) - 1
  if moves and first and first <= gone then
    if newest <= gone then
      base, sum, dead, newest, first, rewritten = 0, 0, 0, nil, nil, ''
    else
      -- The first few entries are tried first.
      local from = 56 + 16 * dead
      local entries = call('GETRANGE', key, from, from + 127)
      local index = first_over(entries, 1, gone)
      if 16 * index == 128 then
        entries = call('GETRANGE', key, from, '-1')
        index = first_over(entries, 1, gone)
      end
      base, dead = parse('<d', entries, 16 * index - 7), dead + index
      first, first_sum = newest, sum
      if 16 * index < #entries then first, first_sum = parse('<dd', entries, 16 * index + 1) end
      if dead >= DEAD_MAX then rewritten, dead = call('GETRANGE', key, 56 + 16 * dead, '-1'), 0 end
    end
  end

  local wanted, before = hits > 1 and hits or 1, sum - base
  local left = requests > before and requests - before or 0
  local over, charged, one = 0, hits
  if wanted > left then
    if reported then return end
    over, charged, lease = 1, 0, lease and 0
    -- The place whose end brings room: the oldest, unless many hits are wanted or the count is over the limit.
    one = wanted > requests and -2 or first
    local through = sum + wanted - requests
    if one == first and first_sum < through then
      local entries = rewritten or call('GETRANGE', key, 56 + 16 * dead, '-1')
      local index = first_over(entries, 9, through - 1)
      one = newest
      if 16 * index < #entries then one = parse('<d', entries, 16 * index + 1) end
    end
  end

  -- Hits go to the newest entry when it is not earlier: the order holds, and nothing counts too short.
  local pushed, ends = ''
  if charged > 0 then
    local place = place_of(latest, numerator, denominator)
    if not newest then
      newest, first, ends = place, place, place
    elseif place > newest then
      pushed = pack('<dd', newest, sum)
      newest, ends = place, place
    end
    sum, left = sum + charged, left - charged
    if first == newest then first_sum = sum end
  end
  local reply = pack('<dddddddd', over, before, left, charged, latest, wanted, one or first or -1, newest or -1)
  local granted = lease and pack('<dd', 0, 0)
  if lease then
    -- At most this part of the rest, as in decide.lua.
    local most = floor(left / 8)
    if lease > most then lease = most end
    if lease > 1 then
      local place = place_of(latest + lease_time, numerator, denominator)
      if not newest then
        newest, first, ends = place, place, place
      elseif place > newest then
        pushed = pushed .. pack('<dd', newest, sum)
        newest, ends = place, place
      end
      sum, charged = sum + lease, charged + lease
      if first == newest then first_sum = sum end
      granted = pack('<dd', lease, newest)
    end
  end

  local head = pack('<dd', latest, base)
  if newest then head = pack('<ddddddd', latest, base, newest, sum, first, first_sum, dead) end
  if rewritten then
    call('SET', key, head .. rewritten .. pushed, 'KEEPTTL')
  elseif exists and (moves or charged > 0) then
    call('SETRANGE', key, '0', head)
    if #pushed > 0 then call('APPEND', key, pushed) end
  elseif charged > 0 then
    call('SET', key, head .. pushed)
  end
  if ends then
    -- When the bucket stops to count.
    local whole = floor((ends + 1) / numerator)
    local rest = ceil((ends + 1 - whole * numerator) * denominator / numerator)
    call('PEXPIREAT', key, ceil((whole * denominator + rest + window) / 1000) + shift)
  end
  return reply, granted
end
