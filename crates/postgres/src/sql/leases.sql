-- Takes or renews many leases ($1): those that the owner ($3) has, and at most $5 that are free, expired, or whose renewal is
-- as old as $2 says. One statement for all: an idle instance with a hundred of them costs what one with a single one
-- does. A row that is locked is left out: who locks it is taking it, and a session that is stopped in the middle
-- must not hold up the other leases. Of what others hold the renewal is told.
with wanted as materialized (
    select w.name, w.stale from unnest($1::text[], $2::bigint[]) w (name, stale)
), free as (
    select l.name from changefeed.lease l join wanted w on w.name = l.name
    where l.owner = $3::text or l.expires_at <= clock_timestamp() or l.renewal = w.stale
    order by (l.owner = $3::text) desc, l.name
    limit $5::bigint + (select count(*) from changefeed.lease o join wanted w on w.name = o.name where o.owner = $3::text)
    for update of l skip locked
), taken as (
    update changefeed.lease l
    set owner = $3::text,
        generation = case when l.owner = $3::text and l.expires_at > clock_timestamp()
                          then l.generation else l.generation + 1 end,
        renewal = l.renewal + 1,
        ttl_milliseconds = $4::integer,
        expires_at = clock_timestamp() + $4::integer * interval '1 millisecond'
    from free f where l.name = f.name
    returning l.name, l.generation
), begun as (
    insert into changefeed.lease (name, owner, generation, ttl_milliseconds, expires_at)
    select w.name, $3::text, 1, $4::integer, clock_timestamp() + $4::integer * interval '1 millisecond'
    from wanted w
    where not exists (select from changefeed.lease l where l.name = w.name)
    order by w.name limit $5::bigint
    on conflict do nothing
    returning name, generation
)
select t.name, t.generation, null::bigint, null::integer from taken t
union all
select b.name, b.generation, null::bigint, null::integer from begun b
union all
select l.name, null::bigint, l.renewal, l.ttl_milliseconds
from changefeed.lease l join wanted w on w.name = l.name
where not exists (select from taken t where t.name = l.name)
