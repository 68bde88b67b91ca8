//! CNI plugins, and the kinds of network that groups can have on this node.

use std::{path::Path, process::Command};

use model::resources::NodeNetwork;
use node_config::ClientConfig;

use super::{
    facts::Facts,
    said::{On, said},
};
use crate::network::{cni, netns, plan};

/// The version of a plugin that is installed and prints none.
const UNKNOWN: &str = "unknown";

pub(super) fn look(config: &ClientConfig, facts: &mut Facts) {
    if !netns::supported() {
        return;
    }
    let network = &config.network;
    for name in network.cni_path.iter().flat_map(|dir| names(dir)) {
        let attribute = format!("plugins.cni.version.{name}");
        if facts.attributes.contains_key(attribute.as_str()) {
            continue;
        }
        if let Some(file) = cni::find(&network.cni_path, &name) {
            let version = about(&file).and_then(|text| version(&text)).unwrap_or_else(|| UNKNOWN.into());
            facts.set(attribute, version);
        }
    }
    let mut offer = |mode: String, device: String| {
        facts.resources.node_networks.push(NodeNetwork { mode, device, ..NodeNetwork::default() });
    };
    offer("none".into(), String::new());
    let has = |plugin: &str| cni::find(&network.cni_path, plugin).is_some();
    if plan::BRIDGE_NEEDS.iter().all(|plugin| has(plugin)) {
        offer("bridge".into(), network.bridge_name.clone());
    }
    let (lists, wrong) = cni::networks(&network.cni_config_dir);
    for why in wrong {
        tracing::warn!(why, "a CNI network cannot be used");
    }
    for (name, list) in lists {
        match list.kinds().find(|plugin| !has(plugin)) {
            None => offer(format!("cni/{name}"), String::new()),
            Some(plugin) => {
                tracing::warn!(network = name, plugin, "a CNI network cannot be used: its plugin is missing")
            }
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// What a plugin prints about itself when `CNI_COMMAND` is not set.
fn about(file: &Path) -> Option<String> {
    said(Command::new(file).env_remove("CNI_COMMAND"), &On::Stderr).ok()
}

/// The first word that looks like a version.
fn version(about: &str) -> Option<String> {
    let first = about.lines().next()?;
    let mut words = first.split_ascii_whitespace().map(|word| word.trim_start_matches('v'));
    words.find(|word| word.split('.').count() >= 3 && word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(
            version("CNI bridge plugin v1.4.1\nCNI protocol versions supported: 0.1.0").as_deref(),
            Some("1.4.1")
        );
        assert_eq!(version("CNI bridge plugin version unknown\nCNI protocol versions supported: 0.1.0, 0.2.0"), None);
        assert_eq!(version("vendor plugin 1.0.0-rc1+x").as_deref(), Some("1.0.0-rc1+x"));
    }
}
