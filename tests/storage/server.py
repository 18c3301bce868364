"""A hub and the host of its files on loopback, with faults on demand, for the storage tests.

usage: server.py ROOT [CERTIFICATE KEY]

Serves ROOT/datasets/OWNER/NAME/..., ROOT/models/OWNER/NAME/... as a hub does, and ROOT/files/... as plain files. Prints
its ports as one line of JSON, then answers each line of JSON on standard input with one line; ends with its input.
  {"fault": {"path": REGEX, "origin": "hub", "kind": KIND, "times": N, ...}}
  {"set": {NAME: VALUE}}     see `settings`
  {"log": true}              the requests since the last time
  {"reset": true}            no faults, settings as at the start, no log
"""
import hashlib
import http.client
import http.server
import json
import os
import re
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse

ROOT = sys.argv[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GOOD_TOKEN = "hf_good_token"
DEFAULTS = {
    "commits": {"main": COMMIT},
    "link_host": "",     # the host in links to the next page; the hub's own if empty
    "page": 1000,        # entries a page
    "empty_page": False,
    "cyclic": False,
    "signed_uses": 0,    # a signed address serves so often; 0: always
    "redirect": "cdn",   # the origin that large files are redirected to; "" serves them
}
lock = threading.Lock()
settings = dict(DEFAULTS)
faults = []
log = []
signatures = {}
ports = {}
ended = threading.Event()


def hub_error(status, code, message):
    headers = {"X-Error-Message": message}
    if code:
        headers["X-Error-Code"] = code
    return status, headers, json.dumps({"error": message}).encode()


def is_large(name):
    return name.endswith((".parquet", ".bin"))


def oid_of(name, data):
    return hashlib.sha256(data).hexdigest() if is_large(name) else hashlib.sha1(data).hexdigest()


def entries_of(kind, repo, folder, recursive):
    if repo.endswith("/many"):
        names = [f"data/part-{i:05d}.parquet" for i in range(1037)]
        return [{"type": "file", "oid": f"{i:040x}", "size": 134, "path": n,
                 "lfs": {"oid": f"{i:064x}", "size": 1000 + i, "pointerSize": 134}} for i, n in enumerate(names)]
    base = os.path.join(ROOT, kind, repo)
    top = os.path.join(base, folder)
    if not os.path.isdir(top):
        return None
    found = []
    for directory, folders, files in os.walk(top):
        for name in folders:
            path = os.path.relpath(os.path.join(directory, name), base)
            found.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": path})
        for name in files:
            with open(os.path.join(directory, name), "rb") as f:
                data = f.read()
            entry = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data),
                     "path": os.path.relpath(os.path.join(directory, name), base)}
            if is_large(name):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
                entry["size"] = len(data)
            found.append(entry)
        if not recursive:
            break
    # Not in the order in which they are wanted.
    return sorted(found, key=lambda e: e["path"], reverse=True)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    @property
    def origin(self):
        return self.server.origin

    def address(self, origin):
        scheme = "https" if origin == "tls" else "http"
        return f"{scheme}://127.0.0.1:{ports[origin]}"

    def do_HEAD(self):
        self.note(405)
        self.send_error(405)

    def do_GET(self):
        path, _, query = self.path.partition("?")
        fault = self.next_fault(path)
        kind = fault.get("kind")
        if kind == "close":
            self.note(0)
            return self.abort()
        if kind == "status":
            return self.answer(fault["status"], fault.get("headers", {}), fault.get("body", "").encode())
        if kind == "redirect":
            location = fault["location"]
            for name, port in ports.items():
                location = location.replace("{" + name + "}", str(port))
            return self.answer(fault.get("status", 302), {"Location": location}, b"")
        if self.origin == "proxy":
            return self.forward()
        path = urllib.parse.unquote(path)
        query = urllib.parse.parse_qs(query)
        if path.startswith("/api/"):
            return self.answer(*self.api(path, query))
        m = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if m:
            return self.resolve("datasets" if m[1] else "models", *m.groups()[1:], fault)
        if path.startswith("/blob/"):
            return self.blob(path, query, fault)
        if path.startswith("/files/"):
            name = os.path.join(ROOT, path[1:])
            if os.path.isdir(name):
                return self.index(name)
            if os.path.isfile(name):
                with open(name, "rb") as f:
                    data = f.read()
                return self.content(data, {"ETag": '"%s"' % hashlib.md5(data).hexdigest()}, fault)
        return self.answer(404, {}, b"<html>no such page</html>")

    def next_fault(self, path):
        with lock:
            for fault in faults:
                if fault.get("origin", self.origin) != self.origin or not re.search(fault["path"], path):
                    continue
                if fault.get("skip", 0) > 0:
                    fault["skip"] -= 1
                    continue
                if fault.get("times", -1) == 0:
                    continue
                fault["times"] = fault.get("times", -1) - 1
                return dict(fault)
        return {}

    def note(self, status):
        self.entry = {"origin": self.origin, "path": self.path, "range": self.headers.get("Range", ""),
                      "authorization": self.headers.get("Authorization", ""), "status": status, "sent": 0,
                      "time": time.monotonic(), "connection": self.client_address[1]}
        with lock:
            log.append(self.entry)

    def answer(self, status, headers, body):
        self.note(status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.entry["sent"] += len(body)
        self.wfile.write(body)

    def abort(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
        self.wfile = open(os.devnull, "wb")  # the server wants to flush it

    def content(self, data, headers, fault):
        kind = fault.get("kind")
        total = len(data)
        if kind == "etag":
            headers = {"ETag": fault["etag"]}
        if kind == "encoding":
            headers["Content-Encoding"] = "gzip"
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        status = 200
        if m and kind != "norange":
            begin, end = int(m[1]), min(int(m[2]) + 1, total)
            if begin >= total:
                return self.answer(416, {"Content-Range": f"bytes */{total}"}, b"")
            status = 206
            data = data[begin:end]
            field = f"bytes {begin}-{end - 1}/{total}"
            if kind == "range":
                field = fault["field"].replace("{begin}", str(begin)).replace("{last}", str(end - 1))
            if field:
                headers["Content-Range"] = field
        self.note(status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if kind != "unsized":
            self.send_header("Content-Length", str(len(data) + (fault["delta"] if kind == "length" else 0)))
        self.end_headers()
        stop_at = {"reset": fault.get("after", 0), "stall": fault.get("after", 0), "cut": int(len(data) * 0.6)}.get(kind)
        if kind == "length" and fault["delta"] < 0:
            data = data[:fault["delta"]]
        part = data if stop_at is None else data[:stop_at]
        try:
            for i in range(0, len(part), 1 << 16):
                self.entry["sent"] += len(part[i:i + (1 << 16)])  # before: the log may be asked for at once
                self.wfile.write(part[i:i + (1 << 16)])
            self.wfile.flush()
        except OSError:
            self.close_connection = True
            return
        if kind == "reset":
            time.sleep(0.05)  # what was sent arrives
            self.abort()
        elif kind in ("cut", "unsized"):
            self.close_connection = True
        elif kind in ("stall", "length"):
            self.hold()

    def hold(self):
        self.close_connection = True
        self.connection.settimeout(30)
        try:
            while self.connection.recv(4096) and not ended.is_set():
                pass
        except OSError:
            pass

    def index(self, folder):
        names = [n + "/" if os.path.isdir(os.path.join(folder, n)) else n for n in sorted(os.listdir(folder))]
        links = "".join(f'<a href="{urllib.parse.quote(n)}">{n}</a>\n' for n in names)
        outside = '<a href="../">up</a><A class="x" HREF=\'?C=N&amp;O=D\'>sort</A><a href="http://other.invalid/z.txt">z</a>'
        self.answer(200, {"Content-Type": "text/html"}, f"<html><body>{outside}{links}</body></html>".encode())

    # --- the hub ---

    def refusal(self, repo, reading):
        token = self.headers.get("Authorization", "")
        good = token == "Bearer " + GOOD_TOKEN
        if token and not good:
            return hub_error(401, "", "Invalid credentials in Authorization header")
        name = repo.split("/")[1]
        if name == "private" and not good or name == "missing":
            return hub_error(404 if good else 401, "RepoNotFound", "Repository not found")
        if name == "gated" and reading and not good:
            return hub_error(401, "GatedRepo", "Access to dataset is restricted")
        if name == "gated-denied" and reading:
            return hub_error(403 if good else 401, "GatedRepo", "Access is restricted and you are not in the list")
        return None

    def commit_known(self, revision):
        return revision in settings["commits"].values()

    def api(self, path, query):
        m = re.fullmatch(r"/api/(datasets|models)/([^/]+/[^/]+)/(revision|tree)/(.+)", path)
        if not m:
            return 404, {}, b"{}"
        kind, repo, what, rest = m.groups()
        refused = self.refusal(repo, False)
        if refused:
            return refused
        if what == "revision":
            if rest not in settings["commits"] and not self.commit_known(rest):
                return hub_error(404, "RevisionNotFound", "Invalid rev id: " + rest)
            return 200, {}, json.dumps({"id": repo, "sha": settings["commits"].get(rest, rest), "siblings": []}).encode()
        commit, _, folder = rest.partition("/")
        if not self.commit_known(commit):
            return hub_error(404, "RevisionNotFound", "Invalid rev id")
        found = entries_of(kind, repo, folder, query.get("recursive", ["false"])[0] == "true")
        if found is None:
            return hub_error(404, "EntryNotFound", f"{folder} does not exist on {commit}")
        at = int(query.get("cursor", ["0"])[0])
        page = min(int(query.get("limit", ["1000"])[0]), settings["page"])
        if at < 0:
            page_entries, following = [], -at  # an empty page between two others
        else:
            page_entries, following = found[at:at + page], at + page
            if settings["empty_page"] and following < len(found):
                following = -following
        headers = {}
        if settings["cyclic"]:
            following = 0
        if following < len(found):
            host = settings["link_host"] or self.address(self.origin)
            headers["Link"] = f'<{host}{urllib.parse.quote(path)}?recursive=true&limit={page}&cursor={following}>; rel="next"'
        return 200, headers, json.dumps(page_entries).encode()

    def resolve(self, kind, repo, commit, name, fault):
        refused = self.refusal(repo, True)
        if refused:
            return self.answer(*refused)
        file = os.path.join(ROOT, kind, repo, name)
        if not self.commit_known(commit):
            return self.answer(*hub_error(404, "RevisionNotFound", "Invalid rev id"))
        if not os.path.isfile(file):
            return self.answer(*hub_error(404, "EntryNotFound", "Entry not found"))
        with open(file, "rb") as f:
            data = f.read()
        if not is_large(name) or not settings["redirect"]:
            return self.content(data, {"ETag": '"%s"' % oid_of(name, data)}, fault)
        with lock:
            signature = f"SECRET{len(signatures)}"
            signatures[signature] = settings["signed_uses"] or -1
        headers = {"X-Linked-Etag": fault.get("linked", '"%s"' % oid_of(name, data)), "X-Linked-Size": str(len(data)),
                   "X-Repo-Commit": commit}
        headers["Location"] = (f"{self.address(settings['redirect'])}/blob/{kind}/{repo}/{urllib.parse.quote(name)}"
                               f"?Expires=1&Signature={signature}")
        return self.answer(302, headers, b"")

    def blob(self, path, query, fault):
        signature = query.get("Signature", [""])[0]
        with lock:
            left = signatures.get(signature, 0)
            if left > 0:
                signatures[signature] = left - 1
        if left == 0:
            return self.answer(403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
        with open(os.path.join(ROOT, path[len("/blob/"):]), "rb") as f:
            data = f.read()
        return self.content(data, {"ETag": '"%s"' % hashlib.md5(data).hexdigest()}, fault)

    # --- a proxy ---

    def forward(self):
        url = urllib.parse.urlsplit(self.path)
        target = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=20)
        headers = {k: v for k, v in self.headers.items() if not k.lower().startswith("proxy-")}
        target.request("GET", url.path + ("?" + url.query if url.query else ""), headers=headers)
        response = target.getresponse()
        body = response.read()
        kept = {k: v for k, v in response.getheaders() if k.lower() not in ("content-length", "connection", "server", "date")}
        self.answer(response.status, kept, body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, origin):
        self.origin = origin
        super().__init__(("127.0.0.1", 0), Handler)
        ports[origin] = self.server_address[1]

    def handle_error(self, request, client_address):
        pass  # clients that go away


def main():
    servers = [Server("hub"), Server("cdn"), Server("proxy")]
    if len(sys.argv) > 3:
        tls = Server("tls")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
        tls.socket = context.wrap_socket(tls.socket, server_side=True)
        servers.append(tls)
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    print(json.dumps(ports), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        reply = {}
        with lock:
            if "reset" in command:
                faults.clear()
                log.clear()
                settings.clear()
                settings.update(DEFAULTS)
            if "fault" in command:
                faults.append(command["fault"])
            if "set" in command:
                settings.update(command["set"])
            if "log" in command:
                reply = list(log)
                log.clear()
        print(json.dumps(reply), flush=True)
    ended.set()


main()
