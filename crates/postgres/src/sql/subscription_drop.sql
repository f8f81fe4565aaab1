-- Removes a subscription and its position.
with gone as (
    delete from changefeed.subscription s where s.name = $1 returning s.name, s.feed_id
), forgotten as (
    delete from changefeed.consumer c using gone g where c.name = g.name and c.feed_id = g.feed_id
)
select count(*) from gone
