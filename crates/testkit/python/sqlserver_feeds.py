"""A feed by the documented T-SQL alone (docs/sqlserver.md), with a driver that is not ours.

usage: sqlserver_feeds.py URL

Makes feed 37 with two shards, publishes to it in transactions of which some are rolled back,
sweeps, waits, reads pages, and keeps a cursor. Everything is asserted here; prints what it has
read, one line `SHARD NUMBER CHANGE_ID NOTE` per change.
"""

import sys
import threading
import time
from urllib.parse import unquote, urlsplit

import pymssql

START = 2000000000000000

PUBLISH = """
set xact_abort on;
begin transaction;
declare @change_id bigint = next value for changefeed.change_id;
insert into dbo.MyEvent (id, note, change_id) values (%(id)s, %(note)s, @change_id);
insert into changefeed.change (feed_id, shard, change_id) values (37, %(shard)s, @change_id);
"""

PAGE = """
select top (%(limit)s) c.change_sequence_number, c.change_id, e.note
from changefeed.change c join dbo.MyEvent e on e.change_id = c.change_id
where c.feed_id = 37 and c.shard = %(shard)s and c.change_sequence_number > %(cursor)s
order by c.change_sequence_number
"""

SWEEP_LOOP = """
declare @changes bigint, @lag bigint, @turns bigint;
exec changefeed.sweep_loop @sweep_group = 0, @wait_milliseconds = 1000,
    @duration_milliseconds = %s, @sleep_milliseconds = 10,
    @change_count = @changes output, @max_lag_milliseconds = @lag output, @iterations = @turns output;
select @changes, @lag, @turns
"""

# What one reader does by itself: its effect and its cursor are one transaction.
CONSUME = """
set xact_abort on;
begin transaction;
insert into dbo.Seen (note) values (%(note)s);
update changefeed.consumer set [cursor] = %(cursor)s, updated_at = sysutcdatetime()
where name = N'mail' and feed_id = 37 and shard = %(shard)s;
if @@rowcount = 0
    insert into changefeed.consumer (name, feed_id, shard, [cursor])
    values (N'mail', 37, %(shard)s, %(cursor)s);
commit transaction;
"""


def connect(url):
    parts = urlsplit(url)
    return pymssql.connect(
        server=parts.hostname,
        port=str(parts.port or 1433),
        user=unquote(parts.username),
        password=unquote(parts.password),
        database=parts.path.strip("/"),
        autocommit=True,
    )


def publish(cursor, number, note, shard=0, end="commit transaction"):
    cursor.execute(PUBLISH + end, {"id": number, "note": note, "shard": shard})


def read(cursor, shard, after=START, limit=100):
    cursor.execute(PAGE, {"limit": limit, "shard": shard, "cursor": after})
    return cursor.fetchall()


def longpoll(cursor, after, timeout):
    """Waits in a transaction, as the procedure asks for; returns how long it took."""
    began = time.monotonic()
    cursor.execute("begin transaction")
    cursor.execute("exec changefeed.longpoll 37, 0, %s, %s", (after, timeout))
    cursor.execute("commit transaction")
    return time.monotonic() - began


def prepare(cursor):
    cursor.execute("create table dbo.MyEvent (id int primary key, note nvarchar(100), change_id bigint)")
    cursor.execute("create table dbo.Seen (note nvarchar(100))")
    cursor.execute("insert into changefeed.feed (feed_id, name) values (37, 'my_event')")
    cursor.execute("insert into changefeed.shard (feed_id, shard) values (37, 0), (37, 1)")


def publish_and_sweep(cursor):
    for number in range(20):
        publish(cursor, number, f"note {number}", shard=number % 2)
    for number in range(20, 25):
        publish(cursor, number, "taken back", end="rollback transaction")
    assert read(cursor, 0) == [], "nothing has a number before a sweep"
    cursor.execute("exec changefeed.sweep 0")
    swept = [(feed, shard, count) for feed, shard, count, _lag in cursor.fetchall()]
    assert swept == [(37, 0, 10), (37, 1, 10)], swept


def page_through(cursor):
    for shard in (0, 1):
        after, notes = START, []
        while page := read(cursor, shard, after, limit=3):
            assert [row[0] for row in page] == [after + n + 1 for n in range(len(page))], page
            after = page[-1][0]
            notes += [row[2] for row in page]
        assert notes == [f"note {n}" for n in range(shard, 20, 2)], notes


def wait(url, cursor):
    """A reader on another connection is back when there is more, and when the time is over."""
    woken, took = threading.Event(), []

    def read_on():
        with connect(url) as connection, connection.cursor() as waiting:
            longpoll(waiting, START, 10000)  # There is something already.
            took.append(longpoll(waiting, START + 10, 100))
            waits.set()
            took.append(longpoll(waiting, START + 10, 60000))
            woken.set()
            took.extend(read(waiting, 0, START + 10))

    waits = threading.Event()
    reader = threading.Thread(target=read_on)
    reader.start()
    assert waits.wait(50), "it did not come back when the time was over"
    publish(cursor, 100, "woken up")
    assert not woken.is_set(), "woken before there was a number"
    cursor.execute(SWEEP_LOOP, (200,))
    ((changes, lag, turns),) = cursor.fetchall()
    assert changes == 1 and lag >= 0 and turns > 0, (changes, lag, turns)
    reader.join(timeout=50)
    in_vain, until_woken, (number, _, note) = took
    assert in_vain >= 0.09, f"nothing came, and it waited only {in_vain} s"
    assert until_woken < 50, until_woken
    assert (number, note) == (START + 11, "woken up"), took


def consume(cursor):
    for number, _, note in read(cursor, 0, limit=4):
        cursor.execute(CONSUME, {"note": note, "cursor": number, "shard": 0})
    cursor.execute("select shard, [cursor] from changefeed.consumer where name = N'mail'")
    rows = [(shard, int(at)) for shard, at in cursor.fetchall()]
    assert rows == [(0, START + 4)], rows


def main():
    url = sys.argv[1]
    with connect(url) as connection, connection.cursor() as cursor:
        prepare(cursor)
        publish_and_sweep(cursor)
        page_through(cursor)
        wait(url, cursor)
        consume(cursor)
        try:
            publish(cursor, 200, "nowhere", shard=9)
            raise SystemExit("a shard that does not exist took a change")
        except pymssql.Error:
            cursor.execute("if @@trancount > 0 rollback transaction")
        for shard in (0, 1):
            for number, change_id, note in read(cursor, shard):
                print(shard, number, change_id, note)


main()
