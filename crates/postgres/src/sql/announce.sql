with forgotten as (
    delete from changefeed.instance
    where name <> $1 and seen_at < clock_timestamp() - $6::float8 * interval '1 second'
)
insert into changefeed.instance (name, roles, address, version, tallies)
values ($1, $2, $3, $4, $5)
on conflict (name) do update
set roles = excluded.roles, address = excluded.address, version = excluded.version,
    tallies = excluded.tallies, seen_at = clock_timestamp()
