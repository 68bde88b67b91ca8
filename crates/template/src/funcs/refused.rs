//! Functions that people may know and that are not here, with the reason that they read.

/// Functions that are refused for one reason.
#[derive(Debug)]
pub struct Refused {
    /// Their names.
    pub functions: &'static [&'static str],
    /// Why, and what to do instead where there is something.
    pub reason: &'static str,
}

/// All of them.
pub const REFUSED: &[Refused] = &[
    Refused {
        functions: &[
            "key",
            "keyExists",
            "keyOrDefault",
            "ls",
            "safeLs",
            "tree",
            "safeTree",
            "service",
            "services",
            "connect",
            "node",
            "nodes",
            "datacenters",
            "exportedServices",
            "partitions",
            "peerings",
            "caRoots",
            "caLeaf",
            "byKey",
            "byPort",
            "byTag",
            "byMeta",
            "explode",
        ],
        reason: "there is no Consul integration",
    },
    Refused {
        functions: &["pkiCert"],
        reason: "it keeps certificates in files that it reads again; use secret with common_name=…",
    },
    Refused {
        functions: &["plugin"],
        reason: "it runs programs on the node outside of any task; run them in a prestart task",
    },
    Refused {
        functions: &["writeToFile"],
        reason: "it writes files anywhere on the node; use a template block for each file",
    },
    Refused {
        functions: &["sockaddr"],
        reason: "it reads the node's interfaces; use the NOMAD_IP_ and NOMAD_ADDR_ variables",
    },
    Refused {
        functions: &["spew_dump", "spew_printf", "spew_sdump", "spew_sprintf"],
        reason: "it prints Go's view of values, which have no Go types here; use toJSONPretty",
    },
    Refused { functions: &["call"], reason: "no value of a template is a function" },
    Refused {
        functions: &["sprig_env", "sprig_expandenv"],
        reason: "it reads the agent's environment; use env, which reads the task's",
    },
];
