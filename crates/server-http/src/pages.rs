//! Lists in pages: each is read from where its page begins, in the order of an index of the state. A page costs
//! what it holds, however long the list is.

use std::sync::Arc;

use api::{
    paging::{Page, PageError, cut, start},
    query::ListOptions,
};
use model::{Job, JobId, JobKey, Namespace};
use serde::Serialize;
use state::State;
use uuid::Uuid;

use crate::{
    caller::Visible,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// Where ids begin (or, downwards, end) that have this text in front, or come after (before) it. A text may be
/// anything: then it is a place a little too early, and [`cut`] passes over what stands between.
fn bound(text: &str, reverse: bool) -> Uuid {
    let fill = if reverse { 'f' } else { '0' };
    let fits = |(n, c): &(usize, char)| {
        if matches!(n, 8 | 13 | 18 | 23) { *c == '-' } else { matches!(c, '0'..='9' | 'a'..='f') }
    };
    let known = text.chars().take(36).enumerate().take_while(fits).map(|(_, c)| c).filter(|c| *c != '-');
    let digits: String = known.chain(std::iter::repeat(fill)).take(32).collect();
    Uuid::try_parse(&digits).unwrap_or_else(|_| if reverse { Uuid::max() } else { Uuid::nil() })
}

/// The page of a list by id. `rows` reads it from an id on.
pub(crate) fn by_id<T: Serialize, I: Iterator<Item = T>>(
    options: &ListOptions,
    prefix: &str,
    rows: impl FnOnce(Option<Uuid>, bool) -> I,
    id: impl Fn(&T) -> Uuid,
    wanted: impl Fn(&T) -> bool,
) -> Result<Page<T>, PageError> {
    let token = start::<String>(options)?.map(|token| bound(&token, options.reverse));
    let (lowest, highest) = (bound(prefix, false), bound(prefix, true));
    let from =
        if options.reverse { token.unwrap_or(highest).min(highest) } else { token.unwrap_or(lowest).max(lowest) };
    let rows = rows(Some(from), options.reverse).take_while(|row| (lowest..=highest).contains(&id(row))).filter(wanted);
    cut(rows, options, |row| id(row).to_string())
}

/// The page of a list as things came: by create index, then by id. `rows` reads it from there on.
pub(crate) fn by_creation<T: Serialize, I: Iterator<Item = T>>(
    options: &ListOptions,
    rows: impl FnOnce(Option<(u64, Uuid)>, bool) -> I,
    place: impl Fn(&T) -> (u64, Uuid),
    wanted: impl Fn(&T) -> bool,
) -> Result<Page<T>, PageError> {
    let from = start::<(u64, String)>(options)?.map(|(index, id)| (index, bound(&id, options.reverse)));
    cut(rows(from, options.reverse).filter(wanted), options, |row| {
        let (index, id) = place(row);
        (index, id.to_string())
    })
}

/// Where the page of the jobs of one namespace begins.
fn first(namespace: &Namespace, prefix: &str, token: Option<JobKey>, reverse: bool) -> JobKey {
    if reverse {
        // No name stands between one and the same with a zero byte behind it.
        let end = JobKey::new(format!("{namespace}\0"), JobId::from(""));
        token.map_or_else(|| end.clone(), |token| token.min(end.clone()))
    } else {
        let beginning = JobKey::new(namespace.clone(), JobId::from(prefix));
        token.map_or_else(|| beginning.clone(), |token| token.max(beginning.clone()))
    }
}

/// The page of the jobs that an answer may hold, by namespace and id.
pub(crate) fn of_jobs<'s>(
    state: &'s State,
    options: &ListOptions,
    visible: &Visible,
    wanted: impl Fn(&Job) -> bool,
) -> Result<Page<&'s Arc<Job>>, PageError> {
    let token = start::<(String, String)>(options)?.map(|(namespace, id)| JobKey::new(namespace, JobId::from(id)));
    let prefix = options.prefix.as_str();
    let one = visible.one();
    let from = match one {
        None => token,
        Some(namespace) => Some(first(namespace, prefix, token, options.reverse)),
    };
    let has = |job: &Job| job.id.as_str().starts_with(prefix);
    // Beyond the prefix, in the direction of travel, there is nothing of it any more.
    let beyond = |job: &Job| {
        one.is_some_and(|one| job.namespace != *one)
            || (one.is_some() && !has(job) && (options.reverse == (job.id.as_str() < prefix)))
    };
    let rows = state
        .jobs_onward(from, options.reverse)
        .take_while(|job| !beyond(job))
        .filter(|job| has(job) && visible.shows(&job.namespace) && wanted(job));
    cut(rows, options, |job| (job.namespace.to_string(), job.id.to_string()))
}

