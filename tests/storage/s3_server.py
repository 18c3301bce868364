"""An S3 server (moto) on a free loopback port, with faults on demand; for the tests, which talk to it by JSON lines.

usage: PYTHONPATH=.deps/moto python3.11 s3_server.py

Objects of 32 MB and more are kept in temporary files and read from there by ranges: moto alone holds each request's whole
object in memory. Writes {"port": N} when it listens. Each line on stdin is a command, answered by one line; it ends with its stdin.
  {"do": "bucket", "name": B}                      creates a bucket
  {"do": "put", "bucket": B, "key": K, "text": T, "repeat": N, "acl": "public-read"}   (the last two may be left out)
  {"do": "delete", "bucket": B, "key": K}
  {"do": "fault", "path": P, "method": M, "times": N, ...}   the next N requests whose path holds P go wrong:
      "status": S, "code": C, "message": T, "headers": {..}   an S3 error
      "cut": BYTES                                 the connection is closed after so many bytes of the body
      "stall": true                                no answer until the next "clear"
      "delay": SECONDS                             the answer comes so much later
      and with "skip": K the first K such requests still go well
  {"do": "clear"}                                  no faults any more, and forgets the requests
  {"do": "requests"}                               [{"method", "path", "query", "signed", "range"}, ..] since "clear"
"""
import json
import logging
import mmap
import os
import sys
import tempfile
import threading
import time

os.environ.setdefault("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(1 << 20))  # what is larger is a temporary file

import boto3
from moto.s3 import models
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.CRITICAL)


LARGE = 32 << 20


class Joined:
    """The parts of a large upload, one after another in a temporary file: moto closes the parts' own before it asks."""

    def __init__(self, parts):
        self.file = tempfile.TemporaryFile()
        for part in parts:
            self.file.write(part.value)
        self.size = self.file.tell()

    def __len__(self):
        return self.size


def keep_large_objects_on_disk():
    plain_complete, plain_value = models.FakeMultipart.complete, models.FakeKey.value

    def complete(self, body):
        named = list(body)
        if sum(self.parts[n].contentsize for n, _ in named if n in self.parts) < LARGE:
            return plain_complete(self, iter(named))
        parts = [self.parts.get(n) for n, _ in named]
        if any(part is None or part.etag.strip('"') != etag.strip('"') for part, (_, etag) in zip(parts, named)):
            raise models.InvalidPart()
        return Joined(parts), f"{self.id[:32]}-{len(parts)}", None

    def get_value(self):
        if self.contentsize < LARGE:
            return plain_value.fget(self)
        with self.lock:
            self._value_buffer.flush()
            return mmap.mmap(self._value_buffer.fileno(), 0, access=mmap.ACCESS_READ)

    def set_value(self, new):
        if not isinstance(new, Joined):
            return plain_value.fset(self, new)
        self._value_buffer.close()
        self._value_buffer = new.file
        self.contentsize = len(new)

    models.FakeMultipart.complete = complete
    models.FakeKey.value = property(get_value, set_value)


class Faults:
    """Wraps the server's application: writes requests down and spoils those it was told to."""

    def __init__(self, app):
        self.app = app
        self.lock = threading.Lock()
        self.faults = []
        self.requests = []
        self.released = threading.Event()

    def clear(self):
        with self.lock:
            self.faults.clear()
            self.requests.clear()
        self.released.set()
        self.released = threading.Event()

    def add(self, fault):
        with self.lock:
            self.faults.append(fault)

    def next_fault(self, environ):
        with self.lock:
            for fault in self.faults:
                target = environ["PATH_INFO"] + "?" + environ.get("QUERY_STRING", "")
                if (fault.get("path", "") in target and fault["times"] > 0
                        and fault.get("method", environ["REQUEST_METHOD"]) == environ["REQUEST_METHOD"]):
                    if fault.get("skip", 0) > 0:
                        fault["skip"] -= 1
                        continue
                    fault["times"] -= 1
                    return fault
        return None

    def __call__(self, environ, start_response):
        own = environ.get("HTTP_USER_AGENT", "").startswith("Boto3")
        if own:
            return self.app(environ, start_response)
        with self.lock:
            self.requests.append({
                "method": environ["REQUEST_METHOD"], "path": environ["PATH_INFO"],
                "query": environ.get("QUERY_STRING", ""), "signed": "HTTP_AUTHORIZATION" in environ,
                "range": environ.get("HTTP_RANGE", "")})
        fault = self.next_fault(environ)
        if fault is None:
            return self.app(environ, start_response)
        if "status" in fault:
            body = "" if environ["REQUEST_METHOD"] == "HEAD" else (
                '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%s</Code><Message>%s</Message>'
                "<RequestId>1</RequestId></Error>" % (fault.get("code", ""), fault.get("message", "")))
            headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
            start_response(f"{fault['status']} Fault", headers + list(fault.get("headers", {}).items()))
            return [body.encode()]
        if "delay" in fault:
            time.sleep(fault["delay"])
            return self.app(environ, start_response)
        if fault.get("stall"):
            self.released.wait(600)
            return self.app(environ, start_response)
        return self.cut(environ, start_response, fault["cut"])

    def cut(self, environ, start_response, size):
        body = b"".join(self.app(environ, start_response))

        def parts():
            yield body[:size]
            raise ConnectionError("cut")
        return parts()


def handle(faults, client, command):
    do = command.pop("do")
    if do == "bucket":
        client.create_bucket(Bucket=command["name"])
    elif do == "put":
        extra = {"ACL": command["acl"]} if "acl" in command else {}
        body = command["text"].encode() * command.get("repeat", 1)
        client.put_object(Bucket=command["bucket"], Key=command["key"], Body=body, **extra)
    elif do == "delete":
        client.delete_object(Bucket=command["bucket"], Key=command["key"])
    elif do == "fault":
        faults.add(command)
    elif do == "clear":
        faults.clear()
    elif do == "requests":
        with faults.lock:
            return list(faults.requests)
    else:
        raise ValueError(do)
    return {}


def main():
    keep_large_objects_on_disk()
    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faults, threaded=True)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.port}", region_name="us-east-1",
                          aws_access_key_id="maker", aws_secret_access_key="maker")
    client.list_buckets()  # moto loads its S3 part now
    print(json.dumps({"port": server.port}), flush=True)
    for line in sys.stdin:
        try:
            answer = handle(faults, client, json.loads(line))
        except Exception as error:  # pylint: disable=broad-except
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
