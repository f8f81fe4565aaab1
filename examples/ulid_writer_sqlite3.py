"""Writes rows in the order of a shard with a ULID transaction on SQLite, with nothing but Python's own module.

usage: ulid_writer_sqlite3.py FILE FEED_UUID SHARD CUSTOMER SIZE [ROWS]

`ulid_transaction` is the whole protocol; docs/ulids.md tells what it rests on.
"""

import contextlib
import sqlite3
import sys


def connect(file):
    db = sqlite3.connect(file, timeout=30, isolation_level=None)
    # Without it a ULID transaction is refused: a deferred foreign key is what keeps it from ending before its time.
    db.execute("pragma foreign_keys = on")
    db.execute("pragma synchronous = full")
    return db


@contextlib.contextmanager
def ulid_transaction(db, *shards):
    """Begins with these pairs of feed and shard, and commits at the end of the block, or rolls back."""
    db.execute("begin immediate")
    try:
        db.executemany("insert into changefeed_ulid_transaction (feed_id, shard_id) values (?, ?)", shards)
        yield
        db.execute("delete from changefeed_ulid_transaction")
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def new_ulids(db, feed, shard, count=1):
    """The next ULIDs of a pair, in order, as 16 bytes each."""
    db.execute("insert into changefeed_new_ulid (feed_id, shard_id, count) values (?, ?, ?)", (feed, shard, count))
    rows = db.execute("select ulid from changefeed_new_ulid where feed_id = ? and shard_id = ? order by n", (feed, shard))
    return [ulid for (ulid,) in rows]


def main():
    file, feed, shard, customer, size, *rows = sys.argv[1:]
    db = connect(file)
    for _ in range(int(rows[0]) if rows else 1):
        with ulid_transaction(db, (feed, int(shard))):
            [ulid] = new_ulids(db, feed, int(shard))
            db.execute(
                "insert into shoe_size_changed (shard, ulid, customer_id, size) values (?, ?, ?, ?)",
                (int(shard), ulid, customer, size),
            )
        print("written as", ulid.hex(), flush=True)


main()
