"""Reads a feed with the client of ZeroEventHub, and prints the ids of its rows by partition."""

import asyncio
import json
import sys

import httpx
import zeroeventhub
from zeroeventhub import FIRST_CURSOR, Client, Cursor


async def read(url: str) -> dict[int, list[int]]:
    seen: dict[int, list[int]] = {0: [], 1: []}
    cursors = {0: FIRST_CURSOR, 1: FIRST_CURSOR}
    async with httpx.AsyncClient() as http:
        client = Client(url, 2, http)
        while True:
            before = sum(map(len, seen.values()))
            wanted = [Cursor(partition, cursor) for partition, cursor in cursors.items()]
            # Smaller than the feed, so that cursors are really gone on from.
            async for item in client.fetch_events(wanted, page_size_hint=14):
                if isinstance(item, Cursor):
                    cursors[item.partition_id] = item.cursor
                else:
                    seen[item.partition_id].append(item.data["row"]["id"])
            if sum(map(len, seen.values())) == before:
                return seen


if __name__ == "__main__":
    assert zeroeventhub
    print(json.dumps(asyncio.run(read(sys.argv[1]))))
