//! `keyring`: where the key comes from that root keys are encrypted under.

use std::{path::Path, time::Duration};

use super::{
    super::{
        config,
        keyring::{KeySource, KeySources},
    },
    reader::Reader,
};

/// How long a command may take where the operator does not say.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The blocks: which one is used, and which ones only open what was written before. `shares`: the server shares its
/// store. Nothing is read and no command runs.
pub(super) fn read(r: &mut Reader, file: &config::AgentFile, shares: bool) -> KeySources {
    let given = &file.keyring;
    let mut blocks: Vec<(&str, Option<bool>, Option<KeySource>)> = Vec::new();
    if let Some(block) = &given.aead {
        // The key of a stock server's block lies beside what it encrypts: that is as good as none.
        blocks.push(("aead", block.active, None));
    }
    if let Some(block) = &given.command {
        let timeout = r.duration("keyring.command.timeout", block.timeout.as_deref(), TIMEOUT);
        match block.command.first().map(|program| Path::new(program).is_absolute()) {
            Some(true) => {}
            Some(false) => r.wrong(format!(
                "keyring.command.command must begin with the absolute path of a program, it begins with {:?}",
                block.command[0]
            )),
            None => r.wrong(
                "keyring.command.command is missing: the program that prints the key, and its arguments".to_owned(),
            ),
        }
        blocks.push(("command", block.active, Some(KeySource::Command { argv: block.command.clone(), timeout })));
    }
    if let Some(block) = &given.file {
        let path = block.path.clone().unwrap_or_default();
        if !Path::new(&path).is_absolute() {
            r.wrong(format!("keyring.file.path must be the absolute path of a file, it is {path:?}"));
        }
        blocks.push(("file", block.active, Some(KeySource::File(path.into()))));
    }
    let only = blocks.len() == 1;
    let is_active = |active: &Option<bool>| active.unwrap_or(only);
    let active = blocks.iter().filter(|(_, active, _)| is_active(active)).count();
    if active != 1 && !blocks.is_empty() {
        let names: Vec<String> = blocks.iter().map(|(name, ..)| format!("keyring {name:?}")).collect();
        r.wrong(format!("one of {} must have active = true, and no other: {active} have it", names.join(", ")));
    }
    let (active, others): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|(_, active, _)| is_active(active));
    let sources = |blocks: Vec<(_, _, Option<KeySource>)>| blocks.into_iter().filter_map(|(_, _, source)| source);
    let sources = KeySources { active: sources(active).next(), others: sources(others).collect() };
    let encrypt = file.server.encrypt.as_ref().is_some_and(|key| !key.is_empty());
    if shares && encrypt && sources.active.is_some() {
        r.wrong(
            "server.encrypt and a keyring block both give the key of servers that share a store: take one of them out"
                .to_owned(),
        );
    }
    sources
}
