-- Raises numbers in a hash: each only grows. KEYS: the hash. ARGV: a text that no other call has; 1 if the hash may be
-- made; then fields, each with its number of sixteen hex digits: nanoseconds since 1970, an hour ahead at most.
--
-- Returns nothing if there is no hash and none may be made. Otherwise whether one was raised, and then the fields that
-- were not raised, each with the greater number that is there, or with an empty text if its number is too far ahead.
-- Each change gives the field '' another text, so that a node sees by one field that there is something new. A number
-- that is none, or is too far ahead, was not written here, and is replaced.
local clock = redis.call('TIME')
local ahead = (clock[1] + 3600) * 1000000000 + clock[2] * 1000
local greatest = string.format('%08x%08x', math.floor(ahead / 4294967296), ahead % 4294967296)
local is_there = redis.call('HGET', KEYS[1], '')
if not is_there and ARGV[2] ~= '1' then return false end
local reply, raised = { 0 }, not is_there
for place = 3, #ARGV, 2 do
  local field, number = ARGV[place], ARGV[place + 1]
  local known = redis.call('HGET', KEYS[1], field)
  if known and (#known ~= 16 or known:find('[^0-9a-f]') or known > greatest) then known = nil end
  if number > greatest then
    reply[#reply + 1], reply[#reply + 2] = field, ''
  elseif not known or known < number then
    redis.call('HSET', KEYS[1], field, number)
    raised = true
  elseif known > number then
    reply[#reply + 1], reply[#reply + 2] = field, known
  end
end
if raised then
  reply[1] = 1
  redis.call('HSET', KEYS[1], '', ARGV[1])
  -- Twice the longest window. If nobody changes it for so long, nodes that run write it again.
  redis.call('EXPIRE', KEYS[1], 3 * 366 * 86400)
end
return reply
