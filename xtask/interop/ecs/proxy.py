"""A proxy with faults, between a driver and AWS ECS: `../aws/faults.py`.

    proxy.py PORT BACKEND_PORT LOG_GROUP LOG_PREFIX

It keeps the promise of RunTask's clientToken, which the backend does not know, and is told of tasks:

    POST /_tasks   {"<task arn>": {"exitCode": 3, "stopCode": "..."}}   what DescribeTasks says besides
"""

import json
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "aws"))

import faults
from faults import lock

starting = threading.Lock()
tasks, started, times, ends = {}, {}, {}, {}
CONTAINER = ("exitCode", "reason")
LOG_GROUP, LOG_PREFIX = sys.argv[3:5]


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
            name = "/".join([LOG_PREFIX, overrides[0]["name"], task["taskArn"].rsplit("/", 1)[1]])
            stream = {"logGroupName": LOG_GROUP, "logStreamName": name}
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
            message = "The clientToken is in use with a different request."
            conflict = {"__type": "ConflictException", "message": message, "resourceIds": arns}
            return 400, json.dumps(conflict).encode()
        status, content = start()
        if status == 200:
            started[token] = (request, content, [task["taskArn"] for task in json.loads(content)["tasks"]])
            play(forward, request, json.loads(content))
        return status, content


class Handler(faults.Handler):
    KIND = "application/x-amz-json-1.1"
    REFUSALS = faults.refusals(400, (400, "ThrottlingException", "Rate exceeded"))
    ANSWERS = {
        "not_placed": {"tasks": [], "failures": [{"reason": "RESOURCE:MEMORY", "detail": "no instance has so much"}]},
        "nothing_listed": {"taskArns": []},
    }

    def by_itself(self, target, body):
        scope = self.headers.get("Authorization", "")
        scope = scope.replace("/ecs/", "/logs/") if target.startswith("Logs") else scope
        self.forward(json.dumps(body), "/", {"X-Amz-Target": target, "Content-Type": self.KIND, "Authorization": scope})

    def asked(self, call, body):
        return once(body, lambda: self.forward(body), self.by_itself) if call == "RunTask" else self.forward(body)

    def mended(self, call, content):
        return told(call, content)

    def do_POST(self):
        if self.path != "/_tasks":
            return super().do_POST()
        with lock:
            tasks.update(json.loads(self.body()))
        self.answer(200, b"{}")


faults.serve(Handler)
