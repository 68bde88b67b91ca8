//! Device plugins: what they offer, and what a task needs to use it.

use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use driver_proto::{
    build,
    device::{self, ContainerReservation, FingerprintRequest, ReserveRequest, StatsRequest},
};

use crate::{
    driver::Driver,
    error::{CallError, bounded},
    host::DriverHost,
    session::{DEVICES, Session},
    streams::{self, Ended},
    supervisor::Common,
    types::{DeviceGroup, DeviceInstance},
};

/// Bounds of what a plugin offers: a node keeps all of it in its record at the servers.
const GROUPS_MAX: usize = 64;
const INSTANCES_MAX: usize = 1024;
const ATTRIBUTES_MAX: usize = 128;
const NAME_MAX: usize = 256;

/// A plugin may wait for this interval before it measures for the first time.
const INTERVAL: Duration = Duration::from_secs(1);
/// One that has not measured anything for so long does not do it at all, or hangs.
const MEASURES: Duration = Duration::from_secs(2);

/// A device plugin. Cheap to clone; stays valid over restarts of its process.
#[derive(Debug, Clone)]
pub struct Device {
    plugin: Driver,
}

impl DriverHost {
    /// The device plugin of a name, as [`crate::DriverFingerprint::devices`] has it; `None` until it has named itself.
    pub fn device(&self, name: &str) -> Option<Device> {
        name.starts_with(DEVICES).then(|| self.driver(name))?.map(|plugin| Device { plugin })
    }
}

impl Device {
    /// What the devices do now, by group; empty = the plugin measures nothing. It measures only while it is asked.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn stats(&self) -> Result<Vec<device::DeviceGroupStats>, CallError> {
        let session = self.plugin.session()?;
        let mut client = session.device_client();
        let request = StatsRequest { collection_interval: Some(build::duration(INTERVAL)) };
        let first = async {
            let mut samples = client.stats(request).await?.into_inner();
            Ok(tonic::Response::new(samples.message().await?))
        };
        let answer = self.plugin.attempt("Stats", Some(MEASURES), &session, first).await?;
        let sample = answer.map_err(|status| CallError::from_status(self.plugin.name(), "Stats", "", &status))?;
        Ok(sample.map(|sample| sample.groups).unwrap_or_default())
    }

    /// What a task needs to use these instances. Reserving them again changes nothing.
    ///
    /// # Errors
    /// See [`CallError`]; nothing is reserved then that would have to be freed.
    pub async fn reserve(&self, ids: Vec<String>) -> Result<ContainerReservation, CallError> {
        let session = self.plugin.session()?;
        let limit = self.plugin.shared.timing.task_call;
        let mut client = session.device_client();
        let answer = client.reserve(ReserveRequest { device_ids: ids });
        let answer = self.plugin.attempt("Reserve", Some(limit), &session, answer).await?;
        let answer = answer.map_err(|status| CallError::from_status(self.plugin.name(), "Reserve", "", &status))?;
        answer.container_res.ok_or_else(|| CallError::BadAnswer {
            driver: self.plugin.name().to_owned(),
            call: "Reserve",
            missing: "a reservation",
        })
    }
}

/// Follows what the plugin offers.
pub(crate) async fn follow(common: &Common, session: &Session) -> Infallible {
    let open = || {
        let mut client = session.device_client();
        async move { client.fingerprint(FingerprintRequest {}).await }
    };
    let take = |response: device::FingerprintResponse| offered(common, session, response.device_group);
    let ended = |Ended { why, failures, delay }: Ended| {
        // A plugin that answers and then closes keeps its devices.
        let Some(status) = why else { return };
        let why = format!("the fingerprint failed: {:?}: {}", status.code(), bounded(status.message()));
        tracing::warn!(plugin = session.driver, failures, ?delay, why, "devices are not usable");
        common.registry.publish(&session.driver, |fingerprint| {
            (fingerprint.healthy, fingerprint.settled) = (false, true);
            fingerprint.devices = fingerprint.devices.take().map(|groups| unusable(&groups, &why));
            fingerprint.description = why;
        });
    };
    streams::follow(common, session, open, take, ended).await
}

fn offered(common: &Common, session: &Session, groups: Vec<device::DeviceGroup>) {
    let (groups, refused) = accepted(groups);
    for why in &refused {
        tracing::warn!(plugin = session.driver, why, "devices are left out");
    }
    common.registry.publish(&session.driver, |fingerprint| {
        (fingerprint.detected, fingerprint.healthy, fingerprint.settled) = (true, true, true);
        fingerprint.description = refused.join("; ");
        fingerprint.devices = Some(Arc::new(groups));
    });
}

