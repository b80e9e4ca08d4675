if wanted and wanted <= requests and (alone == 0 or alone == 1 and numerator == 1) then
  local place, gone, until_ = now, now - window, now + window
  if alone == 1 then
    place, gone = floor(now / denominator), floor((now - window) / denominator) - 1
    until_ = (place + 1) * denominator + window
  end
  local head = call('LRANGE', KEYS[1], 0, 5)
  local latest, base = tonumber(head[1]), tonumber(head[2])
  local first, first_sum = tonumber(head[3]), tonumber(head[4])
  local newest, sum = first, first_sum
  if head[5] then
    local tail = call('LRANGE', KEYS[1], -2, -1)
    newest, sum = tonumber(tail[1]), tonumber(tail[2])
  end
  local moves = not latest or now > latest

  -- Nothing counts any more: the counter begins anew.
  if moves and hits > 0 and (not first or newest <= gone) then
    if latest then call('UNLINK', KEYS[1]) end
    call('RPUSH', KEYS[1], now, 0, place, hits)
    call('PEXPIREAT', KEYS[1], ceil(until_ / 1000) + shift)
    return { now, 0, 0, requests - hits, hits, now, wanted, place, place }
  end

  -- At most the oldest entry counts no more, and the next one brings room: nothing has to be searched.
  local drops = first and moves and first <= gone
  if drops then base, first, first_sum = first_sum, tonumber(head[5]), tonumber(head[6]) end
  if first and now >= latest and (first > gone or not moves) and sum - base + wanted - requests <= first_sum - base then
    local before = sum - base
    local left = requests > before and requests - before or 0
    if drops then call('LTRIM', KEYS[1], 2, -1) end
    if moves then call('LSET', KEYS[1], 0, now) end
    if wanted > left then return { now, 1, before, left, 0, now, wanted, first, newest } end
    if hits > 0 then
      sum, left = sum + hits, left - hits
      if place > newest then
        call('RPUSH', KEYS[1], place, sum)
        call('PEXPIREAT', KEYS[1], ceil(until_ / 1000) + shift)
        newest = place
      else
        call('LSET', KEYS[1], -1, sum)
      end
    end
    return { now, 0, before, left, hits, now, wanted, first, newest }
  end
end
