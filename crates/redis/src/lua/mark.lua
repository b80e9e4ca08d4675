-- The mark of a primary: since when nothing that was counted is missing. A node reads it before it uses a connection,
-- and then once a second.
--
-- KEYS: the mark, which is named after the process. ARGV: the id of the data's history; 1 if the server has taken its
-- data over from another; how long after a loss hits of leases may still be spent; since when nothing is missing as the
-- node knows it, if the mark had another name before, or 0; how long ago the node last used another primary, or -1; and
-- the life of a mark in seconds, or 0 if it need not be prolonged. Times are in microseconds. The value: a double, and
-- that id. The reply: now, and since when nothing is missing.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local history, took_over, spent_late, known, used_ago, life =
  ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local marked = redis.call('GET', KEYS[1])
local since, known_history = known > 0 and known or now + spent_late, ''
if marked then
  since, known_history = struct.unpack('<d', marked), marked:sub(9)
end
-- The process was a replica meanwhile, and has the data of another.
if took_over and known_history ~= '' and known_history ~= history then since = now + spent_late end
-- Until then hits were admitted that this server never saw.
if used_ago >= 0 and now - used_ago + spent_late > since then since = now - used_ago + spent_late end
local mark = struct.pack('<d', since) .. history
if mark ~= marked then
  redis.call('SET', KEYS[1], mark, 'EX', MARK_LIFE)
elseif life > 0 then
  redis.call('EXPIRE', KEYS[1], life)
end
return struct.pack('<dd', now, since)
