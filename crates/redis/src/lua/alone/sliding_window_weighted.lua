if alone == SLIDING_WINDOW_WEIGHTED then
  local text, latest, current, previous = call('GET', KEYS[1]), 0, 0, 0
  if text then latest, current, previous = struct.unpack('<dI4I4', text) end
  local saved = text and now > latest
  if now > latest then
    local into = now - latest + latest % window
    if into >= window then previous, current = into < 2 * window and current or 0, 0 end
    latest = now
  end
  local before = current + ceil((window - latest % window) * previous / window)
  local left, charged, kept = requests > before and requests - before or 0, 0
  local over = wanted > left
  if window * (current + previous) < MOST and not (over and reported) then
    if hits > 0 and not over then
      if current == 0 then kept = ceil((latest - latest % window + 2 * window) / 1000) + shift end
      current, left, charged, saved = current + hits, left - hits, hits, true
    end
    if saved then call('SET', KEYS[1], struct.pack('<dI4I4', latest, current, previous), 'KEEPTTL') end
    if kept then call('PEXPIREAT', KEYS[1], kept) end
    return pack('<ddddddddd', now, over and 1 or 0, before, left, charged, latest, wanted, current, previous)
  end
end
