//! Helper processes of hooks, each with its group.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    time::Instant,
};

/// Longest report, in bytes.
const MAX_REPORT: u64 = 64 << 10;
/// How long a process may take to exit after its report.
const LAST_MOMENTS: Duration = Duration::from_secs(2);

/// A process that leads its group, with all its children. None of them outlives this value.
pub(crate) struct Group {
    child: Child,
    group: Option<Pid>,
}

impl Group {
    pub(crate) fn of(child: Child) -> Self {
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Self { child, group }
    }

    /// Sends the order, if the process has a stdin, and reads the report. Keeps its stdin open: the process may end
    /// when that closes.
    pub(crate) async fn talk(&mut self, line: &[u8]) -> Vec<u8> {
        let mut said = Vec::new();
        // A process that exits early has left its own report, or none.
        if let Some(stdin) = self.child.stdin.as_mut() {
            let _ = stdin.write_all(line).await;
            let _ = stdin.flush().await;
        }
        let Some(stdout) = self.child.stdout.as_mut() else { return said };
        let _ = stdout.take(MAX_REPORT).read_to_end(&mut said).await;
        said
    }

    fn kill(&mut self) {
        // Until the child is reaped, the kernel does not reuse its number.
        if let Some(group) = self.group.take() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Ends the whole group. A process that has closed its stdout is about to exit by itself; this waits for its exit
    /// status.
    pub(crate) async fn end(&mut self, by_itself: bool) -> Option<ExitStatus> {
        let deadline = Instant::now() + LAST_MOMENTS;
        while by_itself && Instant::now() < deadline && self.group.is_some_and(runs) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.kill();
        self.child.wait().await.ok()
    }
}

/// What an executable answers to one question on its stdout, and how it has ended. Nothing of it is left. Cancel safe:
/// a drop ends it and all its children.
///
/// # Errors
/// It does not start, or has not answered in time, for people.
pub(crate) async fn answer(mut command: Command, patience: Duration) -> Result<(Vec<u8>, Option<ExitStatus>), String> {
    let program = command.as_std().get_program().display().to_string();
    command.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let child = command.spawn().map_err(|e| format!("could not start {program}: {e}"))?;
    // What it was given as its input is its own alone.
    drop(command);
    let mut group = Group::of(child);
    let said = tokio::time::timeout(patience, group.talk(&[])).await;
    let status = group.end(said.is_ok()).await;
    let said = said.map_err(|_| format!("{program} has not answered for {} s", patience.as_secs()))?;
    Ok((said, status))
}

/// Whether it still runs. Does not reap it.
fn runs(pid: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(pid), look), Ok(None))
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
