"""A proxy with faults, between a driver and AWS Batch: `../aws/faults.py`.

    proxy.py PORT BACKEND_PORT QUEUE

It mends what the backend tells otherwise than AWS: exit codes are in its listings only, a job is RUNNING before its
container is there (DOCKER_HOST names the engine), and times of log events are fractions.
"""

import json
import sys
import threading
from pathlib import Path

import docker

sys.path.append(str(Path(__file__).resolve().parents[1] / "aws"))

import faults

# Exit codes of jobs that have ended, by id: they never change, and each look would ask the backend for them again.
codes = {}
# A client of the engine asks for its version before anything else: one for each thread, not for each look.
engine = threading.local()
QUEUE = sys.argv[3]


def containers():
    if not hasattr(engine, "api"):
        engine.api = docker.from_env().api
    return engine.api.containers(all=True)


class Handler(faults.Handler):
    KIND = "application/json"
    REFUSALS = faults.refusals(403, (429, "TooManyRequestsException", "Too Many Requests"))
    ANSWERS = {"nothing_listed": {"jobSummaryList": []}}

    def mended(self, call, content):
        if call not in ("describejobs", "GetLogEvents"):
            return content
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
                    _, listed = self.forward(json.dumps(asked), "/v1/listjobs")
                    ended = [s for s in json.loads(listed)["jobSummaryList"] if "container" in s]
                    codes.update({s["jobId"]: s["container"]["exitCode"] for s in ended if s["jobId"] == job["jobId"]})
                if job["jobId"] in codes:
                    job["container"]["exitCode"] = codes[job["jobId"]]
        return json.dumps(answer).encode()


faults.serve(Handler)
