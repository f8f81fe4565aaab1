"""Reads what an exporter has sent to a collector, by the messages that OpenTelemetry publishes.

One request per line, its body in base64. Prints one JSON object per span.
"""

import base64
import json
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

for line in sys.stdin:
    request = ExportTraceServiceRequest.FromString(base64.b64decode(line))
    for resource in request.resource_spans:
        service = [a.value.string_value for a in resource.resource.attributes if a.key == "service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                values = {a.key: a.value.int_value or a.value.string_value for a in span.attributes}
                print(json.dumps({
                    "service": service,
                    "name": span.name,
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "kind": span.kind,
                    "status": span.status.code,
                    "message": span.status.message,
                    "values": values,
                    "began": span.start_time_unix_nano,
                }))
