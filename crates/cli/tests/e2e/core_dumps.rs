//! An agent that dies leaves no image of its memory, where keys and tokens of the whole cluster are.

use std::os::unix::process::ExitStatusExt as _;

use rustix::process::Signal;

use crate::agent::{Agent, signal, until};

#[test]
fn an_agent_leaves_no_core_dump_and_its_tasks_may() {
    let mut agent = Agent::start_after("ulimit -c unlimited", "");
    // The limits of tasks are those of the agent, as ever.
    agent.run(
        "job \"t\" {\n  type = \"batch\"\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      \
         config {\n        command = \"/bin/sh\"\n        args = [\"-c\", \"ulimit -c\"]\n      }\n    }\n  }\n}\n",
    );
    let alloc = agent.alloc("t", "complete");
    until("the limit of the task", || (agent.logs(&alloc, "t").trim() == "unlimited").then_some(()));

    signal(agent.pid(), Signal::ABORT);
    let status = agent.ended();
    assert_eq!((status.signal(), status.core_dumped()), (Some(Signal::ABORT.as_raw()), false), "{status}");
}
