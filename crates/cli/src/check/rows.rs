//! The failure sheet of remote tasks: what fails, what becomes of the task, what people see, and how it is replayed.
//! The guide shows these rows; a test compares it with them.

use super::play;

/// What a row needs of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing.
    Nothing,
    /// Create-or-get by key.
    KeyedCreate,
    /// Exit results that stay until they are acknowledged.
    Results,
}

/// One line of the sheet.
pub(super) struct Row {
    pub(super) id: &'static str,
    /// What fails.
    pub(super) fails: &'static str,
    /// What happens to the task.
    pub(super) task: &'static str,
    /// What people see.
    pub(super) see: &'static str,
    /// What a user must expect when the row fails.
    pub(super) means: &'static str,
    pub(super) needs: Needs,
    pub(super) play: play::Play,
}

/// All of them.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "manager-killed",
        fails: "the managing node is killed",
        task: "runs on; another node adopts it when the lease is over",
        see: "another manager, one hand-over more",
        means: "the loss of a node costs tasks that do not run on it",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::manager_killed(lab)),
    },
    Row {
        id: "manager-drained",
        fails: "the managing node is drained",
        task: "runs on; the next manager sees it before the old one lets go",
        see: "another manager, at once; the drain ends",
        means: "nodes cannot be taken out of service without a loss",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::manager_drained(lab)),
    },
    Row {
        id: "manager-paused",
        fails: "the managing node stands still for longer than its lease, and wakes",
        task: "runs on; another node adopts it; the first one wakes and lets go",
        see: "another manager, and it stays",
        means: "a manager that was replaced goes on acting on the task",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::manager_paused(lab)),
    },
    Row {
        id: "manager-cut-off",
        fails: "the managing agent is killed, and its plugin lives on",
        task: "runs on; another node adopts it beside the old plugin",
        see: "another manager",
        means: "plugins of two nodes disturb each other",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::manager_cut_off(lab)),
    },
    Row {
        id: "plugin-killed",
        fails: "the driver plugin of the managing node is killed",
        task: "runs on; the node starts the plugin again and finds the task",
        see: "nothing, or *unknown* for a moment",
        means: "a crash of the driver costs its tasks",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::plugin_killed(lab)),
    },
    Row {
        id: "no-node-left",
        fails: "every node is lost; later a new one comes",
        task: "runs on without a manager; the new node adopts it",
        see: "*unmanaged* until then",
        means: "only a node that knew the task before finds it again",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::no_node_left(lab)),
    },
    Row {
        id: "end-unmanaged",
        fails: "the task ends while no node manages it",
        task: "the next manager reads its exit result, once",
        see: "*unmanaged*, then the end with its true exit code",
        means: "results of tasks are lost, counted twice or told wrongly",
        needs: Needs::Results,
        play: |lab| Box::pin(play::end_unmanaged(lab)),
    },
    Row {
        id: "stop-unmanaged",
        fails: "the job is stopped while no node manages its task",
        task: "runs until the next node comes, which stops it",
        see: "`Desired stop` until the end is confirmed",
        means: "stopped tasks run on for ever",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::stop_unmanaged(lab)),
    },
    Row {
        id: "create-answer-lost",
        fails: "the answer to the create is lost",
        task: "the create is repeated by its key: one instance",
        see: "*unknown* for a moment",
        means: "a lost answer makes a second instance",
        needs: Needs::KeyedCreate,
        play: |lab| Box::pin(play::create_answer_lost(lab)),
    },
    Row {
        id: "plugin-killed-in-create",
        fails: "the plugin dies inside the create",
        task: "the create is repeated by its key: one instance",
        see: "*unknown* for a moment",
        means: "a crash of the driver makes a second instance",
        needs: Needs::KeyedCreate,
        play: |lab| Box::pin(play::plugin_killed_in_create(lab)),
    },
    Row {
        id: "late-create",
        fails: "the managing agent is killed while its create is on its way, and the create arrives later",
        task: "the next manager creates by the same key; the late create makes no other: one instance",
        see: "another manager",
        means: "a call of a replaced manager makes a second instance",
        needs: Needs::KeyedCreate,
        play: |lab| Box::pin(play::late_create(lab)),
    },
    Row {
        id: "provider-outage",
        fails: "the provider cannot be asked for longer than a lease",
        task: "runs on; nothing is created or stopped, and no restart attempt is spent",
        see: "*unknown* with the reason, then running again",
        means: "an outage of the provider costs tasks that it does not end",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::provider_outage(lab)),
    },
    Row {
        id: "provider-throttles",
        fails: "the provider refuses calls because there are too many",
        task: "runs on, as in an outage",
        see: "*unknown* with the reason, then running again",
        means: "a busy provider costs tasks",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::provider_throttles(lab)),
    },
    Row {
        id: "slow-stop",
        fails: "the stop takes longer than the lease, and the managing node is killed meanwhile",
        task: "the next manager stops it; its record stays until the end is confirmed",
        see: "`Desired stop` until then",
        means: "a stop is forgotten, or a task counts as ended that runs",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::slow_stop(lab)),
    },
    Row {
        id: "server-killed",
        fails: "the server is killed and started again",
        task: "runs on",
        see: "no answers meanwhile",
        means: "tasks depend on the server",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::server_killed(lab)),
    },
    Row {
        id: "server-restored",
        fails: "the server's directory is restored from before a hand-over",
        task: "runs on; the servers learn from nodes and provider who manages it",
        see: "the recovery, in `operator recover -status`",
        means: "a restore from a backup costs tasks, or doubles them",
        needs: Needs::Nothing,
        play: |lab| Box::pin(play::server_restored(lab)),
    },
];

/// Their names.
pub(crate) const FAILURES: [&str; ROWS.len()] = {
    let mut names = [""; ROWS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = ROWS[at].id;
        at += 1;
    }
    names
};

/// The sheet as a table for the guide.
#[cfg(test)]
pub(crate) fn table() -> String {
    let row = |row: &Row| {
        format!("| {} | {} | {} | `drover check remote -only {}` |\n", row.fails, row.task, row.see, row.id)
    };
    format!(
        "| what fails | what happens to the task | what you see | replay it |\n|---|---|---|---|\n{}",
        ROWS.iter().map(row).collect::<String>()
    )
}
