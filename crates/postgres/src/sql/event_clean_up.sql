-- Removes a batch of finished events that are old enough, with their attempts. What a consumer of
-- the trigger's feed has not read yet is kept: nothing at or after the oldest unread change goes.
with kept as materialized (
    select t.trigger_id, least(min(u.change_id), min(p.change_id)) as from_change
    from changefeed.event_trigger t
    join (select c.feed_id, c.shard,
                 min(case when c.cursor ~ '^[0-9]{1,18}$' then c.cursor::bigint end) as read
          from changefeed.consumer c group by c.feed_id, c.shard) c on c.feed_id = t.feed_id
    cross join lateral (
        select min(n.change_id) as change_id from changefeed.numbered n
        where n.feed_id = c.feed_id and n.shard = c.shard
          and n.change_sequence_number > coalesce(c.read, 0)) u
    cross join lateral (
        select min(p.change_id) as change_id from changefeed.pending p
        where p.feed_id = c.feed_id and p.shard = c.shard) p
    group by t.trigger_id
),
-- A time of its own, because a clock in a condition keeps the server from using an index.
before as materialized (
    select clock_timestamp() - $2 * interval '1 second' as moment
),
doomed as materialized (
    select e.change_id
    from changefeed.event_trigger t
    left join kept k on k.trigger_id = t.trigger_id
    cross join lateral (
        select e.change_id from changefeed.event e
        where e.trigger_id = t.trigger_id and e.state <> 'p' and ($4 or e.state <> 'e')
          and e.created_at < (select b.moment from before b)
          and (k.from_change is null or e.change_id < k.from_change)
        order by e.created_at
        limit $3
        for update skip locked) e
    where $1::integer is null or t.trigger_id = $1
    limit $3
),
attempts as (
    delete from changefeed.event_attempt a using doomed d where a.change_id = d.change_id
    returning 1
),
events as (
    delete from changefeed.event e using doomed d where e.change_id = d.change_id
    returning 1
)
select (select count(*) from events), (select count(*) from attempts)
