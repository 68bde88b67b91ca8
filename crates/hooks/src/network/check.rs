//! Inspection and repair of a network that a former agent has made.
//!
//! The node calls the plugins' CHECK, but does not trust every answer. Some refuse what they have just made themselves:
//! `portmap` 1.1.1 looks for IPv6 rules of networks that have none. So the node calls each plugin once when the network
//! is new. Later it asks only those that found the network well then.
//!
//! ```text
//! found well ────────────────────────────────────────────── nothing
//! found broken ── left, joined again: the same address ──── tasks run on, and get an event
//!              └─ another address, no namespace, or a refusal ─ tasks restart, in the network that is up or a new one
//! ```

use std::{collections::BTreeSet, path::Path};

use host::network::{
    cni::{self, CniError, NetworkList, Runner},
    netns,
    record::{self, Record},
};
use lifecycle::alloc::machine::StartFailure;

use super::{AllocNetwork, Networks};

/// State of a network that a former agent has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is intact, as far as the plugins can tell.
    Sound,
    /// It was broken and is repaired, for this reason.
    Mended(String),
    /// It is lost, for this reason: its tasks have to restart.
    Lost(String),
}

/// Plugins of a list, by position.
type Positions = BTreeSet<usize>;

/// The answers of plugins: those that find the network well, and the messages of the others.
#[derive(Debug, Default)]
struct Answers {
    well: Positions,
    broken: Vec<String>,
}

/// Calls CHECK on those plugins of a list that `of` chooses.
async fn ask(runner: &Runner<'_>, list: &NetworkList, record: &Record, of: impl Fn(usize) -> bool) -> Answers {
    let mut answers = Answers::default();
    for at in (0..list.plugins.len()).filter(|at| of(*at)) {
        match runner.check(list, at, record.result.as_ref()).await {
            Ok(()) => drop(answers.well.insert(at)),
            // A call that failed says nothing about the network.
            Err(CniError::Absent { .. } | CniError::Run { .. } | CniError::Slow { .. }) => {}
            Err(error) => answers.broken.push(error.to_string()),
        }
    }
    answers
}

/// `CNI_ARGS` that ask for the same address again, where the IPAM plugin knows them.
fn same_address(record: &Record, list: &NetworkList) -> Option<String> {
    let gives = |plugin: &serde_json::Map<String, serde_json::Value>| {
        plugin.get("ipam").is_some_and(|ipam| ipam["type"] == "host-local")
    };
    let known = list.plugins.iter().any(gives) && !record.status.address.is_empty();
    known.then(|| format!("{};IP={}", record.args, record.status.address))
}

fn runner<'a>(
    with: &'a Networks,
    container: &'a str,
    record: &'a Record,
    args: &'a str,
    log: &'a std::fs::File,
) -> Runner<'a> {
    let netns = Some(Path::new(&record.path));
    Runner { dirs: &with.config.network.cni_path, container, netns, args, ports: &record.ports, log }
}

