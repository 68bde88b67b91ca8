//! The computed class: nodes with equal classes are interchangeable for feasibility, so the scheduler checks one of
//! them.

use model::node::Node;
use sha2::{Digest, Sha256};

/// A hash over everything that constraints can see and that is not unique to the node.
pub fn computed_class(node: &Node) -> String {
    let mut hash = Sha256::new();
    let mut part = |key: &str, value: &str| {
        // Lengths keep ("ab", "c") and ("a", "bc") apart.
        hash.update((key.len() as u64).to_le_bytes());
        hash.update(key.as_bytes());
        hash.update((value.len() as u64).to_le_bytes());
        hash.update(value.as_bytes());
    };
    part("datacenter", &node.datacenter);
    part("pool", &node.pool);
    part("class", &node.class);
    for (kind, map) in [("attr", &node.attributes), ("meta", &node.meta)] {
        for (key, value) in map.iter().filter(|(k, _)| !k.starts_with("unique.")) {
            part(kind, key);
            part(key, value);
        }
    }
    for (name, driver) in &node.drivers {
        part("driver", name);
        part(name, if driver.detected && driver.healthy { "1" } else { "0" });
        if let Some(remote) = &driver.remote {
            part("provider", &remote.provider);
        }
    }
    let networks = &node.resources.node_networks;
    for mode in networks.iter().map(|n| n.mode.as_str()).filter(|m| *m != "host") {
        part("network", mode);
    }
    let digest = hash.finalize();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest[..8]);
    format!("v1:{}", u64::from_le_bytes(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_facts_do_not_split_classes_and_others_do() {
        let mut a = Node::default();
        a.attributes.insert("kernel.name".into(), "linux".into());
        a.attributes.insert("unique.hostname".into(), "a".into());
        a.meta.insert("unique.rack".into(), "1".into());
        let mut b = a.clone();
        b.name = "other".into();
        b.attributes.insert("unique.hostname".into(), "b".into());
        b.meta.insert("unique.rack".into(), "2".into());
        assert_eq!(computed_class(&a), computed_class(&b));
        type Change = fn(&mut Node);
        let changes: [(&str, Change); 6] = [
            ("attribute", |n| drop(n.attributes.insert("kernel.name".into(), "plan9".into()))),
            ("meta", |n| drop(n.meta.insert("rack".into(), "1".into()))),
            ("class", |n| n.class = "big".into()),
            ("pool", |n| n.pool = "gpu".into()),
            ("driver", |n| drop(n.drivers.insert("mock".into(), Default::default()))),
            ("network", |n| {
                n.resources
                    .node_networks
                    .push(model::resources::NodeNetwork { mode: "bridge".into(), ..Default::default() })
            }),
        ];
        for (what, change) in changes {
            let mut c = a.clone();
            change(&mut c);
            assert_ne!(computed_class(&a), computed_class(&c), "{what}");
        }
    }
}
