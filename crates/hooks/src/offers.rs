//! What the node offers of its plugins' devices.

use std::collections::BTreeMap;

use driver_host::{
    DeviceGroup, DriverFingerprint,
    proto::structs::{Attribute, attribute::Value},
};
use model::{DeviceAttribute, Map, NodeDevice, NodeDevices, resources::DeviceLocality};

/// Adds what a plugin offers to the node's devices. Of two plugins that offer one group, the first in the order of
/// names is asked for it.
pub(crate) fn offer(plugin: &str, groups: &[DeviceGroup], devices: &mut Vec<NodeDevices>) {
    for group in groups {
        let group = shown(group);
        if devices.iter().any(|known| known.id() == group.id()) {
            tracing::warn!(plugin, group = group.id(), "another device plugin offers this group already");
            continue;
        }
        devices.push(group);
    }
}

/// The plugin that offers a group.
pub(crate) fn offered_by<'a>(fingerprints: &'a BTreeMap<String, DriverFingerprint>, group: &str) -> Option<&'a String> {
    let has = |f: &DriverFingerprint| f.devices.iter().flat_map(|groups| &**groups).any(|g| shown(g).id() == group);
    fingerprints.iter().find(|(_, f)| has(f)).map(|(name, _)| name)
}

fn shown(group: &DeviceGroup) -> NodeDevices {
    let DeviceGroup { vendor, kind, name, instances, attributes } = group;
    let instance = |i: &driver_host::DeviceInstance| NodeDevice {
        id: i.id.clone(),
        healthy: i.healthy,
        health_description: i.health_description.clone(),
        locality: (!i.pci_bus_id.is_empty()).then(|| DeviceLocality { pci_bus_id: i.pci_bus_id.clone() }),
    };
    NodeDevices {
        vendor: vendor.clone(),
        kind: kind.clone(),
        name: name.clone(),
        instances: instances.iter().map(instance).collect(),
        attributes: attributes.iter().map(|(key, value)| (key.clone(), attribute(value))).collect::<Map<_, _>>(),
    }
}

fn attribute(of: &Attribute) -> DeviceAttribute {
    let mut shown = DeviceAttribute { unit: of.unit.clone(), ..DeviceAttribute::default() };
    match &of.value {
        Some(Value::FloatVal(number)) => shown.float = Some(*number),
        Some(Value::IntVal(number)) => shown.int = Some(*number),
        Some(Value::StringVal(text)) => shown.string = Some(text.clone()),
        Some(Value::BoolVal(yes)) => shown.bool = Some(*yes),
        None => {}
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_offered_once() {
        let group = |name: &str, unit: &str| DeviceGroup {
            vendor: "v".into(),
            kind: "gpu".into(),
            name: name.into(),
            attributes: [("memory".into(), Attribute { value: Some(Value::IntVal(3)), unit: unit.into() })].into(),
            ..DeviceGroup::default()
        };
        let mut devices = Vec::new();
        offer("device/a", &[group("x", "GiB")], &mut devices);
        offer("device/b", &[group("x", ""), group("y", "")], &mut devices);
        let shown: Vec<_> = devices.iter().map(|d| (d.name.as_str(), d.attributes["memory"].to_string())).collect();
        assert_eq!(shown, [("x", "3 GiB".to_owned()), ("y", "3".to_owned())]);
    }
}
