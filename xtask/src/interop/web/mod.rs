//! The web UI in a real browser, with a real agent behind it: what people do there, and what goes wrong meanwhile.
//!
//! Any complaint of the browser fails a story, also an answer that says that the server is broken.

mod away;
mod axe;
mod bulk;
mod demo;
mod drain;
mod fits;
mod history;
mod kit;
mod logs;
mod many;
mod orphans;
mod others;
mod page;
mod people;
mod storage;
mod stories;
mod tasks;
mod versions;

use std::{
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use self::page::Page;
use crate::{
    builds, local,
    packages::{self, Wanted},
};

/// Limit of a story, for people who wait: it is printed, not asserted.
const SLOW: Duration = Duration::from_secs(15);

/// Stories that are told at once.
const AT_ONCE: usize = 2;

/// A story with its name.
type Story = (&'static str, fn(&mut Page) -> Result<()>);

/// The check.
pub(super) fn check() -> Result<()> {
    packages::need(&[Wanted::new("chromium", "chromium")])?;
    builds::build(&["fleet"])?;
    let dir = std::env::temp_dir().join(format!("drover-web-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    // For whoever works on one of them.
    let wanted = std::env::var("DROVER_WEB_STORIES").unwrap_or_default();
    let chosen: Vec<&Story> = stories::ALL.iter().filter(|(name, _)| name.contains(&wanted)).collect();
    ensure!(!chosen.is_empty(), "DROVER_WEB_STORIES={wanted:?} is a part of no story's name");
    if chosen.len() < stories::ALL.len() {
        eprintln!("  only {} of {}, as DROVER_WEB_STORIES says", chosen.len(), stories::ALL.len());
    }
    // Most of their time they wait.
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None::<anyhow::Error>));
    let work = || {
        while failed.lock().is_ok_and(|failed| failed.is_none()) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(story) = chosen.get(n) else { return };
            if let Err(error) = told(story, &dir.join(n.to_string())) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    local::remove(&dir);
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Tells one story in a browser of its own.
fn told((name, story): &Story, dir: &Path) -> Result<()> {
    let begun = Instant::now();
    std::fs::create_dir_all(dir)?;
    let mut page = Page::start(dir).with_context(|| (*name).to_owned())?;
    let told = story(&mut page).and_then(|()| page.untroubled());
    page.keep(&name.replace(' ', "-"))?;
    let took = begun.elapsed();
    eprintln!("  {name}: {:.1} s{}", took.as_secs_f64(), if took > SLOW { ", slow" } else { "" });
    told.with_context(|| (*name).to_owned())
}
