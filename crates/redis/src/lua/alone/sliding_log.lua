if alone == SLIDING_LOG and wanted <= requests then
  local gone = now - window
  local head = call('LRANGE', KEYS[1], '0', '5')
  local latest, base = tonumber(head[1]), tonumber(head[2])
  local first, first_sum = tonumber(head[3]), tonumber(head[4])
  local newest, sum = first, first_sum
  if head[5] then
    local tail = call('LRANGE', KEYS[1], '-2', '-1')
    newest, sum = tonumber(tail[1]), tonumber(tail[2])
  end
  local moves = not latest or now > latest
  -- No entry counts any more, or the oldest does not.
  local starts = moves and hits > 0 and (not first or newest <= gone)
  local drops = not starts and first and moves and first <= gone
  if starts then
    base, sum, first, first_sum, newest = 0, 0, now, hits, now
  elseif drops then
    base, first, first_sum = first_sum, tonumber(head[5]), tonumber(head[6])
  end

  local before = first and sum - base
  -- The oldest entry that counts brings room: nothing has to be searched.
  local at_once = first and (first > gone or not moves) and before + wanted - requests <= first_sum - base
  local leaves = reported and before and before + wanted > requests
  if starts or at_once and now >= latest and not leaves then
    local left, over, charged, ends = requests > before and requests - before or 0, 0, hits
    if wanted > left then over, charged, lease = 1, 0, lease and 0 end
    if starts and latest then call('UNLINK', KEYS[1]) end
    if drops then call('LTRIM', KEYS[1], '2', '-1') end
    if moves and not starts then call('LSET', KEYS[1], '0', now) end
    if charged > 0 then
      sum, left = sum + hits, left - hits
      if starts then
        call('RPUSH', KEYS[1], now, '0', now, sum)
        ends = now
      elseif now > newest then
        call('RPUSH', KEYS[1], now, sum)
        newest, ends = now, now
      else
        call('LSET', KEYS[1], '-1', sum)
      end
    end
    local stamp = newest
    if lease then
      -- At most this part of the rest, as in decide.lua.
      local most = floor(left / 8)
      if lease > most then lease = most end
      if lease < 2 then lease = 0 end
      local leased = now + lease_time
      if lease > 0 and leased > newest then
        call('RPUSH', KEYS[1], leased, sum + lease)
        newest, ends = leased, leased
      elseif lease > 0 then
        call('LSET', KEYS[1], '-1', sum + lease)
      end
    end
    if ends then call('PEXPIREAT', KEYS[1], ceil((ends + window) / 1000) + shift) end
    local reply = pack('<ddddddddd', now, over, before, left, charged, now, wanted, first, stamp)
    return lease and reply .. pack('<dd', lease, lease > 0 and newest or 0) or reply
  end
end
