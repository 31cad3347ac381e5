#!/usr/bin/env python3
"""A service that plays its parts for the command line's tests.

Usage: fake_service.py RUNTIME_DIR

Listens on a free TCP port, RUNTIME_DIR/api.sock and RUNTIME_DIR/controller.sock, each for the api, the controller and a worker
at once, and on RUNTIME_DIR/control.sock for the supervisor; then prints its TCP address. Ends with its standard input.
The last user message decides the answer, see play() below.
"""
import fcntl
import http.server
import json
import os
import socket
import socketserver
import sys
import threading

ERROR = {"error": {"message": "the queue is full", "type": "overloaded", "param": None, "code": None}}
CONV = {"name": "chatml", "system_template": "<|im_start|>system\n{system_message}", "system_message": "be kind",
        "roles": ["<|im_start|>user", "<|im_start|>assistant"], "messages": [], "offset": 0, "sep_style": 10,
        "sep": "<|im_end|>", "sep2": None, "stop_str": None, "stop_token_ids": [2], "system_message_vision": "",
        "max_image_size_mb": None}


MAGIC = b""                             # and version, as the first peer wrote them
REPLY, ERROR_FRAME, COMMAND = 33, 34, 35


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def address_string(self):
        return "client"

    def whole(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def delta(self, text):
        self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    def do_GET(self):
        if self.path == "/v1/models":
            self.whole(200, {"object": "list", "data": [{"id": "first"}, {"id": "second"}]})
        else:
            self.whole(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null")
        if self.path == "/v1/chat/completions":
            self.chat(body)
        elif self.path == "/refresh_all_workers":
            self.whole(200, None)
        elif self.path == "/list_models":
            self.whole(200, {"models": ["first", "second"]})
        elif self.path == "/get_worker_address":
            known = body["model"] in ("first", "second", "broken")
            self.whole(200, {"address": "http://" + self.server.tcp_address if known else ""})
        elif self.path == "/worker_get_conv_template":
            self.whole(200, {"conv": CONV})
        elif self.path == "/worker_generate_stream":
            self.frames(body)
        else:
            self.whole(404, {"detail": "Not Found"})

    def frames(self, body):
        self.begin()
        if body["model"] == "broken":
            self.chunk(b'{"text": "out of memory", "error_code": 50002}\0')
        else:
            self.chunk(b'{"text": "one", "error_code": 0}\0{"text": "one t')
            self.chunk(b'wo", "error_code": 0}\0')
            self.chunk(json.dumps({"text": "one two " + body["prompt"], "error_code": 0}).encode() + b"\0")
        self.chunk(b"")

    def chat(self, body):
        text = body["messages"][-1]["content"]
        if text == "refuse":
            self.whole(503, ERROR)
            return
        self.begin()
        self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        if self.play(text, body):
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            self.chunk(b"data: [DONE]\n\n")
        if text in ("drop", "hang"):
            self.close_connection = True
        else:
            self.chunk(b"")

    def play(self, text, body):
        """Sends the answer; true when it is to end well."""
        if text == "fail":
            self.delta("half")
            self.event(ERROR)
            return False
        if text in ("cut", "drop"):
            self.delta("half")
            return False
        if text == "hang":
            self.delta("thinking")
            self.connection.recv(1)     # until the client leaves
            return False
        if text == "escape":
            self.delta("\x1b]0;title\x07")
        elif text == "params":
            self.delta(json.dumps({k: v for k, v in body.items() if k != "messages"}, sort_keys=True))
        elif text == "split":
            data = b'data: {"choices":[{"delta":{"content":"gr\\u00fc'
            self.chunk(data)
            self.chunk("ße".encode()[:1])
            self.chunk("ße".encode()[1:] + b'"}}]}\r\n\r\n: ping\n\n')
        else:
            self.delta("/".join(m["role"] + "=" + m["content"] for m in body["messages"]))
        return True


class Quiet(socketserver.ThreadingMixIn):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass                            # clients that left are part of the play


class TCP(Quiet, http.server.HTTPServer):
    pass


class Unix(Quiet, socketserver.UnixStreamServer):
    pass


def frame(kind, payload=b""):
    """One of the control channel (ipc/control.h): magic u32, version u16, type u16, seq u64, mono_us u64, len u32, reserved u32."""
    return MAGIC + kind.to_bytes(2, sys.byteorder) + bytes(16) + len(payload).to_bytes(4, sys.byteorder) + bytes(4) + payload


def reply(conn, value):
    """An answer in a sealed memfd."""
    fd = os.memfd_create("status", os.MFD_ALLOW_SEALING)
    os.write(fd, json.dumps(value).encode())
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    socket.send_fds(conn, [frame(REPLY)], [fd])
    os.close(fd)


def command(conn, runtime, asked):
    """The answer depends on the command and the model; each is written to RUNTIME_DIR/commands first."""
    with open(runtime + "/commands", "a", encoding="utf-8") as f:
        f.write(json.dumps(asked) + "\n")
    name, model = asked["command"], asked.get("model")
    if model == "never":
        conn.recv(65536)                # until the peer leaves
    elif model == "plain":
        conn.send(frame(REPLY, b'{"message":"plain is loaded"}'))
    elif model == "absent":
        conn.send(frame(ERROR_FRAME, b'{"message":"there is no model \\"absent\\""}'))
    elif model == "faults":
        conn.send(frame(ERROR_FRAME, b'{"message":"fastchat.conf:3: one\\nfastchat.conf:9: two\\n"}'))
    elif model != "gone":
        reply(conn, {"message": name + (" of " + model if model else "") + " is done"})


def supervise(conn, runtime, status):
    global MAGIC
    asked = conn.recv(65536)
    if asked:
        MAGIC = asked[:6]
        if int.from_bytes(asked[6:8], sys.byteorder) == COMMAND:
            command(conn, runtime, json.loads(asked[32:]))
        else:
            answer = status
            if os.path.exists(runtime + "/well"):           # nothing is wrong
                answer = dict(status, children=status["children"][:1])
            elif os.path.exists(runtime + "/changing"):     # nor here
                answer = dict(status, **CHANGING)
            elif os.path.exists(runtime + "/empty"):        # nothing is served
                answer = dict(status, children=status["children"][:1], models=[], model_folders=["/usr/models", "/var/models"])
            reply(conn, answer)
    conn.close()


def supervisor(sock, runtime, status):
    while True:
        conn, _ = sock.accept()
        threading.Thread(target=supervise, args=(conn, runtime, status), daemon=True).start()


def worker(model, **more):
    return dict({"role": "worker", "model": model, "replica": 0, "pid": 20, "since_s": 3, "restarts": 0, "reason": "", "stats": {}}, **more)


CHANGING = {
    "models": [{"name": "a", "load": "always"}, {"name": "b", "load": "on-demand"}, {"name": "c", "load": "manual"}],
    "children": [worker("a", state="draining", change="leaving"), worker("a", state="loading", change="taking over"),
                 worker("b", state="loading"), worker("c", state="stopped", pid=0),
                 {"role": "api", "replica": 1, "pid": 15, "state": "ready", "since_s": 9, "restarts": 0, "reason": "", "stats": {}}],
}


def main():
    runtime = sys.argv[1]
    tcp = TCP(("127.0.0.1", 0), Handler)
    unix = [Unix(runtime + name, Handler) for name in ("/api.sock", "/controller.sock")]
    for server in [tcp] + unix:
        server.tcp_address = "127.0.0.1:%d" % tcp.server_address[1]
    status = {
        "version": "0.1.0", "pid": 4711, "uptime_s": 7380, "config": "/etc/fastchat/fastchat.conf",
        "config_files": ["/etc/fastchat/fastchat.conf", "/etc/fastchat/conf.d/10-one.conf", "/etc/fastchat/conf.d/20-two.conf"],
        "listeners": [tcp.tcp_address, "unix:" + runtime + "/api.sock", "unix:/nowhere/api.sock"],
        "children": [
            {"role": "controller", "pid": 12, "state": "ready", "since_s": 59, "restarts": 0, "reason": None,
             "rss_kb": 4096, "stats": {"workers": 1}},
            {"role": "worker", "model": "smollm2", "replica": 0, "pid": 0, "state": "failed", "since_s": 61,
             "restarts": 11, "reason": "model.gguf: no such file", "rss_kb": 204800, "stats": {}},
            {"role": "worker", "model": "org/fast", "replica": 1, "pid": 14, "state": "ready", "since_s": 7380, "restarts": 2,
             "reason": "", "last_reason": "was ended by signal 9 (SIGKILL)", "rss_kb": 20480000,
             "stats": {"engine": "cpu amx", "queue_length": 3, "running": 2, "prompt_per_s": 120.4, "generated_per_s": 33, "wait_ms": 12, "oldest_wait_ms": 1250}},
            {"role": "api", "pid": 15, "state": "restarting", "since_s": 0, "restarts": 1, "reason": "ended with exit code 1\x1b[2J",
             "rss_kb": 4096, "stats": {}}],
    }
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.bind(runtime + "/control.sock")
    control.listen(8)
    for server in [tcp] + unix:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=supervisor, args=(control, runtime, status), daemon=True).start()
    print(tcp.tcp_address, flush=True)
    sys.stdin.read()
    os._exit(0)


main()
