"""A proxy with faults, between a driver and AWS Batch.

    proxy.py PORT BACKEND_PORT QUEUE

It passes requests on to the backend and does what rules say. It mends what the backend tells otherwise than AWS: exit codes are in its
listings only, a job is RUNNING before its container is there (DOCKER_HOST names the engine), and times of log events are fractions.

    POST /_rules   [{"call": "submitjob", "do": "drop_reply", "times": 1}, ...]   replaces all rules; times -1 = always
    GET  /_calls   {"submitjob": 2, ...}                                          how often each call has come
"""

import http.client
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import docker

lock = threading.Lock()
rules, calls = [], {}
# Exit codes of jobs that have ended, by id: they never change, and each look would ask the backend for them again.
codes = {}
# A client of the engine asks for its version before anything else: one for each thread, not for each look.
engine = threading.local()
QUEUE = sys.argv[3]

REFUSALS = {
    "throttle": (429, "TooManyRequestsException", "Too Many Requests"),
    "credentials": (403, "UnrecognizedClientException", "The security token included in the request is invalid."),
    "denied": (403, "AccessDeniedException", "User is not authorized to perform this action"),
    "error": (500, "ServerException", "Service Unavailable. Please try again later."),
}


def fault(call):
    with lock:
        calls[call] = calls.get(call, 0) + 1
        for rule in rules:
            if rule["call"] in ("*", call) and rule.get("times", -1) != 0:
                if rule.get("times", -1) > 0:
                    rule["times"] -= 1
                return rule["do"]
    return "pass"


def containers():
    if not hasattr(engine, "api"):
        engine.api = docker.from_env().api
    return engine.api.containers(all=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def forward(self, path, body):
        backend = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=60)
        own = ("connection", "content-length", "accept-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in own}
        backend.request("POST", path, body, headers)
        reply = backend.getresponse()
        content = reply.read()
        backend.close()
        return reply.status, content

    def mended(self, call, content):
        answer = json.loads(content)
        if call == "GetLogEvents":
            for event in answer["events"]:
                event.update({name: int(event[name]) for name in ("timestamp", "ingestionTime") if name in event})
        jobs = answer["jobs"] if call == "describejobs" else []
        there = containers() if any(job["status"] == "RUNNING" for job in jobs) else []
        names = " ".join(name for container in there if container["State"] != "created" for name in container["Names"])
        for job in jobs:
            if job["status"] == "RUNNING" and job["jobId"] not in names:
                job["status"] = "STARTING"
            if job["status"] in ("SUCCEEDED", "FAILED"):
                if job["jobId"] not in codes:
                    asked = {"jobQueue": QUEUE, "filters": [{"name": "JOB_NAME", "values": [job["jobName"]]}]}
                    _, listed = self.forward("/v1/listjobs", json.dumps(asked))
                    ended = [s for s in json.loads(listed)["jobSummaryList"] if "container" in s]
                    codes.update({s["jobId"]: s["container"]["exitCode"] for s in ended if s["jobId"] == job["jobId"]})
                if job["jobId"] in codes:
                    job["container"]["exitCode"] = codes[job["jobId"]]
        return json.dumps(answer).encode()

    def hang_up(self):
        self.close_connection = True
        self.connection.close()

    def do_GET(self):
        with lock:
            self.answer(200, json.dumps(calls).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/_rules":
            with lock:
                rules[:] = json.loads(body)
            return self.answer(200, b"{}")
        target = self.headers.get("X-Amz-Target")
        call = target.rsplit(".", 1)[1] if target else self.path.split("/")[2]
        do = fault(call)
        if do in REFUSALS:
            status, code, message = REFUSALS[do]
            return self.answer(status, json.dumps({"__type": code, "message": message}).encode())
        if do == "garbage":
            return self.answer(200, b"<html>this is no answer</html>", "text/html")
        if do == "drop":
            return self.hang_up()
        if do == "nothing_listed":
            return self.answer(200, b'{"jobSummaryList": []}')
        status, content = self.forward(self.path, body)
        if do == "drop_reply":
            return self.hang_up()
        if call in ("describejobs", "GetLogEvents") and status == 200:
            content = self.mended(call, content)
        self.answer(status, content)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
