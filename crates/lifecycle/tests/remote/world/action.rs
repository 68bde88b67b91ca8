//! All that may happen next in a world.

use model::IncarnationId;

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
    /// The same comes again afterwards.
    ToNodeTwice(usize),
    ToServersTwice(usize),
    /// A session ends while a report is on its way, which the servers read later.
    Straggle(usize),
    Straggler(usize),
    /// The provider carries out the n-th call of the node.
    Execute(usize, usize),
    /// And once more at any later time.
    ExecuteTwice(usize, usize),
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
    /// Searches show what was created.
    Show(usize),
    /// The provider forgets an ended instance.
    Forget(usize),
    /// The servers' wall clock is set.
    ClockStep(i64),
    /// A step that goes through slots, from the last one on.
    Downwards(Box<Action>),
    /// So much time passes that no call from before can take effect any more, but of managers that are frozen in it.
    Wait,
    /// A person says that there is no instance, without having looked.
    DeclareGone(u32),
    /// The servers list what the provider has.
    Sweep,
    /// A person orders the stop of what the sweep has found and no record knows.
    StopUnbound(IncarnationId),
    /// The servers' process ends, and another begins on the same state, on a copy from before, on nothing, on the
    /// state of another cluster; on its own again.
    RestartServers,
    BackUp,
    Restore,
    Empty,
    Swap,
    SwapBack,
    /// The store becomes slow, and has stored the first of what waits.
    Slow,
    Durable,
    /// Another server takes the fence, with so much in the store of what the former leader has handed to it; or of a
    /// store from the past, and may know what that has lost.
    TakeOver(usize),
    TakeOverPast(bool),
    /// A node's session with a former leader ends, or one begins.
    LeaveFormer(usize),
    ConnectFormer(usize),
    /// The former leader is gone.
    FormerEnds,
    /// A node tells servers that recover what it has.
    Tell(usize),
    /// The recovery ends, by itself or by a person who sees that all have answered.
    EndRecovery,
    /// A person says that a node will not come back.
    Excuse(usize),
    /// The directory of a node is gone, copied, or the copy from before.
    EmptyNode(usize),
    CopyDisk(usize),
    OldNode(usize),
    /// An agent starts on the copy, beside the node's own. Of the two, events happen to the one without the session.
    StartTwin(usize),
    Twin(usize, Box<Action>),
}

impl Action {
    /// Something that need not happen: a fault, an order of a person, the end of an instance.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self.of_any_agent(),
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
                | Self::Wait
                | Self::DeclareGone(_)
                | Self::RestartServers
                | Self::BackUp
                | Self::Restore
                | Self::Empty
                | Self::Swap
                | Self::EmptyNode(_)
                | Self::CopyDisk(_)
                | Self::OldNode(_)
                | Self::StartTwin(_)
                | Self::ToNodeTwice(_)
                | Self::ToServersTwice(_)
                | Self::Straggle(_)
                | Self::ExecuteTwice(..)
                | Self::Forget(_)
                | Self::ClockStep(_)
                | Self::Slow
                | Self::TakeOver(_)
                | Self::TakeOverPast(_)
                | Self::ConnectFormer(_)
        )
    }

    /// It goes through all slots, and says something to nodes or servers of more than one.
    pub(crate) fn goes_through_slots(&self) -> bool {
        matches!(
            self,
            Self::Connect(_)
                | Self::ConnectFormer(_)
                | Self::Expire(_)
                | Self::Drain(_)
                | Self::ForceDrain(_)
                | Self::StopJob
                | Self::Sweep
                | Self::EndRecovery
        )
    }

    /// What happens, whichever agent of a node it happens to, and in whichever order of slots.
    pub(crate) fn of_any_agent(&self) -> &Self {
        match self {
            Self::Twin(_, action) | Self::Downwards(action) => action.of_any_agent(),
            other => other,
        }
    }
}
