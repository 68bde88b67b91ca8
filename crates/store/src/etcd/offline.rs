//! The store without a server: read by a copy, or filled from a copy or a snapshot.
//!
//! Whoever does that holds the fence meanwhile, so that no server leads. While the store is filled, the key `filling`
//! stands in it: no server uses what has it, and the next filling begins with nothing.

use std::{path::Path, time::Instant};

use etcd::{Client, Error, ops};

use super::{
    layout::{FenceValue, Keys, Member},
    read::ranges,
    shared::{PATIENCE, Pause, Shared, failure},
};
use crate::contract::StoreError;

/// What a store is opened for by somebody who is no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offline {
    /// To read all of it.
    Read,
    /// To write all of it; [`super::EtcdStore::filled`] ends that.
    Fill,
}

/// Name of the key.
const FILLING: &str = "filling";

/// Finds out that nobody uses the store. An interrupted filling is undone where another one begins.
pub(super) async fn alone(client: &Client, keys: &Keys, path: &Path, purpose: Offline) -> Result<(), StoreError> {
    let (begun, mut pause) = (Instant::now(), Pause::default());
    loop {
        match look(client, keys, path, purpose).await {
            Ok(found) => return found,
            Err(error) if error.refused().is_some() || begun.elapsed() > PATIENCE => {
                return Err(failure(path, "opening", &error));
            }
            // The next look shows whether a deletion without an answer was done.
            Err(_) => pause.wait().await,
        }
    }
}

/// One look, with the undoing. The outer error is etcd's.
async fn look(client: &Client, keys: &Keys, path: &Path, purpose: Offline) -> Result<Result<(), StoreError>, Error> {
    let (fence, filling) = (keys.at("fence"), keys.at(FILLING));
    let reads = [ops::key(fence.clone()), ops::prefix(&keys.at("member/")), ops::key(filling.clone())];
    let reads = ops::when(Vec::new(), reads.map(ops::get).into(), Vec::new());
    let [fences, members, fillings] = ranges(client.txn(reads).await?);
    let leader = fences.iter().filter_map(|kv| serde_json::from_slice::<FenceValue>(&kv.value).ok());
    let members = members.iter().filter_map(|kv| serde_json::from_slice::<Member>(&kv.value).ok());
    let mut names: Vec<String> = leader.map(|value| value.member.name).chain(members.map(|of| of.name)).collect();
    names.sort();
    names.dedup();
    if !names.is_empty() {
        let by = format!("the server {}", names.join(", the server "));
        return Ok(Err(StoreError::InUse { path: path.to_owned(), by: by.into() }));
    }
    let Some(begun) = fillings.first() else { return Ok(Ok(())) };
    if purpose == Offline::Read {
        return Ok(Err(StoreError::Unfinished { path: path.to_owned() }));
    }
    // With its index and generation: what comes next is another history.
    let all = keys.at("");
    let read = [ops::key(fence.clone()), ops::key(filling.clone())].map(ops::get).into();
    let unchanged = vec![ops::created_at(filling, begun.create_revision), ops::created_at(fence, 0)];
    let delete = ops::delete_between(all.clone(), ops::end_of_prefix(&all));
    let undone = client.txn(ops::when(unchanged, vec![delete], read)).await?;
    if !undone.succeeded {
        let [fences, fillings] = ranges(undone);
        // Where neither is there, an earlier try was done after all, and its answer has not come.
        if !fences.is_empty() || !fillings.is_empty() {
            let by = "somebody who has just begun".into();
            return Ok(Err(StoreError::InUse { path: path.to_owned(), by }));
        }
    }
    tracing::info!(store = %path.display(), "what an interrupted filling has left was deleted");
    Ok(Ok(()))
}

impl Shared {
    /// After the fence was taken: a server finds a store that is no half of one; whoever fills an empty one says so.
    pub(super) async fn begin_filling(&self, fence: i64, empty: bool) -> Result<(), StoreError> {
        if self.offline == Some(Offline::Fill) && empty {
            let meta = self.meta_to_fill();
            let value = serde_json::to_vec(&meta).unwrap_or_default();
            let puts = vec![ops::put(self.keys.at(FILLING), "", 0), ops::put(self.keys.at("meta"), value.clone(), 0)];
            self.guarded(fence, puts).await?;
            return self.see_meta(&value);
        }
        self.refuse_unfinished().await
    }

    /// # Errors
    /// [`StoreError::Unfinished`].
    pub(super) async fn refuse_unfinished(&self) -> Result<(), StoreError> {
        let key = self.keys.at(FILLING);
        let found = self.patiently("reading whether it is complete", async || self.client.get(key.clone()).await);
        match found.await? {
            Some(_) => Err(StoreError::Unfinished { path: self.path.clone() }),
            None => Ok(()),
        }
    }

    /// From now on servers may use it.
    pub(super) async fn filled(&self) -> Result<(), StoreError> {
        let Some(leading) = self.leading() else { return Err(StoreError::Closed) };
        self.guarded(leading.fence, vec![ops::delete(self.keys.at(FILLING))]).await
    }
}
