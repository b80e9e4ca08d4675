-- Raises numbers in a hash: each only grows. KEYS: the hash. ARGV: a text that no other call has, then fields, each with
-- its number as digits of a fixed count. Returns whether one was raised; then the field '' holds the text, so that a
-- node sees by one field that there is something new.
local raised = 0
for place = 2, #ARGV, 2 do
  local known = redis.call('HGET', KEYS[1], ARGV[place])
  if not known or known < ARGV[place + 1] then
    redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1])
    raised = 1
  end
end
if raised == 1 then redis.call('HSET', KEYS[1], '', ARGV[1]) end
return raised
