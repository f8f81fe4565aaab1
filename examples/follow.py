"""Follows a feed over HTTP with nothing but Python: every change once, in order, also after a restart.

usage: follow.py http://127.0.0.1:8787 FEED SHARD

The cursor is kept in a file, after the change was printed: a change that was cut off in between comes again.
Where that is not good enough, keep the cursor in the database of the effects (docs/guides/exactly-once.md).
"""

import http.client
import json
import os
import pathlib
import signal
import sys
import time
import urllib.error
import urllib.request

server, feed, shard = sys.argv[1:]
place = pathlib.Path(f"{feed}-{shard}.cursor")
changes = f"{server}/api/feeds/{feed}/shards/{shard}/changes"
headers = {"accept": "application/json"}
if token := os.environ.get("CHANGEFEED_TOKEN"):
    headers["authorization"] = f"Bearer {token}"

while True:
    cursor = place.read_text() if place.exists() else "first"
    # The answer comes as soon as there is something, or empty after 30 seconds.
    request = urllib.request.Request(f"{changes}?after={cursor}&limit=1000&wait=30000", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            page = json.load(answer)
    except urllib.error.HTTPError as refusal:
        if refusal.code == 503:
            time.sleep(int(refusal.headers.get("retry-after", "1")))
            continue
        sys.exit(json.load(refusal)["detail"])
    except (OSError, http.client.HTTPException):
        # Away, restarted or cut off: the cursor knows where to go on.
        time.sleep(1)
        continue
    # Ctrl-C waits until it is written down what was printed.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    for change in page["changes"]:
        print(change["cursor"], json.dumps(change["row"]), flush=True)
    # Written beside and moved, so that a crash leaves the old cursor or the new one.
    new = place.with_suffix(".new")
    new.write_text(page["next"])
    new.replace(place)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
