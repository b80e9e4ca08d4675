if alone == FIXED_WINDOW then
  local text, latest, count, kept = call('GET', KEYS[1]), 0, 0
  if text then latest, count = struct.unpack('<dd', text) end
  if now > latest then
    if latest - latest % window + window <= now then count = 0 end
    latest = now
  end
  local before = count
  if hits > 0 then
    if count == 0 then kept = ceil((latest - latest % window + window) / 1000) + shift end
    count = count + hits < MOST and count + hits or MOST
  end
  if text or hits > 0 then call('SET', KEYS[1], struct.pack('<dd', latest, count), 'KEEPTTL') end
  if kept then call('PEXPIREAT', KEYS[1], kept) end
  local over, left = hits > requests - before and 1 or 0, requests > count and requests - count or 0
  return pack('<ddddddddd', now, over, before, left, hits, latest, over == 1 and reported and 1 or wanted, count, 0)
end
