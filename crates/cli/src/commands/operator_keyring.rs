//! `drover operator root keyring list|rotate|remove`: the keys that encrypt variables and sign identities.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use api::{call, shapes::RootKeyMeta};
use model::GoDuration;

use super::ApiArgs;
use crate::{
    conn::Conn,
    output::{self, Table},
    when,
};

/// Verbs of `operator root`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Root {
    /// Work with the root keys
    #[command(subcommand)]
    Keyring(Keyring),
}

/// Verbs of `operator root keyring`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Keyring {
    /// List the root keys
    List {
        #[command(flatten)]
        api: ApiArgs,
        /// Print identifiers in full
        #[arg(long)]
        verbose: bool,
    },
    /// Make a new root key
    #[command(group = clap::ArgGroup::new("start").required(true).args(["now", "prepublish"]))]
    Rotate {
        #[command(flatten)]
        api: ApiArgs,
        /// Encrypt all variables again with the new key; the servers do so in the background
        #[arg(long, conflicts_with = "prepublish")]
        full: bool,
        /// Use the new key at once
        #[arg(long)]
        now: bool,
        /// Publish the new key now and use it after this time, so that verifiers know it before it signs
        #[arg(long, value_name = "DURATION")]
        prepublish: Option<GoDuration>,
        /// Print identifiers in full
        #[arg(long)]
        verbose: bool,
    },
    /// Delete a root key that is no longer needed
    ///
    /// Tokens that it has signed are good for nothing from then on. The servers never delete the active key, nor one
    /// that variables need.
    Remove {
        #[command(flatten)]
        api: ApiArgs,
        /// As with Nomad; the servers delete a key without it as well
        #[arg(long)]
        force: bool,
        /// Id of the key, or its beginning
        key: String,
    },
}

/// Runs a verb.
pub(crate) async fn run(Root::Keyring(command): Root) -> Result<ExitCode> {
    match command {
        Keyring::List { api, verbose } => table(&api.conn()?.ask(call::keys()).await?, verbose).print(),
        Keyring::Rotate { api, full, now: _, prepublish, verbose } => {
            let at = prepublish.map(|ahead| publish_time(ahead, when::now_ns())).transpose()?;
            let call = call::key_rotate().with_some("full", full.then_some(true)).with_some("publish_time", at);
            table(&[api.conn()?.ask(call).await?.key], verbose).print();
        }
        Keyring::Remove { api, force, key } => {
            let conn = api.conn()?;
            let id = named(&conn, &key).await?;
            conn.tell(call::key_delete(&id).with_some("force", force.then_some(true))).await?;
            output::line(&format!("Removed encryption key {id}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// When a key is used that is published so long before.
fn publish_time(ahead: GoDuration, now: i64) -> Result<i64> {
    if ahead.0 <= 0 {
        bail!("-prepublish must be longer than 0s; to use the key at once, give -now");
    }
    now.checked_add(ahead.0).context("-prepublish is too long")
}

/// The only key whose id begins so.
async fn named(conn: &Conn, prefix: &str) -> Result<String> {
    let keys = conn.ask(call::keys()).await?;
    let found: Vec<&RootKeyMeta> = keys.iter().filter(|key| key.key_id.starts_with(prefix)).collect();
    match found.as_slice() {
        [one] => Ok(one.key_id.clone()),
        [] => bail!("root key not found: no id starts with {prefix:?}"),
        many => {
            let shown = table(many.iter().copied(), true).render().join("\n");
            bail!("{} root key ids start with {prefix:?}; give more of the id:\n{shown}", many.len())
        }
    }
}

fn table<'k>(keys: impl IntoIterator<Item = &'k RootKeyMeta>, verbose: bool) -> Table {
    let mut table = Table::new(["Key", "State", "Create Time", "Publish Time"]);
    for key in keys {
        let id = if verbose { key.key_id.clone() } else { key.key_id.chars().take(8).collect() };
        table.row([id, key.state.clone(), when::stamp(key.create_time), when::stamp(key.publish_time)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_listed_with_their_times() {
        let key = RootKeyMeta {
            key_id: "1234abcd-0000-0000-0000-000000000000".to_owned(),
            state: "prepublished".to_owned(),
            create_time: 1_700_000_000_000_000_000,
            publish_time: 1_700_003_600_000_000_000,
            ..RootKeyMeta::default()
        };
        let keys = [key.clone(), RootKeyMeta { state: "active".to_owned(), publish_time: 0, ..key }];
        assert_eq!(
            table(&keys, false).render(),
            [
                "Key       State         Create Time           Publish Time",
                "1234abcd  prepublished  2023-11-14T22:13:20Z  2023-11-14T23:13:20Z",
                "1234abcd  active        2023-11-14T22:13:20Z  <none>",
            ]
        );
        assert!(table(&keys, true).render()[1].starts_with(&keys[0].key_id));
    }

    #[test]
    fn a_key_is_published_for_some_time() {
        assert_eq!(publish_time(GoDuration(5), 7).expect("a time"), 12);
        assert!(publish_time(GoDuration(0), 7).is_err() && publish_time(GoDuration(i64::MAX), 7).is_err());
    }
}
