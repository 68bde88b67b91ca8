//! ACL policies: read, shown, compiled and asked.
#![no_main]

use access::{Access, Capability, Need, VariableCapability, parse};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(rules) = parse(text) else { return };
    drop(rules.to_json().to_string());
    let access = Access::of([("p", &rules)]);
    for namespace in ["default", "prod-api", "*"] {
        let job = access.decide(&Need::Namespace { namespace, any_of: &[Capability::ReadJob] });
        drop(job.why.to_string());
        let variable = Need::Variable { namespace, path: "a/b", capability: VariableCapability::Read };
        // Who reads may list.
        let list = Need::Variable { namespace, path: "a/b", capability: VariableCapability::List };
        assert!(!access.allows(&variable) || access.allows(&list));
    }
});
