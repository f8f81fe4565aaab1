"""Judges the description of our HTTP interface: it is valid OpenAPI, and a client that was generated from
it reads a feed.

usage: read_api.py URL TOKEN FEED DIRECTORY

Prints the changes of shard 0 of the feed as the client understood them, one JSON object a line.
"""

import importlib
import json
import pathlib
import subprocess
import sys
import urllib.request

from openapi_spec_validator import validate


def main() -> None:
    url, token, feed, directory = sys.argv[1:]
    scratch = pathlib.Path(directory)
    with urllib.request.urlopen(f"{url}/api/openapi.json") as answer:
        text = answer.read()
    description = json.loads(text)
    validate(description)
    operations = [
        operation["operationId"]
        for methods in description["paths"].values()
        for operation in methods.values()
    ]
    assert len(operations) == len(set(operations)), "an operation id is there twice"

    path = scratch / "openapi.json"
    path.write_bytes(text)
    # Its formatter is asked for by name; without it the client is the same.
    config = scratch / "config.yml"
    config.write_text("post_hooks: []\n")
    generator = pathlib.Path(sys.executable).with_name("openapi-python-client")
    command = [generator, "generate", "--path", path, "--output-path", scratch / "api_client"]
    command += ["--meta", "none", "--config", config, "--fail-on-warning"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr

    sys.path.insert(0, str(scratch))
    client = importlib.import_module("api_client").AuthenticatedClient(
        base_url=url, token=token, raise_on_unexpected_status=True
    )
    read_shard = importlib.import_module("api_client.api.feeds.read_shard")
    after = "first"
    while True:
        page = read_shard.sync(client=client, feed=feed, shard=0, after=after, limit=2)
        for change in page.changes:
            print(json.dumps(change.to_dict()))
        after = page.next_
        if not page.changes:
            break
    # Everything else that can be asked without an argument is understood too.
    for module in [
        "feeds.list_feeds",
        "triggers.list_triggers",
        "watches.list_watches",
        "events.list_events",
        "status.get_status",
        "status.list_instances",
        "status.list_findings",
        "tokens.list_tokens",
    ]:
        assert importlib.import_module(f"api_client.api.{module}").sync(client=client) is not None


main()
