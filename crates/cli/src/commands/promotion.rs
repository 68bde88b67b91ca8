//! Whether a deployment's canaries wait to be promoted.

use model::{Deployment, DeploymentId};

use super::Shape;

/// What a deployment's canaries wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promotion {
    /// Nothing: there are none, they are promoted, or they will be without anybody's help.
    None,
    /// Their own health; then for somebody.
    Later,
    /// Somebody who promotes them.
    Awaited,
}

/// Whether somebody has to promote the canaries.
pub(crate) fn promotion(d: &Deployment) -> Promotion {
    if !d.status.active() {
        return Promotion::None;
    }
    // All groups are promoted together, so the slowest decides.
    let mut all = Promotion::None;
    for g in d.groups.values().filter(|g| g.desired_canaries > 0 && !g.promoted && !g.auto_promote) {
        if g.healthy_allocs < g.desired_canaries {
            return Promotion::Later;
        }
        all = Promotion::Awaited;
    }
    all
}

/// The command that promotes a deployment's canaries.
pub(crate) fn promote_command(id: DeploymentId, shape: &Shape) -> String {
    format!("drover deployment promote {}", shape.id(id))
}

/// The command that lets a paused deployment go on.
pub(crate) fn resume_command(id: DeploymentId, shape: &Shape) -> String {
    format!("drover deployment resume {}", shape.id(id))
}

#[cfg(test)]
mod tests {
    use model::{DeploymentGroup, DeploymentStatus};

    use super::*;

    #[test]
    fn promotion_is_awaited_once_all_canaries_are_healthy() {
        let group = |canaries, healthy, promoted, auto| DeploymentGroup {
            desired_canaries: canaries,
            healthy_allocs: healthy,
            promoted,
            auto_promote: auto,
            ..DeploymentGroup::default()
        };
        for (groups, wanted) in [
            (vec![group(0, 0, false, false)], Promotion::None),
            (vec![group(1, 0, false, false)], Promotion::Later),
            (vec![group(1, 1, false, false)], Promotion::Awaited),
            (vec![group(1, 1, true, false)], Promotion::None),
            (vec![group(1, 1, false, true)], Promotion::None),
            (vec![group(1, 1, false, false), group(2, 1, false, false)], Promotion::Later),
            (vec![group(1, 1, false, false), group(0, 3, false, false)], Promotion::Awaited),
        ] {
            let groups = groups.into_iter().enumerate().map(|(i, g)| (i.to_string().into(), g)).collect();
            let d = Deployment { groups, ..Deployment::default() };
            assert_eq!(promotion(&d), wanted, "{d:?}");
            let ended = Deployment { status: DeploymentStatus::Failed, ..d };
            assert_eq!(promotion(&ended), Promotion::None);
        }
    }
}
