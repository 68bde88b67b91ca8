//! Where ours is better than the stock, or the stock 1.9 is not what a newer one does. One that no longer differs fails
//! the run.
//!
//! `known` is what each full run shows. `sometimes` is what depends on who is first, or on what the dice throw.

use super::known::{Fork, Known, known, sometimes};

/// Where the two part, and what follows differs with it.
pub(super) const FORKS: &[Fork] = &[
    Fork {
        at: sometimes(
            "random* || canary-beside-a-failed-one",
            "*/allocs/*/DesiredDescription",
            "alloc is being updated due to job update",
            "alloc not needed due to job update",
            "A promoted canary takes the place of the allocation that has failed before it. The stock leaves out what \
                has ended when it looks for what to \
             stop: it stops the healthy canary, and makes a third allocation in the place of the failed one.",
        ),
        then: "*/allocs/* || */deployments/* || */summary/*",
    },
    Fork {
        at: known(
            "random* || failed-and-scaled-to-nothing",
            "*scale g to */allocs/*/DesiredDescription",
            "",
            "alloc not needed due to job update",
            "What has failed and is not wanted any more is not tried again: who wants one again gets it at once. The \
                stock goes on waiting for the time \
             at which it would have tried it again, an hour say, and places none before.",
        ),
        // Of allocations only whole ones that the other has not: what lives and is stopped by us alone is not
        // explained.
        then: "*/DesiredStatus || *]#2 || *]#3 || *]#4 || *]#5 || */deployments/* || */summary/* || */evals/* || \
            */job/Status",
    },
    Fork {
        at: known(
            "random* || node-down-of-a-canary",
            "*node returns/allocs/*",
            "-",
            "{\"Canary\":true,*",
            "A canary that finds no room when its node is lost waits for it, and is placed when the node is back. The \
                stock forgets it: its deployment can \
             never be promoted.",
        ),
        then: "*/allocs/* || */deployments/* || */evals/* || */summary/*",
    },
    Fork {
        at: sometimes(
            "node-down-of-a-canary",
            "*node of g[0] goes down/evals/kinds",
            "queued-allocs complete",
            "queued-allocs blocked *",
            "A canary that finds no room waits for it. The stock forgets it when the evaluation that waits is looked \
                at once more, which may come before \
             the node is back or after.",
        ),
        then: "*/evals/* || */summary/*",
    },
    Fork {
        at: sometimes(
            "random*",
            "*/evals/kinds",
            "alloc-failure failed (maximum attempts reached (*))",
            "*",
            "When an allocation fails on a node that takes no work, the stock cannot note when it is tried again, and \
                runs out of attempts for its plan.",
        ),
        then: "*/HasFollowup || */evals/*",
    },
    Fork {
        at: sometimes(
            "random*",
            "*/deployments/*/StatusDescription",
            "Failed due to progress deadline - not rolling back to stable job version * as current job has same \
                specification",
            "Failed due to progress deadline - rolling back to job version *",
            "A version that comes from a scale is not stable before it was rolled out: auto_revert goes back to the \
                one before. The stock takes it for stable \
             because the one before was.",
        ),
        then: "*",
    },
];

