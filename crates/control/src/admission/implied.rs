//! Constraints that follow from what a group asks for.

use model::{Constraint, TaskGroup};

/// Adds a constraint that follows from the group's tasks. An update of a job that was read back has it already.
pub(super) fn imply(group: &mut TaskGroup, constraint: Constraint) {
    if !group.constraints.contains(&constraint) {
        group.constraints.push(constraint);
    }
}
