-- The mark of a primary: since when nothing that was counted is missing. A node reads it before it uses a connection,
-- and then once a second.
--
-- After a loss, hits of leases may still be spent for a lease time. Nodes may differ in theirs, and the one that notices
-- a loss may have the shortest. So the mark names the longest, nodes remember it, and a new mark is written with it.
--
-- KEYS: the mark, which is named after the process. ARGV: the id of the data's history; 1 if the server has taken its
-- data over from another; the node's lease time; the longest that it has read; since when nothing is missing as the
-- node knows it, or -1; 1 if it knows that from a mark of another name; how long ago the node last used another
-- primary, or -1; and the life of a mark in seconds, or 0 if it need not be prolonged. Times are in microseconds.
--
-- The value is four doubles and that id: since when nothing is missing, the longest lease time, and when nodes with this
-- one and nodes with shorter ones last looked. The reply: now, the first two of these, and 1 if lease times differ.
local history, took_over, own, longest, known, renamed, used_ago, life = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]),
  tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7]), tonumber(ARGV[8])
-- A look is noted so often, and a lease time is forgotten so long after it may last have been used.
local NOTED, FORGOTTEN = 10000000, 60000000
local function noted(at) return now - at < NOTED and at or now end

local marked = redis.call('GET', KEYS[1])
local since, lease, longest_at, shorter_at, known_history = renamed and known or now + longest, longest, now, 0, ''
-- Anything shorter was not written by a node.
if marked and #marked >= 32 then
  since, lease, longest_at, shorter_at = struct.unpack('<dddd', marked)
  longest_at, shorter_at, known_history = math.min(longest_at, now), math.min(shorter_at, now), marked:sub(33)
  -- Whoever wrote another mark than the node knows may not have read of this lease time.
  local least = since == known and own or longest
  if least > lease then
    if since > 0 then since = since + least - lease end
    lease, longest_at = least, now
  elseif own < lease and now > longest_at + lease + FORGOTTEN then
    lease, longest_at = own, now
  end
end
if own < lease then shorter_at = noted(shorter_at) else longest_at = noted(longest_at) end
-- The process was a replica meanwhile, and has the data of another.
if took_over and known_history ~= '' and known_history ~= history then since = now + lease end
-- Until then hits were admitted that this server never saw.
if used_ago >= 0 and now - used_ago + lease > since then since = now - used_ago + lease end
-- This server's clock was set back. Whatever was lost was lost before now.
since = math.min(since, now + lease)
local mark = struct.pack('<dddd', since, lease, longest_at, shorter_at) .. history
if mark ~= marked then
  redis.call('SET', KEYS[1], mark, 'EX', MARK_LIFE)
elseif life > 0 then
  redis.call('EXPIRE', KEYS[1], life)
end
local differ = now - longest_at < FORGOTTEN and now - shorter_at < FORGOTTEN
return struct.pack('<dddd', now, since, lease, differ and 1 or 0)
