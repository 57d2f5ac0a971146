"""A registry of models on loopback, with the shapes of Hugging Face's: a listing, redirects to another host, ranges."""
import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer


class Registry(ThreadingTCPServer):  # http.server's own asks a name server for its name first
    daemon_threads = allow_reuse_address = True

    def __init__(self, files, repository="org/repo"):
        """files: path in the repository -> bytes."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.repository, self.files, self.asked = repository, dict(files), []   # asked: (path, range, authorization) of each request
        self.digest = {}                           # path -> what the registry says in place of the right digest
        self.cut = []                              # bytes after which the next answers break off
        self.pause = None                          # (bytes, event): the next answer waits there
        self.token, self.has_ranges, self.says_digest, self.says_size = None, True, True, True
        self.port = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that left


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        registry, path = self.server, urllib.parse.unquote(self.path.partition("?")[0])
        registry.asked.append((path, self.headers["Range"], self.headers["Authorization"]))
        if path.startswith("/cdn/"):
            return self.send_file(registry.files[path[5:]])
        if registry.token and self.headers["Authorization"] != f"Bearer {registry.token}":
            return self.answer(401)
        if path == f"/api/models/{registry.repository}":
            names = [{"rfilename": name} for name in ("README.md", *registry.files)]
            return self.answer(200, json.dumps({"cardData": {"license": "apache-2.0"}, "siblings": names}).encode())
        if path == "/page.gguf":
            return self.answer(200, b"<!DOCTYPE html><p>Sign in")
        if path == "/loop.gguf":
            return self.answer(302, Location="/loop.gguf")
        if path == "/up.gguf":
            return self.answer(302, Location="file:///etc/passwd")
        name = path.removeprefix(f"/{registry.repository}/resolve/main/")
        if name not in registry.files:
            return self.answer(404, b"Entry not found")
        headers = {"Location": f"http://localhost:{registry.port}/cdn/" + urllib.parse.quote(name)}
        if registry.says_digest:
            right = hashlib.sha256(registry.files[name]).hexdigest()
            headers["X_Linked_Etag"] = '"%s"' % registry.digest.get(name, right)
        return self.answer(302, b"elsewhere", **headers)

    def send_file(self, data):
        registry, begin = self.server, 0
        if registry.has_ranges and self.headers["Range"]:
            begin = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if begin >= len(data):
                return self.answer(416, Content_Range=f"bytes */{len(data)}")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("ETag", '"%s"' % hashlib.md5(data).hexdigest())
        if registry.says_size:
            self.send_header("Content-Length", str(len(data) - begin))
        self.close_connection = True
        self.end_headers()
        end = begin + registry.cut.pop(0) if registry.cut else len(data)
        if registry.pause:
            (count, event), registry.pause = registry.pause, None
            self.wfile.write(data[begin:begin + count])
            self.wfile.flush()
            event.wait(60)
            begin += count
        self.wfile.write(data[begin:end])
