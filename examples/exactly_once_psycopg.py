"""Keeps the balance of every customer in the PostgreSQL database that the feed is in, with plain SQL.

usage: exactly_once_psycopg.py DATABASE_URL FEED SHARD

The feed keeps images (`feed create payments --from payment --images`). Balances and cursor change in one transaction.
If the database is restored from a backup both go back together, so this consumer need not notice.
"""

import sys

import psycopg

url, feed, shard = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = psycopg.connect(url, autocommit=True)
db.execute("create table if not exists balance (customer bigint primary key, cents bigint not null)")
db.execute(
    "create table if not exists balance_progress (feed text, shard integer, cursor bigint, primary key (feed, shard))"
)
db.execute("insert into balance_progress values (%s, %s, null) on conflict do nothing", (feed, shard))
# Every sweep that has numbered something is announced here. Listen first and read then, so that nothing is missed.
db.execute("listen changefeed")


def book(payment, sign):
    if payment is not None:
        db.execute(
            "insert into balance values (%s, %s)"
            " on conflict (customer) do update set cents = balance.cents + excluded.cents",
            (payment["customer"], sign * payment["cents"]),
        )


def page():
    """Applies the next changes, and returns what they were."""
    with db.transaction():
        # The lock makes copies of this program take turns.
        (cursor,) = db.execute(
            "select cursor from balance_progress where feed = %s and shard = %s for update", (feed, shard)
        ).fetchone()
        # An expired cursor is an error (CF101), never a jump.
        changes = db.execute(
            "select change_sequence_number, op, key, old, new from changefeed.read(%s, %s, %s, 100)"
            " order by change_sequence_number",
            (feed, shard, cursor),
        ).fetchall()
        for number, _, _, old, new in changes:
            book(old, -1)
            book(new, 1)
            cursor = number
        db.execute("update balance_progress set cursor = %s where feed = %s and shard = %s", (cursor, feed, shard))
    return changes


while True:
    done = page()
    for number, op, key, _, _ in done:
        print(number, op, key, flush=True)
    if not done:
        # Wakes up early for what is new, and looks every ten seconds in any case.
        for _ in db.notifies(timeout=10, stop_after=1):
            pass