impl AllocNetwork {
    fn container(&self) -> String {
        self.dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Finds out which plugins can tell the network's state, right after its creation. Cancel safe.
    #[expect(clippy::await_holding_invalid_type, reason = "a network is changed or looked at by one at a time")]
    pub(super) async fn learn(&self, with: &Networks) {
        let _changing = self.changing.lock().await;
        if !self.standing().wanted {
            return;
        }
        let Ok(Some(mut record)) = Record::read(&self.dir) else { return };
        let Some(list) = record.list.clone().filter(|list| record.up && list.can_check()) else { return };
        let Ok(log) = record::lock(&self.dir).await else { return };
        let container = self.container();
        let answers = ask(&runner(with, &container, &record, &record.args, &log), &list, &record, |_| true).await;
        if !answers.broken.is_empty() {
            tracing::debug!(alloc = container, why = ?answers.broken, "plugins that refuse what they have just made \
                are not asked again");
        }
        record.checks = Some(answers.well);
        if let Err(why) = self.write(&record).await {
            tracing::warn!(alloc = container, ?why, "the network of the allocation will not be checked");
        }
    }

    /// Inspects a network that a former agent has made, once, and repairs it. Cancel safe: a network under repair
    /// counts as not made.
    #[expect(clippy::await_holding_invalid_type, reason = "a network is changed or looked at by one at a time")]
    pub(crate) async fn inspect(&self, with: &Networks) -> Verdict {
        let _changing = self.changing.lock().await;
        self.inspect_changing(with).await
    }

    /// As [`AllocNetwork::inspect`], for the holder of the lock.
    pub(super) async fn inspect_changing(&self, with: &Networks) -> Verdict {
        if let Some(known) = self.standing().verdict.clone() {
            return known;
        }
        let verdict = self.look(with).await;
        if verdict != Verdict::Sound {
            tracing::warn!(alloc = self.container(), ?verdict, "the network of an allocation was found broken");
        }
        self.standing().verdict = Some(verdict.clone());
        verdict
    }

    async fn look(&self, with: &Networks) -> Verdict {
        let Ok(Some(mut record)) = Record::read(&self.dir) else { return Verdict::Lost("its record is gone".into()) };
        let Some(list) = record.list.clone() else { return Verdict::Sound };
        if !record.up {
            return Verdict::Lost("it was being made or mended when the agent ended".into());
        }
        if !netns::is_namespace(Path::new(&record.path)) {
            return Verdict::Lost("its namespace is gone".into());
        }
        if !list.can_check() {
            return Verdict::Sound;
        }
        let log = match record::lock(&self.dir).await {
            Ok(log) => log,
            Err(why) => {
                tracing::warn!(alloc = self.container(), why, "the network of an allocation is not checked");
                return Verdict::Sound;
            }
        };
        let container = self.container();
        let known = record.checks.clone();
        let chosen = |at| known.as_ref().is_none_or(|known| known.contains(&at));
        let answers = ask(&runner(with, &container, &record, &record.args, &log), &list, &record, chosen).await;
        let why = answers.broken.join("; ");
        if known.is_none() {
            // The agent that made it died before it recorded whose CHECK to trust: those that find it well now.
            if !why.is_empty() {
                tracing::warn!(
                    alloc = container,
                    why,
                    "plugins find the network of an allocation broken, which they may have done from the beginning"
                );
            }
            record.checks = Some(answers.well);
            if let Err(why) = self.write(&record).await {
                tracing::warn!(alloc = container, ?why, "the network of the allocation will not be checked");
            }
            return Verdict::Sound;
        }
        if why.is_empty() {
            return Verdict::Sound;
        }
        match self.mend(with, record, &list, &log).await {
            Ok(true) => Verdict::Mended(why),
            Ok(false) => Verdict::Lost(format!("{why}; it is joined again under another address")),
            Err(mending) => Verdict::Lost(format!("{why}; it could not be joined again: {mending}")),
        }
    }

    /// Leaves the network and joins it again, with the same namespace. True when it then has its former state.
    async fn mend(
        &self,
        with: &Networks,
        mut record: Record,
        list: &NetworkList,
        log: &std::fs::File,
    ) -> Result<bool, String> {
        let container = self.container();
        // Nothing relies on it until it is up: a start in between makes it anew.
        record.up = false;
        let noted = |failure| match failure {
            StartFailure::Setup { why, .. } => why,
            other => format!("{other:?}"),
        };
        self.write(&record).await.map_err(noted)?;
        let plain = record.args.clone();
        let mut result = Err(String::new());
        for args in same_address(&record, list).into_iter().chain([plain]) {
            let runner = runner(with, &container, &record, &args, log);
            // DEL may fail on a broken network.
            if let Err(error) = runner.del(list, record.result.as_ref()).await {
                tracing::debug!(alloc = container, %error, "leaving a broken network");
            }
            result = runner.add(list).await.map_err(|e| e.to_string());
            if result.is_ok() {
                break;
            }
        }
        let result = result?;
        let status = cni::status(&result);
        let same = status == record.status;
        record.result = Some(result);
        record.status = status.clone();
        record.up = true;
        self.write(&record).await.map_err(noted)?;
        self.standing().status = Some(status);
        Ok(same)
    }
}
