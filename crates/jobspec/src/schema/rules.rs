//! Constraints and affinities, with their short forms.

use super::*;

pub(super) static CONSTRAINT: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("attribute", "LTarget", Kind::Text),
        a("value", "RTarget", Kind::Text),
        a("operator", "Operand", Kind::Text),
        a("distinct_property", "#distinct_property", Kind::Text),
        a("distinct_hosts", "#distinct_hosts", Kind::Bool),
        a("regexp", "#regexp", Kind::Text),
        a("version", "#version", Kind::Text),
        a("semver", "#semver", Kind::Text),
        a("set_contains", "#set_contains", Kind::Text),
        a("set_contains_all", "#set_contains_all", Kind::Text),
        a("set_contains_any", "#set_contains_any", Kind::Text),
        a("is_set", "#is_set", Kind::Text),
        a("is_not_set", "#is_not_set", Kind::Text),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::rule,
};

pub(super) static AFFINITY: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("attribute", "LTarget", Kind::Text),
        a("value", "RTarget", Kind::Text),
        a("operator", "Operand", Kind::Text),
        a("weight", "Weight", TINY),
        a("regexp", "#regexp", Kind::Text),
        a("version", "#version", Kind::Text),
        a("semver", "#semver", Kind::Text),
        a("set_contains", "#set_contains", Kind::Text),
        a("set_contains_all", "#set_contains_all", Kind::Text),
        a("set_contains_any", "#set_contains_any", Kind::Text),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::rule,
};
