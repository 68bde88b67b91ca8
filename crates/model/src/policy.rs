//! Policies that a group (or job, or task) declares and the scheduler or node follows. Fields are `Option` so that an inner block can be merged
//! over an outer one; after canonicalisation all of them are set.

use serde::{Deserialize, Serialize};

use crate::go_duration::GoDuration;

macro_rules! policy {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(default, rename_all = "PascalCase")]
        pub struct $name { $($(#[$fdoc])* pub $field: Option<$ty>,)* }
        impl $name {
            /// Takes each field that is unset here from `outer`.
            pub fn inherit(&mut self, outer: &Self) {
                $(if self.$field.is_none() { self.$field.clone_from(&outer.$field); })*
            }
            /// Every field set to what Nomad 1.9 documents as the default (for services, where the kinds differ).
            #[must_use]
            pub fn defaults() -> Self {
                Self { $($field: Some($default),)* }
            }
            $(
                #[doc = concat!("`", stringify!($field), "`, or its default.")]
                #[must_use]
                pub fn $field(&self) -> $ty { self.$field.clone().unwrap_or_else(|| $default) }
            )*
        }
    };
}

policy! {
    /// How a new job version replaces the running one.
    Update {
        /// Pause between batches; only with system jobs.
        stagger: GoDuration = GoDuration::from_secs(30),
        /// Allocations replaced at once; 0 = no deployment, all at once.
        max_parallel: i32 = 1,
        /// `checks`, `task_states` or `manual`.
        health_check: String = "checks".to_owned(),
        /// How long an allocation must stay healthy before it counts.
        min_healthy_time: GoDuration = GoDuration::from_secs(10),
        /// By when an allocation must have become healthy.
        healthy_deadline: GoDuration = GoDuration::from_secs(300),
        /// By when the deployment must have made progress.
        progress_deadline: GoDuration = GoDuration::from_secs(600),
        /// Return to the last stable version when the deployment fails.
        auto_revert: bool = false,
        /// Promote canaries when all are healthy.
        auto_promote: bool = false,
        /// Number of canaries.
        canary: i32 = 0,
    }
}

policy! {
    /// What the node does when a task ends by itself.
    Restart {
        /// Restarts within the interval.
        attempts: i32 = 2,
        /// Window in which attempts are counted.
        interval: GoDuration = GoDuration::from_secs(1800),
        /// Pause before a restart; up to a quarter is added as jitter.
        delay: GoDuration = GoDuration::from_secs(15),
        /// `fail` or `delay`: what happens when attempts are used up.
        mode: String = "fail".to_owned(),
        /// Render templates again on each restart.
        render_templates: bool = false,
    }
}

policy! {
    /// What the servers do when an allocation has failed.
    Reschedule {
        /// New allocations within the interval.
        attempts: i32 = 0,
        /// Window in which attempts are counted.
        interval: GoDuration = GoDuration::ZERO,
        /// Pause before the first.
        delay: GoDuration = GoDuration::from_secs(30),
        /// `constant`, `exponential` or `fibonacci`.
        delay_function: String = "exponential".to_owned(),
        /// Upper bound of the pause.
        max_delay: GoDuration = GoDuration::from_secs(3600),
        /// Never give up.
        unlimited: bool = true,
    }
}

policy! {
    /// How allocations leave a draining node.
    Migrate {
        /// Allocations of the group migrated at once.
        max_parallel: i32 = 1,
        /// `checks` or `task_states`.
        health_check: String = "checks".to_owned(),
        /// How long the replacement must be healthy.
        min_healthy_time: GoDuration = GoDuration::from_secs(10),
        /// By when it must be healthy.
        healthy_deadline: GoDuration = GoDuration::from_secs(300),
    }
}

/// What happens to allocations of a node that cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Disconnect {
    /// How long the allocation may stay unknown before it is lost.
    pub lost_after: Option<GoDuration>,
    /// How long the node waits before it stops the allocation itself.
    pub stop_on_client_after: Option<GoDuration>,
    /// Place a replacement meanwhile.
    pub replace: Option<bool>,
    /// Which one stays on return: keep_original keep_replacement best_score longest_running.
    pub reconcile: Option<String>,
}

/// What holds for a group while its node is cut off, whichever way its job says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After this the allocation is lost; None = it is waited for as long as it takes.
    pub lost_after: Option<GoDuration>,
    /// It is replaced meanwhile.
    pub replace: bool,
    /// Which one stays when it comes back.
    pub pick: Pick,
}

/// Which of two allocations stays when the one that was cut off comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// The one that was cut off.
    KeepOriginal,
    /// The one that was placed meanwhile.
    KeepReplacement,
    /// The one whose node had the better score.
    #[default]
    BestScore,
    /// The one that has run for longer.
    LongestRunning,
}

impl Pick {
    /// By the name that jobs use.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "keep_original" => Self::KeepOriginal,
            "keep_replacement" => Self::KeepReplacement,
            "best_score" | "" => Self::BestScore,
            "longest_running" => Self::LongestRunning,
            _ => return None,
        })
    }
}