/// The groups as they are while nobody answers for them.
pub(crate) fn unusable(groups: &[DeviceGroup], why: &str) -> Arc<Vec<DeviceGroup>> {
    let of = |group: &DeviceGroup| {
        let mut group = group.clone();
        for instance in &mut group.instances {
            (instance.healthy, instance.health_description) = (false, why.to_owned());
        }
        group
    };
    Arc::new(groups.iter().map(of).collect())
}

/// What of an offer can be used, and why the rest cannot. Plugins are foreign code.
fn accepted(offered: Vec<device::DeviceGroup>) -> (Vec<DeviceGroup>, Vec<String>) {
    let mut refused = Vec::new();
    let mut groups: Vec<DeviceGroup> = Vec::new();
    let mut known = BTreeSet::new();
    let usable = |text: &str| !text.is_empty() && text.len() <= NAME_MAX && !text.chars().any(char::is_control);
    for group in offered {
        let device::DeviceGroup { vendor, device_type: kind, device_name: name, devices, attributes } = group;
        let id = bounded(&format!("{vendor}/{kind}/{name}"));
        // A job names a device by its type alone, or with its vendor: a slash would make that ambiguous.
        if !usable(&vendor) || !usable(&kind) || !usable(&name) || vendor.contains('/') || kind.contains('/') {
            refused.push(format!(
                "group {id:?}: vendor, type and name must be short texts, the first two without a slash"
            ));
            continue;
        }
        if groups.len() == GROUPS_MAX {
            refused.push(format!("group {id:?} and those after it: a plugin may offer {GROUPS_MAX}"));
            break;
        }
        if !known.insert((vendor.clone(), kind.clone(), name.clone())) {
            refused.push(format!("group {id:?} is offered twice"));
            continue;
        }
        let mut ids = BTreeSet::new();
        let mut instances = Vec::new();
        for device in devices {
            if !usable(&device.id) || !ids.insert(device.id.clone()) || instances.len() == INSTANCES_MAX {
                refused.push(format!(
                    "device {:?} of {id:?}: ids must be short texts that differ, of at most {INSTANCES_MAX} devices",
                    bounded(&device.id)
                ));
                continue;
            }
            instances.push(DeviceInstance {
                id: device.id,
                healthy: device.healthy,
                health_description: bounded(&device.health_description),
                pci_bus_id: device.hw_locality.map(|at| bounded(&at.pci_bus_id)).unwrap_or_default(),
            });
        }
        let attributes = attributes.into_iter().filter(|(key, _)| usable(key)).take(ATTRIBUTES_MAX).collect();
        groups.push(DeviceGroup { vendor, kind, name, instances, attributes });
    }
    refused.truncate(8);
    (groups, refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(vendor: &str, kind: &str, name: &str, ids: &[&str]) -> device::DeviceGroup {
        let device = |id: &&str| device::DetectedDevice { id: (*id).to_owned(), healthy: true, ..Default::default() };
        device::DeviceGroup {
            vendor: vendor.to_owned(),
            device_type: kind.to_owned(),
            device_name: name.to_owned(),
            devices: ids.iter().map(device).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn what_cannot_be_named_or_told_apart_is_left_out_with_the_reason() {
        let (groups, refused) = accepted(vec![
            group("nvidia", "gpu", "Tesla/T4", &["a", "b", "a", ""]),
            group("nvidia", "gpu", "Tesla/T4", &["c"]),
            group("nvidia/x", "gpu", "t", &["c"]),
            group("", "gpu", "t", &["c"]),
        ]);
        assert_eq!(groups.len(), 1);
        let ids: Vec<_> = groups[0].instances.iter().map(|i| i.id.as_str()).collect();
        assert_eq!((groups[0].name.as_str(), ids), ("Tesla/T4", vec!["a", "b"]));
        assert_eq!(refused.len(), 5, "{refused:?}");
        let (groups, refused) = accepted((0..100).map(|n| group("v", "t", &n.to_string(), &[])).collect());
        assert_eq!((groups.len(), refused.len()), (GROUPS_MAX, 1));
    }

    #[test]
    fn without_their_plugin_devices_are_unhealthy_with_the_reason() {
        let (groups, _) = accepted(vec![group("v", "t", "n", &["a", "b"])]);
        let after = unusable(&groups, "it is gone");
        assert!(after[0].instances.iter().all(|i| !i.healthy && i.health_description == "it is gone"));
    }
}
