if alone == 1 and numerator == 1 then
  local reply, granted = decide_window(KEYS[1], requests, window, denominator, hits, lease, lease_time)
  return pack('<d', now) .. reply .. (granted or '')
end
