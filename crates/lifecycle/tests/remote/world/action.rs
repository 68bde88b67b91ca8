//! All that may happen next in a world.

/// Something that may happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A node process starts, or a cut-off node reaches the servers again.
    Connect(usize),
    Disconnect(usize),
    /// The node's own clock says that its lease is over.
    Lapse(usize),
    /// The servers' clock says so, margin included: never before the node's.
    Expire(usize),
    Crash(usize),
    ToNode(usize),
    ToServers(usize),
    /// The provider carries out the n-th call of the node.
    Execute(usize, usize),
    /// Its answer arrives, or is lost.
    Answer(usize, usize),
    LoseAnswer(usize, usize),
    /// A create that waits for its turn is let go, as it is not wanted any more.
    LetGo(usize, usize),
    /// A call that nobody waits for any more takes effect.
    Late(usize),
    Prepared(usize, u32),
    /// The output of an ended instance is on the node's disk.
    Kept(usize, u32),
    Retry(usize, u32),
    Observe(usize, u32),
    /// The scheduler places what is wanted in the slot on that node.
    Place(u32, usize),
    /// The first capable node executes a tombstone.
    Executor(u32, usize),
    /// The node tells that the allocation's task has ended, following the verdict.
    AllocEnded(u32),
    Exit(usize),
    Drain(usize),
    ForceDrain(usize),
    /// The servers collect what has ended.
    Collect(u32),
    StopJob,
    UpdateJob,
    ScaleDown,
    RestartOrder(u32),
    /// A check on the node finds the instance unhealthy.
    Unhealthy(usize, u32),
    /// The provider cannot be asked, or can again.
    Outage,
    Recover,
    /// The next restart is due.
    Tick(u32),
}

impl Action {
    /// Something that need not happen: a fault, an order of a person, the end of an instance.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Disconnect(_)
                | Self::Crash(_)
                | Self::LoseAnswer(..)
                | Self::Exit(_)
                | Self::Drain(_)
                | Self::ForceDrain(_)
                | Self::Collect(_)
                | Self::StopJob
                | Self::UpdateJob
                | Self::ScaleDown
                | Self::RestartOrder(_)
                | Self::Unhealthy(..)
                | Self::Outage
        )
    }
}
