-- Appends a batch to the stream KEYS[1] if its newest id still is ARGV[1]; otherwise returns the newest id.
-- ARGV[2] is the length to trim to, or 0. Then, for each entry, the number of words that follow: its id, fields and values.
-- The newest id survives trimming and deleting. An XADD that fails ends the script: entries before it stay, none after.
local last = '0-0'
if redis.call('EXISTS', KEYS[1]) == 1 then
    local info = redis.call('XINFO', 'STREAM', KEYS[1])
    for i = 1, #info, 2 do
        if info[i] == 'last-generated-id' then last = info[i + 1] end
    end
end
if last ~= ARGV[1] then return last end
local at = 3
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    if ARGV[2] == '0' then
        redis.call('XADD', KEYS[1], unpack(ARGV, at + 1, at + words))
    else
        redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], unpack(ARGV, at + 1, at + words))
    end
    at = at + words + 1
end
return 'appended'
