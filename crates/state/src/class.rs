//! The computed class: nodes of one class are interchangeable for every rule that names no unique attribute.

use model::node::Node;

/// FNV-1a with 64 bits: small, and stable across releases, because blocked evaluations store classes.
struct Fnv(u64);

impl Fnv {
    fn text(&mut self, s: &str) {
        for b in s.as_bytes().iter().chain(&[0xff]) {
            self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Attributes and metadata whose name begins with `unique.` differ from node to node and are left out.
fn shared(name: &str) -> bool {
    !name.starts_with("unique.")
}

/// The class of a node. It includes health and provider of its drivers, so that a class also answers driver checks.
#[must_use]
pub fn computed_class(node: &Node) -> String {
    let mut h = Fnv(0xcbf2_9ce4_8422_2325);
    for s in [node.datacenter.as_str(), &node.class, &node.pool] {
        h.text(s);
    }
    for (section, map) in [("attr", &node.attributes), ("meta", &node.meta)] {
        h.text(section);
        for (k, v) in map.iter().filter(|(k, _)| shared(k)) {
            h.text(k);
            h.text(v);
        }
    }
    h.text("driver");
    for (name, d) in &node.drivers {
        h.text(name);
        h.text(if d.detected && d.healthy { "up" } else { "down" });
        if let Some(r) = &d.remote {
            h.text(&r.provider);
            h.text(&format!("{}-{}", r.handle_schema_min, r.handle_schema_max));
            if r.volumes {
                h.text("volumes");
            }
        }
    }
    h.text("volume");
    for (name, v) in &node.host_volumes {
        h.text(name);
        h.text(if v.read_only { "ro" } else { "rw" });
    }
    h.text("network");
    for a in node.resources.node_networks.iter().flat_map(|n| &n.addresses) {
        h.text(&a.alias);
    }
    for mode in node.resources.node_networks.iter().map(|n| n.mode.as_str()).filter(|m| *m != "host") {
        h.text(mode);
    }
    format!("v1:{}", h.0)
}