impl Ctx {
    /// Makes an answer beside the threads that serve heartbeats: a whole list of 100,000 rows takes a second, and a
    /// filter looks at each of them. As many are made at once as there are processors; others wait for their turn.
    pub(crate) async fn beside(
        self,
        make: impl FnOnce(&Self) -> Result<Reply, HttpError> + Send + 'static,
    ) -> Result<Reply, HttpError> {
        let turn = self.app.readers.clone().acquire_owned().await;
        let made = tokio::task::spawn_blocking(move || {
            let made = make(&self);
            drop(turn);
            made
        });
        match made.await {
            Ok(made) => made,
            Err(error) => match error.try_into_panic() {
                // As if it had panicked where it was asked for: that is told by the name of the endpoint.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(HttpError::new(http::StatusCode::SERVICE_UNAVAILABLE, "the server is stopping")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::query::Query;
    use proptest::prelude::*;

    use super::*;

    fn options(query: &str) -> ListOptions {
        ListOptions::parse(&Query::parse(query).expect("query")).expect("options")
    }

    #[test]
    fn any_text_is_a_place_among_ids() {
        for (text, reverse, place) in [
            ("", false, "00000000-0000-0000-0000-000000000000"),
            ("", true, "ffffffff-ffff-ffff-ffff-ffffffffffff"),
            ("ab", false, "ab000000-0000-0000-0000-000000000000"),
            ("ab", true, "abffffff-ffff-ffff-ffff-ffffffffffff"),
            ("abcdef01-2", false, "abcdef01-2000-0000-0000-000000000000"),
            ("abcdef0123", false, "abcdef01-0000-0000-0000-000000000000"),
            ("zz", false, "00000000-0000-0000-0000-000000000000"),
            ("abcdef01-2345-6789-abcd-ef0123456789 and more", true, "abcdef01-2345-6789-abcd-ef0123456789"),
        ] {
            assert_eq!(bound(text, reverse).to_string(), place, "{text:?} {reverse}");
        }
    }

    proptest! {
        /// As the whole list, sorted and cut: whatever the token, the prefix and the direction are.
        #[test]
        fn a_page_by_id_is_that_of_the_sorted_list(
            ids in prop::collection::btree_set(prop::collection::vec(prop::sample::select(vec![0u8, 0x0a, 0xa0, 0xff]),
                3), 0..30),
            prefix in prop::sample::select(vec!["", "00", "0a", "a0a0", "ff", "000aff"]),
            token in prop::sample::select(vec!["", "0", "0a", "a0", "zz", "-", "A",
                "0a0aff00-0000-0000-0000-000000000000", "ffffff00"]),
            per_page in 0usize..4,
            reverse: bool,
        ) {
            let ids: BTreeSet<Uuid> = ids.iter().map(|b| {
                let mut bytes = [0; 16];
                bytes[..3].copy_from_slice(b);
                Uuid::from_bytes(bytes)
            }).collect();
            let options = options(&format!("per_page={per_page}&reverse={reverse}&next_token={token}"));
            let read = |from: Option<Uuid>, reverse: bool| -> Vec<Uuid> {
                let onward =
                    ids.iter().copied().filter(|id| from.is_none_or(|from|
                        if reverse { *id <= from } else { *id >= from }));
                if reverse { onward.rev().collect() } else { onward.collect() }
            };
            let odd = |id: &Uuid| id.as_bytes()[2] != 0x0a;
            let page = by_id(&options, prefix, |from, reverse| read(from, reverse).into_iter(), |id| *id,
                odd).expect("page");
            let sorted = ids.iter().copied().filter(|id| odd(id) && id.to_string().starts_with(prefix));
            prop_assert_eq!(page, api::paging::page(sorted, &options, ToString::to_string).expect("page"));
        }
    }
}
