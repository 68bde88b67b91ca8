//! Where ours is better than the stock, or the stock 1.9 is not what a newer one does. One that no longer differs fails the run.

use super::{Known, known, sometimes};

pub(super) const EXCEPTIONS: &[Known] = &[
    // Evaluations.
    known(
        "*",
        "*/evals/kinds",
        "deployment-watcher complete",
        "-",
        "Ours makes no evaluation when a deployment has nothing left to place.",
    ),
    known(
        "*",
        "*/evals/kinds",
        "node-update complete",
        "-",
        "Ours makes no evaluation for a node that has become eligible when the job lacks nothing.",
    ),
    sometimes(
        "*",
        "*/evals/kinds",
        "max-plan-attempts * || reconnect failed *",
        "-",
        "A reconnected node settles in one evaluation; the stock runs out of attempts for its plan.",
    ),
    sometimes("*", "*/evals/kinds", "reconnect failed *", "reconnect complete", "A reconnected node settles in one evaluation."),
    known(
        "disconnect*",
        "*/evals/kinds",
        "max-disconnect-timeout pending *",
        "max-disconnect-timeout pending *",
        "Descriptions are sentences of our own.",
    ),
    known(
        "operators",
        "*/failed placements of the newest",
        "*is_not_set *",
        "*is_not_set*",
        "A constraint without a value is named without a blank after it.",
    ),
    // Jobs and allocations.
    known("*", "*/job/Stable", "true", "false", "A version that only stops the job was never rolled out: it is no version to go back to."),
    known(
        "*",
        "*/ClientDescription",
        "Tasks are running",
        "alloc is lost since its node is down",
        "An allocation that is lost does not say that its tasks run.",
    ),
    // Task events.
    known(
        "*",
        "*/tasks/*/events",
        "Killing: Sent interrupt*",
        "-",
        "A task that has ended by itself is sent no signal, and ours does not say so.",
    ),
    sometimes(
        "*",
        "*/tasks/*/events",
        "Terminated: Exit Code: 0, Exit Message: \"executor: error waiting on process*",
        "Terminated: Exit Code: *, Signal: *",
        "The stock sometimes loses the exit code of a task that it stops.",
    ),
    known(
        "signal",
        "*/events",
        "Signaling: Task being sent a signal",
        "Signaling: Task being sent signal SIGUSR1",
        "Ours names the signal.",
    ),
    known(
        "no-such-command || no-such-user",
        "*/events",
        "Driver Failure: *",
        "Driver Failure: *",
        "The driver's errors are sentences of our own.",
    ),
    known(
        "artifact-fails",
        "*/events",
        "Failed Artifact Download: *",
        "Failed Artifact Download: *",
        "Ours says what the server answered.",
    ),
    known(
        "check-restarts",
        "*/events",
        "Restart Signaled: *",
        "Restart Signaled: *",
        "Ours names the service and how often the check has failed.",
    ),
    known(
        "health-by-checks",
        "*/events",
        "Alloc Unhealthy: *",
        "Alloc Unhealthy: Checks were not healthy *",
        "Ours names the check that keeps it from being healthy.",
    ),
    known("sticky-disk", "*/events", "-", "Task Setup: Waiting for the previous allocation*", "Ours says what a task waits for."),
    // What a task is given.
    known("directories", "*/stdout *", "*d 777 *", "-", "Directories are sticky, and private and secret ones are the task's alone."),
    known(
        "directories",
        "*/stdout *",
        "-",
        "*d 1777 * || *d 700 *",
        "Directories are sticky, and private and secret ones are the task's alone.",
    ),
    known(
        "directories",
        "*/stdout *",
        "*d 777 *",
        "*d 1777 * || *d 700 *",
        "Directories are sticky, and private and secret ones are the task's alone.",
    ),
    known(
        "directories",
        "*/stdout *",
        "*.nomad-mount || *.fifo",
        "-",
        "Marks and pipes of the stock's own agent are no part of the layout.",
    ),
    known("environment", "*/stdout *", "NOMAD_CPU_CORES=", "-", "A task without cores of its own has no variable of them."),
    known("environment", "*/stdout *", "NOMAD_PARENT_CGROUP=*", "NOMAD_PARENT_CGROUP=*", "The parent of control groups has another name."),
];