pub(super) const EXCEPTIONS: &[Known] = &[
    sometimes(
        "preempt* || not-preempted*",
        "*/evals/failed placements of the newest",
        "g: [\"computed class ineligible\"] *",
        "g: [\"${meta.number} = *",
        "Reasons name the rule that no node keeps. The stock looks a second time, for allocations to displace, and \
            then knows of each class of nodes only that it was left out before.",
    ),
    sometimes(
        "preempted*",
        "*/allocs/*/tasks/t/events",
        "-",
        "Task Setup: Waiting for the displaced allocation * to end",
        "A task that waits for the end of those whose room it gets says so. The stock starts it beside them.",
    ),
    sometimes(
        "random*",
        "*POST allocation ALLOC stop/allocs/*/Migrate",
        "true",
        "false",
        "What has ended already is not marked as one that is to move.",
    ),
    known(
        "random* || drain-of-a-canary",
        "*node of g[0] goes down/allocs/*/HasNext || *node returns/allocs/*/HasNext || *POST allocation ALLOC \
            stop/allocs/*/HasNext \
         || *drain of the node of g[0]/allocs/*/HasNext || *drain ends/allocs/*/HasNext",
        "false",
        "true",
        "What was lost, moved or stopped knows what has taken its place, also when that is a canary or has found room \
            only later; the stock loses the link.",
    ),
    sometimes(
        "random* || system-waits-for-room",
        "*/evals/kinds",
        "queued-allocs canceled (existing blocked evaluation exists *",
        "-",
        "How many evaluations wait at the same time for a moment depends on what came when.",
    ),
    sometimes(
        "random*",
        "*/evals/failed placements of the newest",
        "*] 0",
        "*] 1",
        "Which evaluation is the newest depends on what came when: one that looks for two places that are missing \
            tells of both.",
    ),
    sometimes(
        "random*",
        "*/allocs/*/RescheduleDelays",
        "-",
        "*",
        "What is moved or stopped by a person keeps the attempts that it has spent on its record; the stock \
            forgets them.",
    ),
    sometimes(
        "random*",
        "*all g[0] t end with */deployments/*/groups/g/HealthyAllocs || *all g[0] t end with \
            */deployments/*/groups/g/PlacedAllocs",
        "*",
        "*",
        "What comes back in the version before, while canaries are tried, is no part of that version's deployment, \
            which has ended; the stock counts it there.",
    ),
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
    sometimes(
        "*",
        "*/evals/kinds",
        "reconnect failed *",
        "reconnect complete",
        "A reconnected node settles in one evaluation.",
    ),
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
    known(
        "*",
        "*/job/Stable",
        "true",
        "false",
        "A version that only stops the job was never rolled out: it is no version to go back to.",
    ),
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
    sometimes(
        "*",
        "*/events",
        "-",
        "Alloc Unhealthy: *",
        "The end of a failed allocation may come before the stock tells why it is unhealthy; ours tells it always.",
    ),
    sometimes(
        "prestart-fails",
        "*/tasks/last/events",
        "Task Setup: Building Task Directory",
        "-",
        "The stock may start a poststop task before it tells why the allocation is unhealthy; ours tells it first.",
    ),
    sometimes(
        "prestart-fails",
        "*/tasks/last/events",
        "-",
        "Task Setup: Building Task Directory",
        "The stock may start a poststop task before it tells why the allocation is unhealthy; ours tells it first.",
    ),
    known(
        "sticky-disk || as-stored || drain-moves-the-disk",
        "*/events",
        "-",
        "Task Setup: Waiting for the previous allocation* || Task Setup: The data of the previous allocation * has \
            been copied from its node *",
        "Ours says what a task waits for, and what it was given.",
    ),
    // What a task is given.
    known(
        "directories",
        "*/stdout *",
        "*d 777 *",
        "-",
        "Directories are sticky, and private and secret ones are the task's alone.",
    ),
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
        "*.nomad-mount || *.fifo",
        "-",
        "Marks and pipes of the stock's own agent are no part of the layout.",
    ),
    known(
        "environment",
        "*/stdout *",
        "NOMAD_CPU_CORES=*",
        "-",
        "A task without cores of its own has no variable of them.",
    ),
    known(
        "environment",
        "*/stdout *",
        "NOMAD_PARENT_CGROUP=*",
        "NOMAD_PARENT_CGROUP=*",
        "The parent of control groups has another name.",
    ),
    // Kinds of evaluations that depend on who is first.
    sometimes(
        "*",
        "*/evals/kinds",
        "*",
        "queued-allocs canceled *",
        "Descriptions of cancelled evaluations are sentences of our own.",
    ),
    sometimes(
        "*",
        "*/evals/kinds",
        "* canceled (canceled after more recent eval was processed)",
        "-",
        "Whether one evaluation of a job overtakes another depends on what came when.",
    ),
    sometimes(
        "system* || drain* || random* || priority*",
        "*/evals/kinds",
        "-",
        "node-update complete",
        "Nodes of the lane come and go while the scenario is played.",
    ),
    // Health.
    sometimes(
        "random*",
        "*node returns/allocs/*/Healthy",
        "false",
        "true",
        "What was healthy when its node was lost is not called unhealthy because it is stopped when the node is back. \
            The stock's agent begins to wait \
         for the health anew, while the poststop task cleans up.",
    ),
    sometimes(
        "*",
        "*/Healthy",
        "false",
        "- || null",
        "An allocation that was stopped before it could become healthy is not called unhealthy.",
    ),
    sometimes(
        "*",
        "*/UnhealthyAllocs",
        "1",
        "-",
        "An allocation that was stopped before it could become healthy is not called unhealthy.",
    ),
    sometimes(
        "random* || node-down || blocked-* || distinct-* || exhausted-cpu || priority-of-waiting-jobs || eligibility",
        "*/Healthy",
        "null",
        "true",
        "Without a deployment the stock begins to wait for the health anew when an allocation changes, though its \
            tasks have run on.",
    ),
    sometimes(
        "random* || node-down || blocked-* || distinct-* || exhausted-cpu || priority-of-waiting-jobs || eligibility",
        "*/Healthy",
        "true",
        "null",
        "Without a deployment the health is known some time after the start: which of the two is asked first \
            is chance.",
    ),
    known(
        "random*",
        "*/tasks/hook/events",
        "-",
        "Task Setup: * || Started: * || Terminated: * || Received: *",
        "A poststop task cleans up after the main tasks, also on a node that was away when they were stopped.",
    ),
    sometimes(
        "template-restarts",
        "*/events",
        "-",
        "Template: Missing: *",
        "Ours tells what a template waits for after three seconds; the stock begins to count them anew with all that \
            it hears.",
    ),
    // Jobs.
    known(
        "system-fits-nowhere || system-waits-for-room",
        "*/job/Status",
        "running",
        "pending",
        "A system job that has found no room is not running.",
    ),
    sometimes(
        "disconnect*",
        "3 node returns/* || 2 node of */HasNext || 2 node of */Healthy",
        "*",
        "*",
        "The stock sometimes runs out of attempts for its plan; which allocation it keeps and links then is chance.",
    ),
    known(
        "disconnect-for-too-long",
        "*/ClientDescription",
        "alloc is unknown *",
        "alloc is lost since its node is down",
        "An allocation that is lost does not say that it is unknown.",
    ),
    sometimes(
        "node-down || batch-node-down || system-node-down || random*",
        "*/tasks/*/events",
        "-",
        "Killed: Task successfully killed",
        "Ours tells the end of the task on the node that has returned.",
    ),
    known(
        "directories",
        "*/stdout *",
        "*",
        "s 666 ./t/secrets/api.sock",
        "The stock makes no socket where the path is too long for one, as it is here.",
    ),
    known(
        "logs-rotate",
        "*.fifo || *.index",
        "*",
        "*",
        "How logs are passed on is not the layout: pipes there, a file with the place reached here.",
    ),
    sometimes(
        "logs-rotate",
        "*/Size",
        "*",
        "*",
        "After how many lines a new file begins depends on how much is written at once.",
    ),
    known("tags", "*/Versions", "*\"Consul\":*", "*", "There is no Consul: nothing is stored of one."),
    known("*as-stored", "*/Consul", "*", "-", "There is no Consul: nothing is stored of one."),
    known(
        "refusals-*",
        "*numeric-port-of-a-task/answer/*",
        "*",
        "*",
        "A numeric port of a task's service and its check has an address here, and is taken.",
    ),
    sometimes(
        "*",
        "*/evals/kinds",
        "queued-allocs complete",
        "-",
        "What waits for room is looked at again only when there may be some.",
    ),
    known(
        "as-stored",
        "*/Constraints",
        "{*${attr.nomad.*",
        "-",
        "Every node here has services: no constraint on versions is added to the job's own.",
    ),
    known(
        "as-stored",
        "*/Services/*/Cluster",
        "default",
        "-",
        "There is no Consul: nothing is stored of a cluster of it.",
    ),
    known(
        "refusals-*",
        "*run affinity-weight/answer/* || *run payload-without-parameters/answer/* || *run volume-type/answer/* || \
            *run service-port/answer/*",
        "*",
        "*",
        "What can never work is refused at submission; the stock takes it.",
    ),
    known(
        "system-alloc-is-stopped",
        "*",
        "*",
        "*",
        "A system job has an allocation on each node: one that is stopped is placed again at once, not when something \
            else happens.",
    ),
    known(
        "odd-requests",
        "*",
        "*",
        "*",
        "A signal that does not exist is refused; the stock sends SIGINT in its place, which ends the task.",
    ),
    known(
        "promotion-without-canaries",
        "*/answer*",
        "*",
        "*",
        "Where there is nothing to promote, that is said; the stock says that it has done it.",
    ),
    sometimes(
        "system-waits-for-room",
        "4 stop/job high/evals/failed placements of the newest",
        "*",
        "*] 2",
        "The one evaluation that waits goes on to wait for the nodes that are full still, and tells of them. The \
            stock ends it and makes others.",
    ),
    known(
        "drain-of-a-canary",
        "5 drain of the node of g[0]/evals/* || 5 drain of the node of g[0]/summary/* || 7 drain ends/* || 8 POST \
            deployment promote DEPLOYMENT/*",
        "*",
        "*",
        "A canary that finds no room waits for it and is placed when there is some. The stock forgets it: its \
            deployment can never be promoted.",
    ),
    known(
        "static-port-of-two-addresses",
        "2 run other/job other/* || 3 scale g to 2/job other/*",
        "*",
        "*",
        "A static port of a node is given once. The stock gives it once for each address of the default network, IPv4 \
            and IPv6: two tasks that listen at \
         all addresses then collide.",
    ),
    known(
        "static-port-on-a-host-network",
        "*/failed placements of the newest",
        "*missing host network *nowhere* for port *",
        "*missing host network *nowhere*",
        "What keeps a group from a node is told in sentences of our own.",
    ),
    // Placement node by node.
    known("placement-*", "*/why filtered/missing drivers*", "*", "*", "Ours names the drivers that a node lacks."),
    known(
        "placement-*",
        "*/why filtered/${attr.storage.kind} is_set* || */why filtered/${attr.storage.kind} is_not_set*",
        "*",
        "*",
        "A constraint without a value is named without a blank after it.",
    ),
    known(
        "placement-*",
        "*/why filtered/computed class ineligible",
        "*",
        "-",
        "Ours says of each node which constraint it does not meet, also when a node of its class was asked before.",
    ),
    known(
        "placement-static-port || placement-distinct-hosts",
        "*plan/failed/g/why filtered/${meta.slice} = *",
        "-",
        "*",
        "Ours says of each node which constraint it does not meet, also when a node of its class was asked before.",
    ),
    known(
        "placement-spread-and-scale || placement-distinct-property-and-scale",
        "2 scale to 4/*",
        "*",
        "*",
        "The stock counts allocations that it updates in place twice.",
    ),
    known(
        "placement-spread-evenly-1 || placement-spread-over-what-some-lack-1 || placement-two-spreads-1",
        "2 g[0] is stopped/*",
        "*",
        "*",
        "When the only allocation is stopped there is none to be even with; the stock takes one from all nodes alike.",
    ),
];
