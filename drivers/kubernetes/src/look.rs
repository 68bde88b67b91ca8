//! What a pod says about its instance.
//!
//! Only the kubelet knows whether a container runs. The API's `phase` says Failed of pods whose processes run on a node
//! that nobody hears, and an object can be absent while its process runs. So an end counts only when the container was
//! seen as terminated, or when it certainly never began.

use std::time::{Duration, SystemTime};

use driver_sdk::{InstanceState, Observation, TaskExit};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::marks::{CONTAINER, FINALIZER, GATE, Marks};

/// How long after its deadline a deletion may take before its node counts as silent.
const OVERDUE: Duration = Duration::from_secs(60);
/// Who has ended a pod, and has not asked its node.
const WITHOUT_THE_NODE: [&str; 2] = ["DeletionByPodGC", "DeletionByTaintManager"];

fn time(time: Option<&Time>) -> Option<SystemTime> {
    time.map(|t| SystemTime::from(t.0))
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// The state of the task's container, if its kubelet has told one.
fn container(pod: &Pod) -> Option<&ContainerState> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|c| c.name == CONTAINER)?.state.as_ref()
}

/// Joins texts that say something.
fn sentence<'a>(parts: impl IntoIterator<Item = Option<&'a str>>) -> String {
    parts.into_iter().flatten().map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
}

/// Whether the pod waits for the driver's word.
pub(crate) fn is_gated(pod: &Pod) -> bool {
    gate(pod).is_some()
}

/// Place of the driver's gate among those of the pod.
pub(crate) fn gate(pod: &Pod) -> Option<usize> {
    pod.spec.as_ref()?.scheduling_gates.as_ref()?.iter().position(|gate| gate.name == GATE)
}

/// What a pod has lost that the driver has just made it with.
pub(crate) fn stripped(made: &Pod) -> Vec<String> {
    let held = made.metadata.finalizers.as_ref().is_some_and(|all| all.iter().any(|one| one == FINALIZER));
    let lost = [("scheduling gate", GATE, is_gated(made)), ("finalizer", FINALIZER, held)];
    lost.iter().filter(|(.., kept)| !kept).map(|(what, name, _)| format!("{what} {name}")).collect()
}

/// The node that the pod was given to.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// Why a pod ended that did not end by itself.
fn killer(pod: &Pod) -> Option<String> {
    let disrupted = condition(pod, "DisruptionTarget").filter(|c| c.status == "True");
    let disrupted = disrupted.map(|c| sentence([c.reason.as_deref(), c.message.as_deref()]));
    let status = pod.status.as_ref();
    let own = status.map(|s| sentence([s.reason.as_deref(), s.message.as_deref()]));
    disrupted.or(own).filter(|text| !text.is_empty())
}

fn exit(pod: &Pod, ended: &ContainerStateTerminated, marks: &Marks) -> (TaskExit, String) {
    let reason = ended.reason.as_deref().unwrap_or_default();
    let killer = killer(pod);
    let by_order = marks.stop
        && pod.status.as_ref().and_then(|s| s.reason.as_deref()).is_none_or(|reason| reason == "DeadlineExceeded");
    if reason == "ContainerStatusUnknown" {
        let why = sentence([
            Some("how it ended is unknown: its node has forgotten the container"),
            killer.as_deref(),
            ended.message.as_deref(),
        ]);
        return (TaskExit { exit_code: -1, error: Some(why.clone()), ..TaskExit::default() }, why);
    }
    let mut exit = TaskExit::code(ended.exit_code);
    if let signal @ 1..=64 = ended.signal.unwrap_or(0).max(ended.exit_code.saturating_sub(128)) {
        exit.signal = signal;
    }
    exit.oom_killed = reason == "OOMKilled";
    let told = match reason {
        "Completed" | "Error" | "" => None,
        other => Some(other),
    };
    let killer = if by_order { None } else { killer };
    let why = sentence([killer.as_deref(), told, ended.message.as_deref().filter(|_| reason != "Completed")]);
    // Taken away by the cluster, even if the process then ended with code 0: that is no success.
    if killer.is_some() || reason == "StartError" {
        exit.error = Some(why.clone());
    }
    (exit, why)
}

