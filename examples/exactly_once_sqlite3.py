"""Keeps the balance of every customer in an SQLite file of its own, from a feed that it follows over HTTP.

usage: exactly_once_sqlite3.py http://127.0.0.1:8787 FEED SHARD FILE

The feed keeps images (`feed create payments --from payment --images`), so each change tells the payment before and
after it. Balances and cursor change in one transaction: however often this is killed, and however many copies of it
run, each change counts once.
"""

import http.client
import json
import os
import sqlite3
import sys
import time
import urllib.error
import urllib.request

server, feed, shard, file = sys.argv[1:]
books = sqlite3.connect(file, isolation_level=None, timeout=30)
books.executescript("""
    create table if not exists balance (customer integer primary key, cents integer not null);
    create table if not exists progress (cursor text, incarnation text);
    insert into progress select null, null where not exists (select * from progress);
""")


def events(answer):
    """The server-sent events of an answer: their ids and their data."""
    event = {"event": "message"}
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            event[name] = value
        elif "id" in event or "data" in event:
            yield event
            event = {"event": "message"}


def book(payment, sign):
    if payment is not None:
        books.execute(
            "insert into balance values (?, ?) on conflict (customer) do update set cents = cents + excluded.cents",
            (payment["customer"], sign * payment["cents"]),
        )


def apply(change, before, incarnation):
    """Returns whether the change was ours to apply: another copy of this program may have been quicker."""
    books.execute("begin immediate")
    try:
        moved = books.execute(
            "update progress set cursor = ?, incarnation = ? where cursor is ?",
            (change["cursor"], incarnation, before),
        ).rowcount
        if moved:
            book(change["old"], -1)
            book(change["new"], 1)
        books.execute("commit")
        return bool(moved)
    except BaseException:
        books.execute("rollback")
        raise


while True:
    cursor, incarnation = books.execute("select cursor, incarnation from progress").fetchone()
    headers = {"accept": "text/event-stream"}
    if token := os.environ.get("CHANGEFEED_TOKEN"):
        headers["authorization"] = f"Bearer {token}"
    if incarnation:
        # After the feed's database was restored from a backup this is refused: some of what was counted is gone.
        headers["changefeed-incarnation"] = incarnation
    address = f"{server}/api/feeds/{feed}/shards/{shard}/changes?after={cursor or 'first'}"
    try:
        # A stream without news shows a sign of life every 15 seconds.
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
            incarnation = answer.headers["changefeed-incarnation"]
            for event in events(answer):
                if event["event"] == "error":
                    sys.exit(json.loads(event["data"])["detail"])
                if "data" not in event:  # where the stream begins
                    continue
                change = json.loads(event["data"])
                if not apply(change, cursor, incarnation):
                    break
                cursor = change["cursor"]
                print(cursor, change["op"], json.dumps(change["key"]), flush=True)
            else:
                time.sleep(1)
    except urllib.error.HTTPError as refusal:
        if refusal.code != 503:
            sys.exit(json.load(refusal)["detail"])
        time.sleep(int(refusal.headers.get("retry-after", "1")))
    except (OSError, http.client.HTTPException):
        # Away, restarted or cut off: the cursor knows where to go on.
        time.sleep(1)
