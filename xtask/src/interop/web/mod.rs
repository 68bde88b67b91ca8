//! The web UI in a real browser, with a real agent behind it: what people do there, and what goes wrong meanwhile.
//!
//! Any complaint of the browser fails a story, also an answer that says that the server is broken.

mod axe;
mod demo;
mod page;
mod stories;
mod tasks;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::page::Page;
use crate::{
    local,
    packages::{self, Wanted},
};

/// Limit of a story, for people who wait: it is printed, not asserted.
const SLOW: Duration = Duration::from_secs(15);

/// A story with its name.
type Story = (&'static str, fn(&mut Page) -> Result<()>);

/// The check.
pub(super) fn check() -> Result<()> {
    packages::need(&[Wanted::new("chromium", "chromium")])?;
    let dir = std::env::temp_dir().join(format!("drover-web-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    // For whoever works on one of them.
    let wanted = std::env::var("DROVER_WEB_STORIES").unwrap_or_default();
    let chosen: Vec<&Story> = stories::ALL.iter().filter(|(name, _)| name.contains(&wanted)).collect();
    if chosen.len() < stories::ALL.len() {
        eprintln!("  only {} of {}, as DROVER_WEB_STORIES says", chosen.len(), stories::ALL.len());
    }
    let told = chosen.into_iter().try_for_each(|(name, story)| {
        let begun = Instant::now();
        let mut page = Page::start(&dir).with_context(|| (*name).to_owned())?;
        let told = story(&mut page).and_then(|()| page.untroubled());
        page.keep(&name.replace(' ', "-"))?;
        let took = begun.elapsed();
        eprintln!("  {name}: {:.1} s{}", took.as_secs_f64(), if took > SLOW { ", slow" } else { "" });
        told.with_context(|| (*name).to_owned())
    });
    local::remove(&dir);
    told
}
