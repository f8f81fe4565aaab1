"""Checks captured webhook requests with the reference libraries of another ecosystem.

Reads one JSON object per line:

    {"format": "hasura" | "cloudevents" | "cloudevents-binary",
     "headers": {name: value}, "body": base64, "secrets": [whsec_…],
     "attributes": {name: text}, "data": base64 of the JSON that must have arrived}

Every secret must verify the signature, a wrong one and a changed body must not, and the CloudEvents
SDK must find the attributes and the data. Prints one line per request; ends with 1 at the first
that is not accepted.
"""

import base64
import json
import sys
from datetime import datetime
from decimal import Decimal

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat
from standardwebhooks import Webhook, WebhookVerificationError

WRONG_SECRET = "whsec_" + base64.b64encode(b"somebody else's secret !").decode()


class Refused(Exception):
    pass


def exact(text):
    """Parses JSON so that two numbers are equal only if they are written with the same value."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def must_not_verify(secret, body, headers):
    try:
        Webhook(secret).verify(body, headers)
    except WebhookVerificationError:
        return
    raise Refused("a wrong signature was accepted")


def check_signature(headers, body, secrets):
    for secret in secrets:
        Webhook(secret).verify(body, headers)
        must_not_verify(secret, body + b" ", headers)
        must_not_verify(secret, body, {**headers, "webhook-id": "another"})
    if secrets:
        must_not_verify(WRONG_SECRET, body, headers)


def check_event(headers, body, attributes):
    event = from_http_event(HTTPMessage(headers=headers, body=body), JSONFormat())
    found = event.get_attributes()
    for name, wanted in attributes.items():
        value = found.get(name)
        if isinstance(value, datetime):
            wanted = datetime.fromisoformat(wanted.replace("Z", "+00:00"))
        if value != wanted:
            raise Refused(f"{name} is {value!r} instead of {wanted!r}")
    unknown = set(found) - set(attributes)
    if unknown:
        raise Refused(f"unexpected attributes: {sorted(unknown)}")
    return event.get_data()


def check(request):
    headers = {name.lower(): value for name, value in request["headers"].items()}
    body = base64.b64decode(request["body"])
    data = base64.b64decode(request["data"])
    check_signature(headers, body, request["secrets"])
    # The SDK reads numbers as floats, so digits are compared without it.
    arrived = exact(body)
    if request["format"] != "hasura":
        if check_event(headers, body, request["attributes"]) != json.loads(data):
            raise Refused("the SDK found other data")
        if request["format"] == "cloudevents":
            arrived = arrived["data"]
    if arrived != exact(data):
        raise Refused("something in the data has changed")


def main():
    count = 0
    for line in sys.stdin:
        request = json.loads(line)
        try:
            check(request)
        except Exception as error:  # whatever a library throws is a refusal
            print(f"{request['format']}: {type(error).__name__}: {error}")
            return 1
        print(f"{request['format']}: accepted")
        count += 1
    if count == 0:
        print("there was nothing to check")
        return 1
    return 0


sys.exit(main())
