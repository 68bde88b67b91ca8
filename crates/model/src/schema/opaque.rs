//! Blocks that the model keeps as JSON, and what blocks have besides the fields of the model.

use super::*;

pub(super) const fn field(
    hcl: &'static str,
    json: &'static str,
    written: Written,
    shape: Shape,
    unset: Unset,
) -> Field {
    let (server, client, effect, says) = (None, None, None, None);
    Field {
        hcl,
        json,
        written,
        shape,
        required: false,
        unset,
        server,
        client,
        at_reading: false,
        effect,
        says,
        doc: "",
    }
}

/// A value; unset it is the zero of its kind.
pub(crate) const fn a(hcl: &'static str, json: &'static str, kind: Kind) -> Field {
    let unset = match kind {
        Kind::Text => Unset::Text,
        Kind::Bool => Unset::Bool,
        Kind::Int(..) | Kind::Duration => Unset::Number,
        Kind::Texts | Kind::Ports => Unset::Null,
    };
    field(hcl, json, Written::File, Shape::Value(kind), unset)
}

/// A value that is null when it is unset.
pub(super) const fn null(field: Field) -> Field {
    Field { unset: Unset::Null, ..field }
}

pub(crate) const fn label(json: &'static str) -> Field {
    field("", json, Written::Label, Shape::Value(Kind::Text), Unset::Text)
}

/// A name that only the API's JSON has.
pub(crate) const fn api(json: &'static str, shape: Shape, unset: Unset) -> Field {
    field("", json, Written::Api, shape, unset)
}

pub(crate) const fn one(hcl: &'static str, json: &'static str, block: &'static Block) -> Field {
    field(hcl, json, Written::File, Shape::One(block), Unset::Null)
}

pub(crate) const fn many(hcl: &'static str, json: &'static str, block: &'static Block) -> Field {
    field(hcl, json, Written::File, Shape::Many(block), Unset::Null)
}

pub(super) const fn by_label(hcl: &'static str, json: &'static str, block: &'static Block) -> Field {
    field(hcl, json, Written::File, Shape::ByLabel(block), Unset::Null)
}

pub(super) const fn texts(hcl: &'static str, json: &'static str) -> Field {
    field(hcl, json, Written::File, Shape::Texts, Unset::Null)
}

pub(super) const fn free(hcl: &'static str, json: &'static str) -> Field {
    field(hcl, json, Written::File, Shape::Free, Unset::Null)
}

pub(crate) const fn told(field: Field, doc: &'static str) -> Field {
    Field { doc, ..field }
}

/// `version = ">= 1"` stands for an operator and a value.
const fn form(hcl: &'static str, json: &'static str, doc: &'static str) -> Field {
    told(a(hcl, json, Kind::Text), doc)
}

const REGEXP: Field = form("regexp", "#regexp", "Short for `operator` `regexp` and this `value`.");
const VERSION: Field = form("version", "#version", "Short for `operator` `version` and this `value`.");
const SEMVER: Field = form("semver", "#semver", "Short for `operator` `semver` and this `value`.");
const SET_CONTAINS: Field =
    form("set_contains", "#set_contains", "Short for `operator` `set_contains` and this `value`.");
const SET_CONTAINS_ALL: Field =
    form("set_contains_all", "#set_contains_all", "Short for `operator` `set_contains_all` and this `value`.");
const SET_CONTAINS_ANY: Field =
    form("set_contains_any", "#set_contains_any", "Short for `operator` `set_contains_any` and this `value`.");

/// Short forms of constraints.
pub(crate) const OF_CONSTRAINTS: &[Field] = &[
    form("distinct_property", "#distinct_property", "Each allocation has another value of this attribute."),
    told(a("distinct_hosts", "#distinct_hosts", Kind::Bool), "Each allocation runs on another node."),
    REGEXP,
    VERSION,
    SEMVER,
    SET_CONTAINS,
    SET_CONTAINS_ALL,
    SET_CONTAINS_ANY,
    form("is_set", "#is_set", "The node has this attribute."),
    form("is_not_set", "#is_not_set", "The node does not have this attribute."),
];

/// Short forms of affinities.
pub(crate) const OF_AFFINITIES: &[Field] = &[REGEXP, VERSION, SEMVER, SET_CONTAINS, SET_CONTAINS_ALL, SET_CONTAINS_ANY];

/// A CSI plugin that a task serves.
pub(crate) const CSI_PLUGIN: &Block = &Block {
    name: "CsiPlugin",
    doc: "A CSI plugin that a task serves.",
    policy: false,
    fields: &[
        a("id", "ID", Kind::Text),
        a("type", "Type", Kind::Text),
        a("mount_dir", "MountDir", Kind::Text),
        a("stage_publish_base_dir", "StagePublishBaseDir", Kind::Text),
        a("health_timeout", "HealthTimeout", Kind::Duration),
    ],
    extra: &[],
};

/// Times at which a task may run.
pub(crate) const SCHEDULE: &Block = &Block {
    name: "Schedule",
    doc: "Times at which a task may run.",
    policy: false,
    fields: &[one("cron", "Cron", SCHEDULE_CRON)],
    extra: &[],
};

/// Times in the form of cron expressions.
pub(crate) const SCHEDULE_CRON: &Block = &Block {
    name: "ScheduleCron",
    doc: "Times in the form of cron expressions.",
    policy: false,
    fields: &[a("start", "Start", Kind::Text), a("end", "End", Kind::Text), a("timezone", "Timezone", Kind::Text)],
    extra: &[],
};

/// Weights of a service in Consul's DNS.
pub(crate) const WEIGHTS: &Block = &Block {
    name: "Weights",
    doc: "Weights of a service in Consul's DNS.",
    policy: false,
    fields: &[a("passing", "Passing", INT), a("warning", "Warning", INT)],
    extra: &[],
};

/// A job in several regions.
pub(crate) const MULTIREGION: &Block = &Block {
    name: "Multiregion",
    doc: "A job in several regions.",
    policy: false,
    fields: &[one("strategy", "Strategy", MULTIREGION_STRATEGY), many("region", "Regions", MULTIREGION_REGION)],
    extra: &[],
};

/// How a job goes through its regions.
pub(crate) const MULTIREGION_STRATEGY: &Block = &Block {
    name: "MultiregionStrategy",
    doc: "How a job goes through its regions.",
    policy: false,
    fields: &[null(a("max_parallel", "MaxParallel", INT)), null(a("on_failure", "OnFailure", Kind::Text))],
    extra: &[],
};

/// One of the regions.
pub(crate) const MULTIREGION_REGION: &Block = &Block {
    name: "MultiregionRegion",
    doc: "One of the regions.",
    policy: false,
    fields: &[
        label("Name"),
        null(a("count", "Count", INT)),
        a("datacenters", "Datacenters", Kind::Texts),
        a("node_pool", "NodePool", Kind::Text),
        texts("meta", "Meta"),
    ],
    extra: &[],
};

/// How a CSI volume is mounted.
pub(crate) const MOUNT_OPTIONS: &Block = &Block {
    name: "MountOptions",
    doc: "How a CSI volume is mounted.",
    policy: false,
    fields: &[a("fs_type", "FSType", Kind::Text), a("mount_flags", "MountFlags", Kind::Texts)],
    extra: &[],
};
