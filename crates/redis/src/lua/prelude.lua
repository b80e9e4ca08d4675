-- The clock of every decision is this server's. `shift` moves expiry, in milliseconds; only tests need it.
local clock = redis.call('TIME')
local now, shift = clock[1] * 1000000 + clock[2], 0
