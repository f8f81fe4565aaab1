with old as materialized (
    select n.change_sequence_number, n.change_id
    from changefeed.numbered n
    where n.feed_id = $1 and n.shard = $2 and n.change_sequence_number <= $3
    order by n.change_sequence_number
    limit $4
),
gone as (
    delete from changefeed.numbered n using old
    where n.feed_id = $1 and n.shard = $2
      and n.change_sequence_number = old.change_sequence_number
),
unlinked as (
    -- Only captured feeds have links, each under an id of its own.
    delete from changefeed.change_row r using old
    where r.change_id = old.change_id and r.feed_id = $1
      and exists (select from changefeed.feed_source s
                  where s.feed_id = $1 and s.kind = 'captured')
),
remembered as (
    update changefeed.shard_definition d
    set trimmed_to = greatest(d.trimmed_to, (select max(o.change_sequence_number) from old o))
    where d.feed_id = $1 and d.shard = $2 and exists (select from old)
),
forgotten as (
    -- The marks of what is gone; the newest row is the shard's own position and stays.
    delete from changefeed.progress p
    where p.feed_id = $1 and p.shard = $2
      and p.last_change_sequence_number < (select max(o.change_sequence_number) from old o)
)
select count(*) from old
