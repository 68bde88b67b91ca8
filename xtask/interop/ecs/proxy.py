"""A proxy with faults, between a driver and an AWS API.

    proxy.py PORT BACKEND_PORT LOG_GROUP LOG_PREFIX

It passes requests on to the backend, keeps the promise of RunTask's clientToken, which the backend does not know, and does what rules say:

    POST /_rules   [{"call": "RunTask", "do": "drop_reply", "times": 1}, ...]   replaces all rules; times -1 = always
    POST /_tasks   {"<task arn>": {"exitCode": 3, "stopCode": "..."}}            what DescribeTasks says besides
    GET  /_calls   {"RunTask": 2, ...}                                           how often each call has come
"""

import http.client
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
starting = threading.Lock()
rules, tasks, calls, started, times, ends = [], {}, {}, {}, {}, {}
CONTAINER = ("exitCode", "reason")
LOG_GROUP, LOG_PREFIX = sys.argv[3:5]

REFUSALS = {
    "throttle": (400, "ThrottlingException", "Rate exceeded"),
    "credentials": (400, "UnrecognizedClientException", "The security token included in the request is invalid."),
    "denied": (400, "AccessDeniedException", "User is not authorized to perform this action"),
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
    return None


def told(call, body):
    """What the service says of tasks and the backend does not, and what a test says about them."""
    if call not in ("DescribeTasks", "RunTask"):
        return body
    answer = json.loads(body)
    with lock:
        for task in answer.get("tasks", []):
            made = times.setdefault(task["taskArn"], time.time())
            task.setdefault("createdAt", made)
            task.setdefault("startedAt", made)
            if task.get("lastStatus") == "STOPPED":
                task.setdefault("stoppedAt", ends.setdefault(task["taskArn"], time.time()))
            more = dict(tasks.get(task["taskArn"], {}))
            if task.get("lastStatus") != "STOPPED":
                continue
            for container in task.get("containers", []):
                container.update({name: more[name] for name in CONTAINER if name in more})
            task.update({name: value for name, value in more.items() if name not in CONTAINER})
    return json.dumps(answer).encode()


def play(forward, request, answer):
    """Does what the command of a task says, as nobody else runs it: `exit CODE SECONDS`, or `print TEXT`."""
    overrides = request.get("overrides", {}).get("containerOverrides") or [{}]
    what, *arguments = overrides[0].get("command") or [""]
    for task in answer["tasks"] if what in ("exit", "print") else []:
        if what == "print":
            stream = {"logGroupName": LOG_GROUP, "logStreamName": "/".join([LOG_PREFIX, overrides[0]["name"], task["taskArn"].rsplit("/", 1)[1]])}
            forward("Logs_20140328.CreateLogStream", stream)
            now = int(time.time() * 1000)
            events = [{"timestamp": now, "message": line} for line in arguments[0].splitlines()]
            forward("Logs_20140328.PutLogEvents", {**stream, "logEvents": events})
        code, seconds = (int(arguments[0]), float(arguments[1])) if what == "exit" else (0, 0.5)
        with lock:
            tasks[task["taskArn"]] = {"exitCode": code, "stopCode": "EssentialContainerExited"}

        def end(arn=task["taskArn"]):
            stop = {"cluster": request["cluster"], "task": arn, "reason": "Essential container in task exited"}
            forward("AmazonEC2ContainerServiceV20141113.StopTask", stop)

        threading.Timer(seconds, end).start()


def once(body, start, forward):
    """Starts a task, or tells of the one that was started with the token: status and content."""
    request = json.loads(body)
    token = (request.get("cluster"), request.get("clientToken"))
    with starting:
        if token in started:
            same, content, arns = started[token]
            if same == request:
                return 200, content
            conflict = {"__type": "ConflictException", "message": "The clientToken is in use with a different request.", "resourceIds": arns}
            return 400, json.dumps(conflict).encode()
        status, content = start()
        if status == 200:
            started[token] = (request, content, [task["taskArn"] for task in json.loads(content)["tasks"]])
            play(forward, request, json.loads(content))
        return status, content


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/x-amz-json-1.1"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def forward(self, body):
        backend = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=60)
        own = ("connection", "content-length", "accept-encoding")
        backend.request("POST", self.path, body, {name: value for name, value in self.headers.items() if name.lower() not in own})
        reply = backend.getresponse()
        content = reply.read()
        backend.close()
        return reply.status, content

    def by_itself(self, target, body):
        scope = self.headers.get("Authorization", "").replace("/ecs/", "/logs/") if target.startswith("Logs") else self.headers.get("Authorization", "")
        headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.1", "Authorization": scope}
        backend = http.client.HTTPConnection("127.0.0.1", int(sys.argv[2]), timeout=60)
        backend.request("POST", "/", json.dumps(body), headers)
        backend.getresponse().read()
        backend.close()

    def hang_up(self):
        self.close_connection = True
        self.connection.close()

    def do_GET(self):
        with lock:
            self.answer(200, json.dumps(calls).encode(), "application/json")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/_rules":
            with lock:
                rules[:] = json.loads(body)
            return self.answer(200, b"{}")
        if self.path == "/_tasks":
            with lock:
                tasks.update(json.loads(body))
            return self.answer(200, b"{}")
        call = self.headers.get("X-Amz-Target", ".").rsplit(".", 1)[1]
        rule = fault(call) or {"do": "pass"}
        do = rule["do"]
        if do in REFUSALS:
            status, code, message = REFUSALS[do]
            return self.answer(status, json.dumps({"__type": code, "message": message}).encode())
        if do == "garbage":
            return self.answer(200, b"<html>this is no answer</html>", "text/html")
        if do == "not_placed":
            failure = {"reason": "RESOURCE:MEMORY", "detail": "no instance has so much"}
            return self.answer(200, json.dumps({"tasks": [], "failures": [failure]}).encode())
        if do == "drop":
            return self.hang_up()
        if do == "delay":
            time.sleep(rule["seconds"])
        if do == "nothing_listed":
            return self.answer(200, b'{"taskArns": []}')
        status, content = once(body, lambda: self.forward(body), self.by_itself) if call == "RunTask" else self.forward(body)
        if do == "drop_reply":
            return self.hang_up()
        if status == 200:
            content = told(call, content)
        self.answer(status, content)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
