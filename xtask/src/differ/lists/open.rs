//! Defects that are known and not mended yet. The run tells each, loudly; one that no longer differs fails the run.

use super::Known;

pub(super) const OPEN: &[Known] = &[];
