-- Notes where a redelivery of many events begins ($2, the newest, exclusively), unless a request with this key
-- ($1) has begun before.
with forgotten as (
    delete from changefeed.event_request r
    where r.created_at < clock_timestamp() - interval '1 day' and r.key <> $1
)
insert into changefeed.event_request (key, change_id, bits) values ($1, $2, 0)
on conflict (key) do nothing
