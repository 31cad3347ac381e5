"""A Hugging Face hub and its content network on two ports of this machine, as `fastchat pull` and huggingface_hub meet them.

    with Hub() as hub:
        hub.add("org/name", {"config.json": b"{}", "x-Q8_0.gguf": …})
        hub.endpoint            what HF_ENDPOINT is set to

What git keeps is served by the hub itself, with its blob's SHA-1 as ETag. What is in large file storage (*.gguf,
*.safetensors) is redirected to the content network, which knows neither repositories nor tokens. Troubles are played once
each, in order: hub.play("cdn", cut=1000), or stall=1000 and pause=1000, which wait for hub.release. Requests are in hub.log. `python3 hub.py` serves an example until it is ended.
"""
import hashlib
import http.server
import json
import os
import re
import select
import socket
import ssl
import subprocess
import sys
import threading
import urllib.parse

PAGE = 3
READ_TOKEN = "hf_reader"
OTHER_TOKEN = "hf_stranger"


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files, private=False, gated=False, renamed=None):
        self.private, self.gated, self.renamed = private, gated, renamed
        self.commits = {}
        self.revisions = {}
        self.commit(files)

    def commit(self, files, revision="main"):
        text = json.dumps(sorted((k, git_blob(v)) for k, v in files.items()))
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.revisions[revision] = sha
        return sha

    def find(self, revision):
        """The commit that a branch, a tag or a commit means, or None."""
        return self.revisions.get(revision) or (revision if revision in self.commits else None)


