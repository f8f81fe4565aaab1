-- Empties what was kept of a row of the table $1, which is known by these columns ($2) and their values ($3).
with wanted as materialized (
    select w.name, w.value, w.shown
    from changefeed.kept_key($1, $2::text[], $3::text[]) k
    cross join lateral unnest($2::text[], k.texts, k.shown) w(name, value, shown)
),
changes as (
    update changefeed.change_row r
    set old = case when r.old is not null then '{}'::json end,
        new = case when r.new is not null then '{}'::json end
    from changefeed.feed_source f
    cross join lateral changefeed.key_form(f.feed_id) k
    where f.kind = 'captured' and f.source = $1::oid::regclass and r.feed_id = f.feed_id
      and num_nonnulls(r.old, r.new) > 0
      and case when k.names @> $2::text[] and k.names <@ $2::text[]
               then r.key = (select jsonb_agg(w.value order by n.place)
                             from unnest(k.names) with ordinality n(name, place) join wanted w on w.name = n.name)
               -- The table has got another primary key since the feed was made.
               else (select bool_and(coalesce(r.old ->> w.name = w.shown, false)) from wanted w)
                    or (select bool_and(coalesce(r.new ->> w.name = w.shown, false)) from wanted w) end
    returning 1
),
matching as materialized (
    select e.change_id, e.state = 'p' as pending
    from changefeed.event e join changefeed.event_trigger t on t.trigger_id = e.trigger_id
    where t.source = $1::oid::regclass
      and ((select bool_and(coalesce(e.old ->> w.name = w.shown, false)) from wanted w)
           or (select bool_and(coalesce(e.new ->> w.name = w.shown, false)) from wanted w))
),
events as (
    update changefeed.event e
    set old = case when e.old is not null then '{}'::json end,
        new = case when e.new is not null then '{}'::json end,
        session_variables = null, trace_context = null
    -- One that is delivered again by now is asked about as it is.
    from matching m where m.change_id = e.change_id and not m.pending and e.state <> 'p'
    returning 1
),
attempts as (
    update changefeed.event_attempt a set request = null, response = null, error = null
    from matching m where m.change_id = a.change_id and not m.pending
)
select (select count(*) from changes), (select count(*) from events),
       (select count(*) from matching m where m.pending)
