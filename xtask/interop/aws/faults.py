"""A proxy with faults, between a driver and an AWS API: what the proxies of all services have in common.

    proxy.py PORT BACKEND_PORT ...

It passes requests on to the backend and does what rules say:

    POST /_rules   [{"call": "<call>", "do": "drop_reply", "times": 1}, ...]   replaces all rules; times -1 = always
    GET  /_calls   {"<call>": 2, ...}                                          how often each call has come
"""

import http.client
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
rules, calls = [], {}


def refusals(status, throttle):
    """What a service refuses with: it has a status for that, and its own word for too many requests."""
    invalid = "The security token included in the request is invalid."
    return {
        "throttle": throttle,
        "credentials": (status, "UnrecognizedClientException", invalid),
        "denied": (status, "AccessDeniedException", "User is not authorized to perform this action"),
        "error": (500, "ServerException", "Service Unavailable. Please try again later."),
    }


def fault(call):
    with lock:
        calls[call] = calls.get(call, 0) + 1
        for rule in rules:
            if rule["call"] in ("*", call) and rule.get("times", -1) != 0:
                if rule.get("times", -1) > 0:
                    rule["times"] -= 1
                return rule
    return {"do": "pass"}


class Handler(BaseHTTPRequestHandler):
    """A service has its KIND of content, its REFUSALS, and its ANSWERS to whatever is asked, by what a rule does."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status, body, kind=None):
        self.send_response(status)
        self.send_header("Content-Type", kind or self.KIND)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def forward(self, body, path=None, headers=None):
        """Asks the backend, with what the request has unless it is told otherwise: status and content."""
        backend = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=60)
        own = ("connection", "content-length", "accept-encoding")
        headers = headers or {name: value for name, value in self.headers.items() if name.lower() not in own}
        backend.request("POST", path or self.path, body, headers)
        reply = backend.getresponse()
        content = reply.read()
        backend.close()
        return reply.status, content

    def hang_up(self):
        self.close_connection = True
        self.connection.close()

    def asked(self, call, body):
        """Status and content of the answer to a call."""
        return self.forward(body)

    def mended(self, call, content):
        """What the service would say where the backend says this."""
        return content

    def do_GET(self):
        with lock:
            self.answer(200, json.dumps(calls).encode(), "application/json")

    def do_POST(self):
        body = self.body()
        if self.path == "/_rules":
            with lock:
                rules[:] = json.loads(body)
            return self.answer(200, b"{}")
        target = self.headers.get("X-Amz-Target")
        call = target.rsplit(".", 1)[1] if target else "".join(self.path.split("/")[2:3])
        rule = fault(call)
        do = rule["do"]
        if do in self.REFUSALS:
            status, code, message = self.REFUSALS[do]
            return self.answer(status, json.dumps({"__type": code, "message": message}).encode())
        if do == "garbage":
            return self.answer(200, b"<html>this is no answer</html>", "text/html")
        if do == "drop":
            return self.hang_up()
        if do == "delay":
            time.sleep(rule["seconds"])
        if do in self.ANSWERS:
            return self.answer(200, json.dumps(self.ANSWERS[do]).encode())
        status, content = self.asked(call, body)
        if do == "drop_reply":
            return self.hang_up()
        self.answer(status, self.mended(call, content) if status == 200 else content)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(handler):
    Server(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