def is_large(path):
    return path.endswith((".gguf", ".safetensors"))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    where = ""

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.serve()

    def do_GET(self):
        self.serve()

    def serve(self):
        hub = self.server.hub
        hub.log.append((self.where, self.command, self.path, dict((k.lower(), v) for k, v in self.headers.items())))
        try:
            self.answer(hub, hub.next_trouble(self.where, self.path))
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.close_connection = True

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status, code, message):
        self.reply(status, json.dumps({"error": message}).encode(), Content_Type="application/json",
                   **({"X_Error_Code": code} if code else {}), X_Error_Message=message)

    def bytes_of(self, data, etag, trouble, **headers):
        """The content, or the part of it that Range asks for, with what is to go wrong."""
        start, status = 0, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        valid = self.headers.get("If-Range", etag) in (etag, headers.get("Last_Modified"))
        end = len(data)
        if wanted and valid and not trouble.get("ignore_range"):
            start = int(wanted[1])
            end = min(end, int(wanted[2]) + 1) if wanted[2] else end
            if start >= len(data):
                self.reply(416, Content_Range=f"bytes */{len(data)}")
                return
            status = 206
        if trouble.get("corrupt"):
            data = bytearray(data)
            data[len(data) // 2] ^= 1
            data = bytes(data)
        body = data[start:end]
        if status == 206:
            first = start + trouble.get("wrong_range", 0)
            headers["Content_Range"] = f"bytes {first}-{end - 1}/{len(data) + trouble.get('wrong_total', 0)}"
        if "short" in trouble:
            body = body[:trouble["short"]]
        if "long" in trouble:
            body += b"x" * trouble["long"]
        self.send_response(status)
        for name, value in dict({"ETag": etag, "Accept_Ranges": "bytes"}, **headers).items():
            if value is not None:
                self.send_header(name.replace("_", "-"), value)
        if trouble.get("encoding"):
            self.send_header("Content-Encoding", trouble["encoding"])
        if trouble.get("no_length"):
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        stop = next((trouble[k] for k in ("cut", "stall", "pause") if k in trouble), None)
        if stop is not None:
            self.wfile.write(body[:stop])
            self.wfile.flush()
            if "cut" not in trouble:
                self.server.hub.release.wait(600)
            if "pause" in trouble:
                body = body[stop:]
            else:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        self.wfile.write(body)


class HubHandler(Handler):
    where = "hub"

    def token(self):
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def answer(self, hub, trouble):
        url = urllib.parse.urlsplit(self.path)
        if "status" in trouble:
            self.reply(trouble["status"], b"busy", **trouble.get("headers", {}))
            return
        if "body" in trouble:
            self.reply(200, trouble["body"], Content_Type="application/json", **trouble.get("headers", {}))
            return
        if url.path.startswith("/plain/"):
            data, headers = hub.plain[url.path.removeprefix("/plain/")]
            self.bytes_of(data, headers.get("ETag"), trouble, **{k: v for k, v in headers.items() if k != "ETag"})
            return
        if self.token() and self.token() not in (READ_TOKEN, OTHER_TOKEN):
            self.error(401, None, "Invalid credentials in Authorization header")
            return
        for pattern, answer in (("/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", self.revision),
                                ("/api/models/([^/]+/[^/]+)/tree/([^/]+)", self.tree),
                                ("/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.resolve)):
            found = re.fullmatch(pattern, url.path)
            if found:
                self.of_repo(hub, answer, url, trouble, *[urllib.parse.unquote(x or "main") for x in found.groups()])
                return
        self.error(404, None, "Sorry, we can't find the page you are looking for.")

    def of_repo(self, hub, answer, url, trouble, name, revision, *rest):
        repo = hub.repos.get(name)
        if repo and repo.renamed:
            self.reply(307, Location=self.path.replace(name, repo.renamed, 1))
        elif not repo or (repo.private and self.token() != READ_TOKEN):
            self.error(404 if self.token() else 401, "RepoNotFound",
                       "Repository not found" if self.token() else "Invalid username or password.")
        elif not repo.find(revision):
            self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            answer(hub, repo, name, repo.find(revision), url, trouble, *rest)

    def revision(self, hub, repo, name, commit, url, trouble):
        self.reply(200, json.dumps({
            "_id": "0" * 24, "id": name, "modelId": name, "author": name.split("/")[0], "sha": commit, "private": repo.private,
            "gated": "manual" if repo.gated else False, "disabled": False, "tags": ["gguf"], "downloads": 1, "likes": 0,
            "lastModified": "2025-01-01T00:00:00.000Z", "createdAt": "2025-01-01T00:00:00.000Z",
            "siblings": [{"rfilename": p} for p in sorted(repo.commits[commit])],
        }).encode(), Content_Type="application/json; charset=utf-8")

    def tree(self, hub, repo, name, commit, url, trouble):
        files = repo.commits[commit]
        entries = sorted({p.rsplit("/", k)[0] for p in files for k in range(1, p.count("/") + 1)} | set(files))
        query = dict(urllib.parse.parse_qsl(url.query))
        start = int(query.get("cursor", "0"))
        page = []
        for path in entries[start:start + PAGE]:
            if path not in files:
                page.append({"type": "directory", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0, "path": path})
                continue
            data = files[path]
            entry = {"type": "file", "oid": git_blob(data), "size": len(data), "path": path}
            if is_large(path):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
                entry["oid"] = git_blob(b"pointer of " + path.encode())
                entry["xetHash"] = hashlib.sha256(b"xet" + data).hexdigest()
            page.append(entry)
        headers = {}
        if start + PAGE < len(entries):
            query["cursor"] = str(start + PAGE)
            headers["Link"] = f'<{hub.endpoint}{url.path}?{urllib.parse.urlencode(query)}>; rel="next"'
        self.reply(200, json.dumps(page).encode(), Content_Type="application/json; charset=utf-8", **headers)

    def resolve(self, hub, repo, name, commit, url, trouble, path):
        if repo.gated and self.token() != READ_TOKEN:
            self.error(403 if self.token() else 401, "GatedRepo",
                       f"Access to model {name} is restricted and you are not in the authorized list.")
            return
        data = repo.commits[commit].get(path)
        if data is None:
            self.error(404, "EntryNotFound", "Entry not found")
            return
        if not is_large(path):
            self.bytes_of(data, f'"{git_blob(data)}"', trouble, X_Repo_Commit=commit)
            return
        sha256 = hashlib.sha256(data).hexdigest()
        hub.blobs[sha256] = data
        self.reply(302, b"Found. Redirecting", Location=f"{hub.cdn_endpoint}/lfs/{sha256}?X-Amz-Signature=s3cr3t", X_Repo_Commit=commit,
                   X_Linked_Size=str(len(data)), X_Linked_Etag=f'"{trouble.get("linked_etag", sha256)}"',
                   ETag=f'"{git_blob(data)}"')


class CdnHandler(Handler):
    where = "cdn"

    def answer(self, hub, trouble):
        if "status" in trouble:
            self.reply(trouble["status"], b"<Error/>", **trouble.get("headers", {}))
            return
        data = hub.blobs[urllib.parse.urlsplit(self.path).path.rsplit("/", 1)[1]]
        self.bytes_of(data, f'"{hashlib.md5(data).hexdigest()}"', trouble)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request, client_address):
        pass


class Hub:
    def __init__(self, tls=None):
        self.tls = tls
        self.repos, self.blobs, self.plain, self.log, self.troubles = {}, {}, {}, [], []
        self.lock = threading.Lock()
        self.release = threading.Event()
        self.servers = []

    def add(self, name, files, **kw):
        self.repos[name] = Repo(files, **kw)
        return self.repos[name]

    def play(self, where, times=1, path="", **trouble):
        """The next `times` answers of hub or cdn, to requests whose path holds `path`, go wrong like this."""
        with self.lock:
            self.troubles += [(where, path, trouble)] * times

    def next_trouble(self, where, path):
        with self.lock:
            for i, (at, of, trouble) in enumerate(self.troubles):
                if at == where and of in path:
                    del self.troubles[i]
                    return trouble
        return {}

    def requests(self, where, words=""):
        return [r for r in self.log if r[0] == where and words in r[2]]

    def listen(self, handler, host):
        server = Server((host, 0), handler)
        server.hub = self
        if self.tls:
            server.socket = self.tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.servers.append(server)
        return f"{'https' if self.tls else 'http'}://localhost:{server.server_address[1]}"

    def __enter__(self):
        self.endpoint = self.listen(HubHandler, "127.0.0.1")
        self.cdn_endpoint = self.listen(CdnHandler, "127.0.0.1")
        return self

    def __exit__(self, *args):
        self.release.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()


def throwaway_authority(folder):
    """A file of authorities, and a server's context with a certificate of it for localhost."""
    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder)
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
            "-days", "2", "-subj", "/CN=throwaway authority")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "host.key", "-out", "host.csr",
            "-subj", "/CN=localhost")
    with open(os.path.join(folder, "ext"), "w", encoding="ascii") as f:
        f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "host.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "host.pem", "-days", "2",
            "-extfile", "ext")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(folder, "host.pem"), os.path.join(folder, "host.key"))
    return os.path.join(folder, "ca.pem"), context


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    """Passes on what it gets; a tunnel for TLS."""

    def log_message(self, *args):
        pass

    def do_CONNECT(self):
        self.server.log.append(("CONNECT", self.path))
        host, port = self.path.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200, "Connection established")
            self.end_headers()
            self.pipe(there)

    def do_GET(self):
        self.server.log.append((self.command, self.path))
        url = urllib.parse.urlsplit(self.path)
        with socket.create_connection((url.hostname, url.port)) as there:
            head = f"GET {urllib.parse.urlunsplit(('', '', *url[2:]))} HTTP/1.1\r\n"
            head += "".join(f"{k}: {v}\r\n" for k, v in self.headers.items() if k.lower() not in ("connection", "proxy-connection"))
            there.sendall((head + "Connection: close\r\n\r\n").encode())
            self.pipe(there)

    def pipe(self, there):
        self.close_connection = True
        ends = {self.connection: there, there: self.connection}
        while True:
            for end in select.select(list(ends), [], [], 600)[0] or [None]:
                data = end.recv(65536) if end else b""
                if not data:
                    return
                ends[end].sendall(data)


class Proxy:
    def __enter__(self):
        self.server = Server(("127.0.0.1", 0), ProxyHandler)
        self.log = self.server.log = []
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    with Hub() as example:
        example.add("org/tiny-GGUF", {"README.md": b"# tiny\n", "config.json": b"{}\n", "tiny-Q8_0.gguf": b"GGUF" + bytes(range(256)) * 4096,
                                      "sub/tokenizer.json": b"{}"})
        example.add("org/secret", {"secret-Q8_0.gguf": b"GGUF" * 100}, private=True)
        example.add("org/gated", {"gated-Q8_0.gguf": b"GGUF" * 100}, gated=True)
        print(example.endpoint, flush=True)
        sys.stdin.read()
