//! Services: where they are reached, and since when.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
};

use api::{
    paging::page,
    shapes::{IndexResponse, NamespaceServices, ServiceStub},
};
use model::{Namespace, ServiceRegistration};
use server::Watched;
use state::{State, Table};

use crate::{
    caller::of_services,
    jobs,
    reply::{HttpError, Reply},
    request::Ctx,
};

pub(crate) async fn list(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let (state, index) = ctx.watch_table(Table::Services).await?;
    let visible = ctx.visible_where(&state, ctx.query.namespace(), of_services);
    let mut tags: BTreeMap<Namespace, BTreeMap<Arc<str>, BTreeSet<String>>> = BTreeMap::new();
    for r in state.services().filter(|r| visible.shows(&r.namespace) && r.service_name.starts_with(&options.prefix)) {
        tags.entry(r.namespace.clone())
            .or_default()
            .entry(r.service_name.clone())
            .or_default()
            .extend(r.tags.iter().cloned());
    }
    let rows = tags.into_iter().map(|(namespace, services)| {
        let stub = |(name, tags): (Arc<str>, BTreeSet<String>)| ServiceStub {
            service_name: name.to_string(),
            tags: tags.into_iter().collect(),
        };
        NamespaceServices { namespace, services: services.into_iter().map(stub).collect() }
    });
    let page = page(rows, &options, |s| s.namespace.to_string())?;
    Ok(ctx.read(index, &page.rows)?.next_token(page.next_token.as_deref()))
}

pub(crate) async fn get(ctx: Ctx) -> Result<Reply, HttpError> {
    let options = ctx.list_options()?;
    let choose = ctx.query.text("choose");
    let choose = if choose.is_empty() { None } else { Some(Choice::parse(choose)?) };
    let (namespace, name) = (ctx.query.namespace(), ctx.param("name").to_owned());
    let index_of =
        |s: &State| if namespace == "*" { s.index(Table::Services) } else { s.service_index(&namespace, &name) };
    let watched = |_: &State| match namespace == "*" {
        true => Watched::table(Table::Services),
        false => Watched::object(Table::Services, &(&namespace, &*name)),
    };
    let state = ctx.watch(watched, index_of).await?;
    let index = index_of(&state);
    let rows: Vec<Arc<ServiceRegistration>> = if namespace == "*" {
        let visible = ctx.visible_where(&state, namespace.clone(), of_services);
        state.services().filter(|r| *r.service_name == *name && visible.shows(&r.namespace)).cloned().collect()
    } else {
        state.services_by_name(&namespace, &name).cloned().collect()
    };
    let page = page(rows, &options, |r| (r.namespace.to_string(), r.id.to_string()))?;
    let rows = match choose {
        Some(choice) => choice.of(page.rows),
        None => page.rows,
    };
    Ok(ctx.read(index, &rows)?.next_token(page.next_token.as_deref()))
}

/// `choose=2|key`: so many places, the same ones for the same key while they last.
struct Choice {
    count: usize,
    key: String,
}

impl Choice {
    fn parse(text: &str) -> Result<Self, HttpError> {
        let parsed = text.split_once('|').and_then(|(count, key)| Some((count.parse().ok().filter(|n| *n > 0)?, key)));
        let Some((count, key)) = parsed else {
            return Err(HttpError::bad_request(format_args!(
                "choose={text:?} is not of the form NUMBER|KEY with a number above 0"
            )));
        };
        Ok(Self { count, key: key.to_owned() })
    }

    /// Each place is weighed by a hash of the key and itself, so that a place that goes or comes changes no other
    /// choice.
    fn of(&self, mut rows: Vec<Arc<ServiceRegistration>>) -> Vec<Arc<ServiceRegistration>> {
        let weight = |r: &ServiceRegistration| {
            let mut hasher = DefaultHasher::new();
            (&self.key, &r.id).hash(&mut hasher);
            (hasher.finish(), r.id.clone())
        };
        rows.sort_by_cached_key(|r| weight(r));
        rows.truncate(self.count);
        rows
    }
}

pub(crate) async fn delete(ctx: Ctx) -> Result<Reply, HttpError> {
    let (namespace, name, id) = (ctx.query.namespace(), ctx.param("name").to_owned(), ctx.param("id").to_owned());
    let index = ctx.server().delete_service(namespace, name, id).await?;
    ctx.written(index, &IndexResponse { index })
}

pub(crate) async fn of_job(ctx: Ctx) -> Result<Reply, HttpError> {
    let key = ctx.job_key();
    let (state, index) = ctx.watch_table(Table::Services).await?;
    if state.job(&key).is_none() {
        return Err(jobs::not_found().read_at(index));
    }
    ctx.read(index, &state.services_by_job(&key).collect::<Vec<_>>())
}

pub(crate) async fn of_alloc(ctx: Ctx) -> Result<Reply, HttpError> {
    let id = ctx.alloc_id("id")?;
    let (state, index) = ctx.watch_table(Table::Services).await?;
    if state.alloc(id).is_none() {
        return Err(HttpError::not_found("alloc not found").read_at(index));
    }
    ctx.read(index, &state.services_by_alloc(id).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_stable_and_change_with_the_key_only() {
        let place =
            |n: u32| Arc::new(ServiceRegistration { id: format!("r{n}").into(), ..ServiceRegistration::default() });
        let rows: Vec<_> = (0..20).map(place).collect();
        let ids = |text: &str, rows: &[Arc<ServiceRegistration>]| {
            let Ok(choice) = Choice::parse(text) else { panic!("{text} is a choice") };
            choice.of(rows.to_vec()).into_iter().map(|r| r.id.to_string()).collect::<Vec<_>>()
        };
        let chosen = ids("2|me", &rows);
        assert_eq!(chosen.len(), 2);
        let mut reversed = rows.clone();
        reversed.reverse();
        assert_eq!(ids("2|me", &reversed), chosen, "the order of the places does not matter");
        let others: Vec<_> =
            rows.iter().filter(|r| !chosen.contains(&r.id.to_string()) || *r.id == *chosen[0]).cloned().collect();
        assert_eq!(ids("1|me", &others), chosen[..1], "a place that goes changes no other choice");
        let keys: BTreeSet<_> = (0..50).flat_map(|k| ids(&format!("1|{k}"), &rows)).collect();
        assert!(keys.len() > 5, "keys are spread: {keys:?}");
        for bad in ["2", "x|k", "0|k", "|k"] {
            assert!(Choice::parse(bad).is_err(), "{bad}");
        }
    }
}
