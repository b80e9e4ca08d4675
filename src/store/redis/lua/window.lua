-- sliding_window, the short way: everything about one counter whose buckets are whole microseconds, in two commands for
-- most calls. What it comes to is what sliding_window.lua comes to, and what decide.lua would reply.
--
-- A counter is one text, of doubles: latest, base, the newest entry, then the older ones in order. An entry is a place
-- (a bucket's number) and a sum. Sums run on, and only differences mean something; base is the sum before the oldest
-- entry. So what most calls change is at the front, and what they have to read is no longer than that. Without entries
-- it is latest and base.
local call, floor, ceil = redis.call, math.floor, math.ceil
local pack, parse = struct.pack, struct.unpack

-- Takes `hits`, and afterwards up to `lease` more for `lease_time`. The reply to the check, and to the lease if there is
-- one.
local function decide_window(key, requests, window, denominator, hits, lease, lease_time)
  local text = call('GETRANGE', key, '0', '47')
  local latest, base, sum, newest, first, first_sum = 0, 0, 0
  if #text > 32 then
    latest, base, newest, sum, first, first_sum = parse('<dddddd', text)
  elseif #text > 16 then
    latest, base, newest, sum = parse('<dddd', text)
    first, first_sum = newest, sum
  elseif #text > 0 then
    latest, base = parse('<dd', text)
    sum = base
  end
  local exists, moves, older = #text > 0, now > latest
  if moves then latest = now end

  -- The older entries, where they have to be written anew.
  local gone = floor((latest - window) / denominator) - 1
  if moves and first and first <= gone then
    if newest <= gone then
      base, sum, newest, first, older = 0, 0, nil, nil, ''
    else
      text = call('GET', key)
      local at = 33
      repeat
        base, at = first_sum, at + 16
        if at <= #text then first, first_sum = parse('<dd', text, at) else first, first_sum = newest, sum end
      until first > gone
      older = text:sub(at)
    end
  end

  local wanted, before = hits > 1 and hits or 1, sum - base
  local left = requests > before and requests - before or 0
  local over, charged, one = 0, hits
  if wanted > left then
    over, charged, lease = 1, 0, lease and 0
    -- The place whose end brings room: the oldest, unless many are wanted or the count is over the limit.
    one = wanted > requests and -2 or first
    local through = sum + wanted - requests
    if one == first and first_sum < through then
      local all = older or call('GETRANGE', key, '32', '-1')
      local low, high = 0, #all / 16
      while high - low > 1 do
        local middle = floor((low + high) / 2)
        if parse('<d', all, 16 * middle + 9) < through then low = middle else high = middle end
      end
      one = newest
      if 16 * high < #all then one = parse('<d', all, 16 * high + 1) end
    end
  end

  -- Hits go to the newest entry when that is not earlier: the order holds, and nothing counts too short.
  local pushed, ends = ''
  if charged > 0 then
    local place = floor(latest / denominator)
    if not newest then
      newest, first, ends = place, place, place
    elseif place > newest then
      pushed = pack('<dd', newest, sum)
      newest, ends = place, place
    end
    sum, left = sum + charged, left - charged
  end
  local reply = pack('<dddddddd', over, before, left, charged, latest, wanted, one or first or -1, newest or -1)
  local granted = lease and pack('<dd', 0, 0)
  if lease then
    -- As decide.lua has it: at most this part of what is left.
    local most = floor(left / 8)
    if lease > most then lease = most end
    if lease > 1 then
      local place = floor((latest + lease_time) / denominator)
      if not newest then
        newest, ends = place, place
      elseif place > newest then
        pushed = pushed .. pack('<dd', newest, sum)
        newest, ends = place, place
      end
      sum, charged = sum + lease, charged + lease
      granted = pack('<dd', lease, newest)
    end
  end

  local head = newest and pack('<dddd', latest, base, newest, sum) or pack('<dd', latest, base)
  if older then
    call('SET', key, head .. older .. pushed, 'KEEPTTL')
  elseif exists and (moves or charged > 0) then
    call('SETRANGE', key, '0', head)
    if #pushed > 0 then call('APPEND', key, pushed) end
  elseif charged > 0 then
    call('SET', key, head .. pushed)
  end
  if ends then call('PEXPIREAT', key, ceil(((ends + 1) * denominator + window) / 1000) + shift) end
  return reply, granted
end
