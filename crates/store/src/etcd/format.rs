//! The format in use: who may work on the store, and when it goes up.
//!
//! The meta record has its number. Everybody reads it before the first batch, and sees each change of it in the order
//! of the batches: what comes after may be in the new format. Only the leader changes it.

use std::{path::Path, sync::Arc, time::Instant};

use etcd::ops;
use state::{Format, Versions};

use super::{
    keep::{TICK, pause},
    layout::{Member, Meta},
    read::ranges,
    shared::{Leading, Shared, lock},
};
use crate::{
    contract::StoreError,
    formats::{raised, refused},
};

/// Whether a server reads the format in use.
pub(super) fn check(path: &Path, meta: &Meta, member: &Member) -> Result<(), StoreError> {
    match refused(meta.format, &meta.since, member.formats, &member.version) {
        Some(why) => Err(StoreError::Format { path: path.to_owned(), in_use: meta.format, why: Arc::from(why) }),
        None => Ok(()),
    }
}

/// Raises the format once all servers have read a higher one for a while. Works until the store closes.
pub(super) async fn raise(shared: &Shared) {
    if shared.offline.is_some() {
        return;
    }
    let mut since: Option<(Format, Instant)> = None;
    while pause(shared, TICK).await {
        let leading = shared.leading();
        let to = leading.and_then(|_| raised(shared.format(), shared.formats_of_all()));
        since = to.map(|to| since.filter(|(of, _)| *of == to).unwrap_or_else(|| (to, Instant::now())));
        let (Some((to, _)), Some(leading)) = (since.filter(|(_, at)| at.elapsed() >= shared.settle), leading) else {
            continue;
        };
        match shared.raise_to(to, leading).await {
            Ok(()) => {}
            Err(StoreError::Fenced { .. }) => since = None,
            Err(error) => {
                tracing::warn!(error = %error, to, "the format of the shared state was not raised; it is tried again");
                since = None;
            }
        }
    }
}

impl Shared {
    /// The format in use.
    pub(super) fn format(&self) -> Format {
        lock(&self.meta).format
    }

    /// What the registered servers read, and this one.
    fn formats_of_all(&self) -> Vec<Versions> {
        let own = lock(&self.member).formats;
        lock(&self.members).values().map(|member| member.formats).chain([own]).collect()
    }

    /// Takes over the meta record as it was read.
    pub(super) fn see_meta(&self, value: &[u8]) -> Result<(), StoreError> {
        let meta: Meta = serde_json::from_slice(value).map_err(|_| self.damaged("its meta record is unreadable"))?;
        if meta.generation != self.generation {
            return Err(self.replaced(&format!("its generation is {}, it was {}", meta.generation, self.generation)));
        }
        check(&self.path, &meta, &lock(&self.member))?;
        let mut known = lock(&self.meta);
        // An older one may be told late.
        if meta.format > known.format {
            *known = meta;
        }
        Ok(())
    }

    /// Raises it, if all servers that etcd has on its list still read that one.
    async fn raise_to(&self, to: Format, leading: Leading) -> Result<(), StoreError> {
        let (key, own) = (self.keys.at("meta"), lock(&self.member).clone());
        let reads = [ops::key(key.clone()), ops::prefix(&self.keys.at("member/"))];
        let reads = ops::when(Vec::new(), reads.map(ops::get).into(), Vec::new());
        let answer =
            self.patiently("reading which formats the servers read", async || self.client.txn(reads.clone()).await);
        let [metas, members] = ranges(answer.await?);
        let Some(old) = metas.into_iter().next().map(|kv| kv.value) else {
            return Err(self.damaged("its meta record is missing"));
        };
        let meta: Meta = serde_json::from_slice(&old).map_err(|_| self.damaged("its meta record is unreadable"))?;
        // One that cannot be read says nothing of a higher format.
        let members: Vec<Member> =
            members.iter().map(|kv| serde_json::from_slice(&kv.value).unwrap_or_default()).collect();
        let formats = members.iter().map(|member| member.formats).chain([own.formats]);
        if raised(meta.format, formats) != Some(to) {
            return Ok(());
        }
        let next = Meta { format: to, since: own.version, ..meta.clone() };
        let value = serde_json::to_vec(&next).unwrap_or_default();
        let unchanged = [ops::value_is(key.clone(), old)];
        // Where this does not win, an earlier try has, or another server leads: the watch tells either.
        if self.try_guarded(leading.fence, &unchanged, vec![ops::put(key, value.clone(), 0)]).await? {
            self.see_meta(&value)?;
            tracing::info!(
                from = meta.format,
                to,
                servers = members.len(),
                "all servers read a newer format of the shared state, and it is written from now on; older releases \
                    are refused"
            );
        }
        Ok(())
    }

    /// The meta record of a store that is filled: its rows are in the newest format that this release writes.
    pub(super) fn meta_to_fill(&self) -> Meta {
        let (own, meta) = (lock(&self.member).clone(), lock(&self.meta).clone());
        if own.formats.highest > meta.format {
            Meta { format: own.formats.highest, since: own.version, ..meta }
        } else {
            meta
        }
    }
}
