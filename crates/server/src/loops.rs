//! The loops of the server: every background activity, under the name that health, the watchdog and the log use.
//!
//! Only what is listed here can tell its progress. `cargo xtask lint --update` writes the rows of ARCHITECTURE from
//! this list, and includes this file for it: it uses nothing of the crate.

/// What is done about a loop that stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// It has work that must end within the bound.
    Work,
    /// As that, and it must turn within the bound even when there is nothing to do.
    Always,
    /// It is reported only: its work may take as long as it likes.
    Report,
}

/// A loop.
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    /// Its name.
    pub name: &'static str,
    /// What follows the name in the table.
    pub note: &'static str,
    /// What is done when it stands still.
    pub watched: Watched,
    /// What wakes it.
    pub wakes: &'static str,
    /// What only it owns.
    pub owns: &'static str,
    /// What it does on an error.
    pub on_error: &'static str,
    /// What it does when the server stops.
    pub on_shutdown: &'static str,
}

impl Loop {
    /// Its row of the table in ARCHITECTURE.
    #[must_use]
    pub fn row(&self) -> String {
        let Self { name, note, wakes, owns, on_error, on_shutdown, .. } = self;
        format!("| server `{name}`{note} | {wakes} | {owns} | {on_error} | {on_shutdown} |")
    }
}

macro_rules! loops {
    ($($id:ident = $name:literal $note:literal, $watched:ident, $wakes:literal, $owns:literal, $on_error:literal,
        $on_shutdown:literal;)*) => {
        $(
            #[doc = concat!("The loop `", $name, "`.")]
            pub const $id: Loop = Loop {
                name: $name,
                note: $note,
                watched: Watched::$watched,
                wakes: $wakes,
                owns: $owns,
                on_error: $on_error,
                on_shutdown: $on_shutdown,
            };
        )*
        /// All of them.
        pub const LOOPS: &[Loop] = &[$($id),*];
    };
}

loops! {
    COMMIT = "commit" " (thread)", Work, "a decision in its queue", "newest state, order of commits",
        "refuses the decision; a refused batch voids those built on it", "ends after the decision at hand";
    STORE = "store" ": writer (thread)", Work, "a batch in its queue", "the database",
        "refuses the batches; a failed fsync ends the process", "commits what is queued";
    WORKERS = "workers" " (threads)", Report, "an evaluation of the broker", "nothing",
        "give the evaluation back; after too many tries it fails, with a follow-up",
        "end after the evaluation at hand";
    BROKER = "broker" "", Work, "chores, times of waiting evaluations", "nothing", "filled again from a snapshot",
        "ends";
    BLOCKED = "blocked" "", Work, "room that appears", "nothing", "wakes everything again from a snapshot", "ends";
    LEASES = "leases" "", Always,
        "the next expiry of a lease, the end of a wait for a disconnected node, a short tick",
        "deadlines of nodes; whether the server stood still itself", "tries again in a second", "ends";
    DISK = "disk" "", Report, "a refused write, then every second until one succeeds",
        "why writes are refused, as health shows it", "tries again in a second", "ends";
    WATCHDOG = "watchdog" " (thread)", Report, "a short tick", "how long each other loop has stood still",
        "ends the process, and names the loop", "ends";
    DRAINER = "drainer" "", Work, "changed nodes and allocations, deadlines", "nothing", "tries again in a second",
        "ends";
    DEPLOYMENTS = "deployments" "", Work, "changed deployments, their jobs and allocations, deadlines",
        "which deployments to look at", "tries again in a second", "ends";
    ROLLING = "rolling" " restarts", Work, "allocations that wait for their turn, what changes in their groups",
        "which jobs to look at", "looks at every job again in a second", "ends";
    SUPERVISION = "supervision" " of remote tasks", Work, "changed slots, jobs and nodes, times of restarts",
        "which slots to check", "checks everything again in a second", "ends";
    SWEEP = "sweep" " of providers", Report, "its period, a newly reached provider, a person",
        "its findings (a restart sweeps again)", "reports the provider as not asked, tries again in 5 s", "ends";
    RECOVERY = "recovery" "", Work, "its period, answers of nodes; idle without one", "who has answered",
        "tries again", "ends; goes on at the next start";
    RUN_MARK = "mark" " of the running server", Report, "every 5 s", "the server's mark in memory (tmpfs)",
        "removes the mark, says so, keeps none", "writes the mark once more";
    PERIODIC = "periodic"  " jobs", Work, "the next launch, changed periodic jobs", "the times of the next launches",
        "tries again in a second", "ends; the next leader makes what was missed";
    LOCKS = "locks" " of variables", Work, "the end of the next lock, changed variables",
        "when each lock ends; a server that begins to lead gives them their whole time", "tries again in a second",
        "ends";
    TOKENS = "tokens" "", Report, "every minute", "nothing", "tries again in a second", "ends";
    ROOT_KEYS = "root keys" "", Report, "a rotation, every minute", "nothing", "tries again in a minute", "ends";
    COLLECTION = "collection" "", Report, "the clock", "what may be garbage, and when it is old",
        "tries again at the next interval", "ends";
    TRENDS = "trends" "", Report, "every 10 s, less often where a look at the state takes over 0.1 s",
        "what the cluster looked like over the last hour, in memory", "tries again with the next point", "ends";
    HTTP = "http" "", Report, "requests of clients; they are counted as one loop", "nothing",
        "answers with the error", "open requests end";
    SESSIONS = "sessions" "", Report, "connections of nodes", "nothing", "refuses the connection, with the reason",
        "takes no more";
    SESSION = "session" " (one per node)", Report,
        "messages of the node, changes that concern it (it reads these, not everything of the node)",
        "what it has sent", "ends; the node opens another", "says goodbye";
}