/// What the pod says, at `now`.
pub(crate) fn observation(pod: &Pod, marks: &Marks, now: SystemTime) -> Observation {
    let status = pod.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let state = container(pod);
    let node = node(pod);
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut seen = Observation {
        key: marks.key.clone(),
        provider_id: format!("{namespace}/{name}"),
        address: status.and_then(|s| s.pod_ip.clone()).unwrap_or_default(),
        port_map: marks.ports.iter().map(|(label, port)| (label.clone(), i32::from(*port))).collect(),
        epoch: marks.epoch,
        ..Observation::default()
    };
    seen.attributes.extend(pod.metadata.uid.clone().map(|uid| ("uid".to_owned(), uid)));
    seen.attributes.extend(node.map(|node| ("node".to_owned(), node.to_owned())));
    let never_began = |seen: Observation, why: String| Observation {
        state: InstanceState::Exited,
        exit: TaskExit { exit_code: -1, error: Some(why.clone()), ..TaskExit::default() },
        reason: why,
        ..seen
    };
    let unknown = |seen: Observation, why: String| Observation { state: InstanceState::Unknown, reason: why, ..seen };

    if let Some(done) = &marks.done {
        return Observation { state: InstanceState::Gone, reason: format!("the key is {done}"), ..seen };
    }
    if let Some(ended) = state.and_then(|s| s.terminated.as_ref()) {
        let (exit, reason) = exit(pod, ended, marks);
        let (started_at, finished_at) = (time(ended.started_at.as_ref()), time(ended.finished_at.as_ref()));
        return Observation { state: InstanceState::Exited, exit, reason, started_at, finished_at, ..seen };
    }
    let running = state.and_then(|s| s.running.as_ref());
    seen.started_at = running.and_then(|r| time(r.started_at.as_ref()));
    let by = condition(pod, "DisruptionTarget").filter(|c| c.status == "True").and_then(|c| c.reason.as_deref());
    if matches!(phase, "Failed" | "Succeeded") {
        let silent = by.is_some_and(|by| WITHOUT_THE_NODE.contains(&by)) && node.is_some();
        let why = killer(pod).unwrap_or_else(|| format!("the pod is {phase} and no container ran"));
        return match running {
            None if !silent => never_began(seen, why),
            _ => unknown(
                seen,
                format!(
                    "the API calls the pod {phase} ({why}), and no kubelet has said that its container ended: it may \
                        run on"
                ),
            ),
        };
    }
    if let Some(deadline) = time(pod.metadata.deletion_timestamp.as_ref()) {
        if node.is_none() {
            return never_began(seen, "the pod was deleted before it was placed on a node".to_owned());
        }
        if now.duration_since(deadline).is_ok_and(|late| late > OVERDUE) {
            return unknown(
                seen,
                format!(
                    "the pod is being deleted, and its node {} has not confirmed an end: its container may run on",
                    node.unwrap_or_default()
                ),
            );
        }
    }
    let is = |kind: &str, value: &str| condition(pod, kind).is_some_and(|c| c.status == value);
    if is("Ready", "False") && is("ContainersReady", "True") {
        let since = condition(pod, "Ready").and_then(|c| c.last_transition_time.as_ref());
        let since = since.map(|t| format!(" since {}", t.0)).unwrap_or_default();
        return unknown(seen, format!("the node {} is silent{since}", node.unwrap_or_default()));
    }
    if running.is_some() {
        return Observation { state: InstanceState::Running, ..seen };
    }
    let waiting = state.and_then(|s| s.waiting.as_ref());
    let waiting = waiting.map(|w| sentence([w.reason.as_deref(), w.message.as_deref()])).filter(|w| !w.is_empty());
    let placed = condition(pod, "PodScheduled").filter(|c| c.status == "False");
    let placed = placed.map(|c| sentence([c.reason.as_deref(), c.message.as_deref()]));
    let reason = waiting.or(placed).unwrap_or_default();
    Observation { state: InstanceState::Creating, reason, ..seen }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn at(seconds: u64) -> String {
        jiff::Timestamp::from_second(i64::try_from(seconds).expect("fits")).expect("a time").to_string()
    }

    fn seen(status: Value, more: Value) -> Observation {
        let mut pod = json!({
            "metadata": {"name": "drover-k", "namespace": "n", "uid": "u",
                "annotations": {"drover.dev/owner": "o", "drover.dev/key": "k", "drover.dev/epoch": "3"}},
            "spec": {"containers": [], "nodeName": "n1"},
            "status": status,
        });
        for (path, value) in more.as_object().expect("an object") {
            let (object, field) = path.rsplit_once(' ').expect("an object and a field");
            pod.pointer_mut(object).and_then(Value::as_object_mut).expect("there").insert(field.into(), value.clone());
        }
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let marks = Marks::of(&pod).expect("ours");
        observation(&pod, &marks, SystemTime::UNIX_EPOCH + Duration::from_secs(NOW))
    }

    fn task(state: Value) -> Value {
        json!([{"name": "task", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
    }

    fn running() -> Value {
        task(json!({"running": {"startedAt": at(NOW - 60)}}))
    }

    fn ended(reason: &str, code: i32) -> Value {
        task(json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": at(NOW - 5)}}))
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "lastTransitionTime": at(NOW - 9)})
    }

    #[test]
    fn an_end_is_told_with_its_code_and_who_has_ended_it() {
        let plain = seen(json!({"phase": "Failed", "containerStatuses": ended("Error", 7)}), json!({}));
        assert_eq!((plain.state, plain.exit.exit_code, plain.exit.error), (InstanceState::Exited, 7, None));
        assert_eq!(plain.epoch, 3);
        let oom = seen(json!({"phase": "Failed", "containerStatuses": ended("OOMKilled", 137)}), json!({}));
        assert!(oom.exit.oom_killed && oom.exit.signal == 9 && oom.reason == "OOMKilled", "{oom:?}");
        let start = seen(json!({"phase": "Failed", "containerStatuses": ended("StartError", 128)}), json!({}));
        assert!(start.exit.error.is_some() && start.exit.signal == 0, "{start:?}");
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory",
            "containerStatuses": ended("Error", 0)});
        let evicted = seen(evicted, json!({}));
        assert_eq!(evicted.reason, "Evicted: low on memory");
        assert!(!evicted.exit.successful());
        let preempted = json!({"phase": "Failed", "containerStatuses": ended("Error", 143),
            "conditions": [condition("DisruptionTarget", "True", "PreemptionByScheduler")]});
        assert_eq!(seen(preempted, json!({})).reason, "PreemptionByScheduler");
    }

    #[test]
    fn a_forgotten_container_has_no_code() {
        let lost = json!({"phase": "Failed", "containerStatuses": ended("ContainerStatusUnknown", 137)});
        let lost = seen(lost, json!({}));
        assert_eq!((lost.state, lost.exit.exit_code, lost.exit.signal), (InstanceState::Exited, -1, 0));
        assert!(lost.reason.contains("unknown"));
    }

    #[test]
    fn an_ordered_stop_is_no_failure_of_the_cluster_and_a_persons_deadline_is() {
        let late = || json!({"phase": "Failed", "reason": "DeadlineExceeded", "containerStatuses": ended("Error", 7)});
        let stopped = seen(late(), json!({"/metadata/annotations drover.dev/stop": "3"}));
        assert_eq!((stopped.exit.exit_code, stopped.exit.error), (7, None));
        let own = seen(late(), json!({}));
        assert_eq!(own.exit.error.as_deref(), Some("DeadlineExceeded"));
    }

    #[test]
    fn failed_is_no_end_while_a_container_may_run() {
        let by = |reason: &str| json!([condition("DisruptionTarget", "True", reason)]);
        let gone = json!({"phase": "Failed", "containerStatuses": running(), "conditions": by("DeletionByPodGC")});
        assert_eq!(seen(gone, json!({})).state, InstanceState::Unknown);
        let waiting = task(json!({"waiting": {"reason": "ContainerCreating"}}));
        for who in WITHOUT_THE_NODE {
            let gone = json!({"phase": "Failed", "containerStatuses": waiting, "conditions": by(who)});
            assert_eq!(seen(gone, json!({})).state, InstanceState::Unknown, "{who}");
        }
        let never = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no room"});
        let never = seen(never, json!({}));
        assert_eq!((never.state, never.exit.exit_code), (InstanceState::Exited, -1));
        assert_eq!(never.reason, "UnexpectedAdmissionError: no room");
    }

    #[test]
    fn a_silent_node_makes_unknown_and_not_gone() {
        let silent = json!({"phase": "Running", "containerStatuses": running(), "conditions":
            [condition("Ready", "False", ""), condition("ContainersReady", "True", "")]});
        let silent = seen(silent, json!({}));
        assert_eq!(silent.state, InstanceState::Unknown);
        assert!(silent.reason.contains("n1"), "{}", silent.reason);
        let running = || json!({"phase": "Running", "containerStatuses": running()});
        let deleted = |seconds: u64| json!({"/metadata deletionTimestamp": at(seconds)});
        assert_eq!(seen(running(), deleted(NOW - 10)).state, InstanceState::Running);
        assert_eq!(seen(running(), deleted(NOW - 100)).state, InstanceState::Unknown);
        let pending =
            seen(json!({"phase": "Pending"}), json!({"/metadata deletionTimestamp": at(NOW), "/spec nodeName": ""}));
        assert_eq!(pending.state, InstanceState::Exited);
    }

    #[test]
    fn what_does_not_run_yet_says_why() {
        let back_off = task(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}));
        let back_off = seen(json!({"phase": "Pending", "containerStatuses": back_off}), json!({}));
        assert_eq!(
            (back_off.state, back_off.reason.as_str()),
            (InstanceState::Creating, "ImagePullBackOff: no such image")
        );
        let full = json!({"phase": "Pending", "conditions": [condition("PodScheduled", "False", "Unschedulable")]});
        assert_eq!(seen(full, json!({})).reason, "Unschedulable");
        let runs = seen(json!({"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": running()}), json!({}));
        assert_eq!((runs.state, runs.address.as_str()), (InstanceState::Running, "10.0.0.7"));
        assert!(runs.started_at.is_some());
    }
}
