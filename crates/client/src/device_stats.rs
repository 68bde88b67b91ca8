//! What the devices of the node do: their plugins measure it while somebody asks.

use driver_host::proto::{
    build,
    device::{DeviceGroupStats, DeviceStats, StatObject, StatValue},
};
use hooks::drivers::Drivers;
use model::{AllocatedDevices, go_time::GoTime};
use serde_json::{Map, Value, json};

/// What all device plugins have measured. One that fails or hangs has measured nothing.
pub(crate) async fn measured(drivers: &Drivers) -> Vec<DeviceGroupStats> {
    let offers = |(name, plugin): (&String, &driver_host::DriverFingerprint)| {
        plugin.devices.as_ref().filter(|_| plugin.pid.is_some()).map(|_| name.clone())
    };
    let plugins: Vec<String> = drivers.host().fingerprints().borrow().iter().filter_map(offers).collect();
    let asked = plugins.into_iter().filter_map(|name| {
        let plugin = drivers.host().device(&name)?;
        Some(async move {
            plugin.stats().await.unwrap_or_else(|error| {
                tracing::debug!(plugin = name, %error, "its devices are not measured");
                Vec::new()
            })
        })
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// Of these groups only the devices that a task has.
pub(crate) fn of(groups: &[DeviceGroupStats], devices: &[AllocatedDevices]) -> Vec<DeviceGroupStats> {
    let has = |group: &&DeviceGroupStats, d: &AllocatedDevices| {
        (&d.vendor, &d.kind, &d.name) == (&group.vendor, &group.r#type, &group.name)
    };
    let own = |group: &DeviceGroupStats| {
        let ids: Vec<&String> = devices.iter().filter(|d| has(&group, d)).flat_map(|d| &d.device_ids).collect();
        let mut group = group.clone();
        group.instance_stats.retain(|id, _| ids.contains(&id));
        (!group.instance_stats.is_empty()).then_some(group)
    };
    groups.iter().filter_map(own).collect()
}

/// The API's form.
pub(crate) fn to_json(groups: &[DeviceGroupStats]) -> Vec<Value> {
    let group = |group: &DeviceGroupStats| {
        let instances: Map<String, Value> =
            group.instance_stats.iter().map(|(id, stats)| (id.clone(), instance(stats))).collect();
        json!({"Vendor": group.vendor, "Type": group.r#type, "Name": group.name, "InstanceStats": instances})
    };
    groups.iter().map(group).collect()
}

fn instance(stats: &DeviceStats) -> Value {
    let at = build::system_time(stats.timestamp.as_ref()).and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let at = at.map(|at| GoTime::from(i64::try_from(at.as_nanos()).unwrap_or(i64::MAX))).unwrap_or_default();
    json!({
        "Summary": stats.summary.as_ref().map(value),
        "Stats": stats.stats.as_ref().map(object),
        "Timestamp": at.to_string(),
    })
}

fn object(of: &StatObject) -> Value {
    let nested: Map<String, Value> = of.nested.iter().map(|(name, of)| (name.clone(), object(of))).collect();
    let attributes: Map<String, Value> = of.attributes.iter().map(|(name, of)| (name.clone(), value(of))).collect();
    json!({"Nested": nested, "Attributes": attributes})
}

/// The fields that are set, as Go writes them.
fn value(of: &StatValue) -> Value {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Option<Value>| fields.extend(value.map(|value| (name.to_owned(), value)));
    put("FloatNumeratorVal", of.float_numerator_val.map(Into::into));
    put("FloatDenominatorVal", of.float_denominator_val.map(Into::into));
    put("IntNumeratorVal", of.int_numerator_val.map(Into::into));
    put("IntDenominatorVal", of.int_denominator_val.map(Into::into));
    put("StringVal", of.string_val.clone().map(Into::into));
    put("BoolVal", of.bool_val.map(Into::into));
    put("Unit", Some(of.unit.clone().into()));
    put("Desc", Some(of.desc.clone().into()));
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, ids: &[&str]) -> DeviceGroupStats {
        let power = StatValue {
            float_numerator_val: Some(30.5),
            int_denominator_val: Some(70),
            unit: "W".into(),
            ..Default::default()
        };
        let stats = DeviceStats { summary: Some(power), ..DeviceStats::default() };
        DeviceGroupStats {
            vendor: "nvidia".into(),
            r#type: "gpu".into(),
            name: name.into(),
            instance_stats: ids.iter().map(|id| ((*id).to_owned(), stats.clone())).collect(),
        }
    }

    #[test]
    fn a_task_sees_the_devices_that_it_has() {
        let groups = [group("T4", &["a", "b"]), group("A100", &["a"])];
        let devices = AllocatedDevices {
            vendor: "nvidia".into(),
            kind: "gpu".into(),
            name: "T4".into(),
            device_ids: vec!["b".into()],
        };
        assert_eq!(of(&groups, &[devices]), [group("T4", &["b"])]);
        assert!(of(&groups, &[]).is_empty());
    }

    #[test]
    fn only_what_was_measured_is_written() {
        let shown = to_json(&[group("T4", &["a"])]);
        let of = &shown[0]["InstanceStats"]["a"];
        assert_eq!(of["Summary"], json!({"FloatNumeratorVal": 30.5, "IntDenominatorVal": 70, "Unit": "W", "Desc": ""}));
        assert_eq!((&shown[0]["Type"], &of["Stats"]), (&json!("gpu"), &Value::Null));
    }
}
