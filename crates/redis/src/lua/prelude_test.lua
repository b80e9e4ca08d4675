-- The clock of the contract suite is in the last two arguments: the time in microseconds, and the milliseconds by
-- which expiry is moved, so that no key expires while the suite's time stands still.
local shift = tonumber(table.remove(ARGV))
local now = tonumber(table.remove(ARGV))
