//! What `cargo xtask lint` asks of the tree besides the compiler's lints: limits of size, purity, documents that agree
//! with the code, exemptions that end.
//!
//! Each check is a function from texts to findings, so that a test can show it a tree that is wrong.

mod advisories;
mod circles;
mod events;
mod limits;
mod loops;
mod metrics;
mod names;
mod parity;
mod purity;
mod source;
mod survives;
mod tokens;

use std::fs;

use anyhow::{Result, bail};

use self::source::{read, sources};
use crate::{process::Run, workspace};

/// Formatting, the tree's own rules, clippy, supply chain.
pub(crate) fn lint() -> Result<()> {
    let root = workspace::root();
    Run::new("cargo", ["fmt", "--all", "--check"]).dir(&root).run()?;
    check()?;
    Run::new("cargo", ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).dir(&root).run()?;
    if !Run::new("cargo", ["deny", "--version"]).dir(&root).succeeds() {
        eprintln!("xtask: cargo-deny is missing, installing it");
        Run::new("cargo", ["install", "--locked", "cargo-deny"]).dir(&root).run_patiently()?;
    }
    // It looks at the crates of every platform; a cache that has only built for this one lacks some.
    Run::new("cargo", ["fetch", "--locked"]).dir(&root).run_patiently()?;
    Run::new("cargo", ["deny", "--offline", "check", "bans", "licenses", "sources"]).dir(&root).run()?;
    // The advisory database lives outside the package registries: where it can be fetched its findings fail, and where
    // not, that is said.
    if !Run::new("cargo", ["deny", "fetch", "db"]).dir(&root).quiet().succeeds() {
        eprintln!(
            "xtask: advisories were not checked: the advisory database could not be fetched (`cargo deny fetch db` \
                says why)"
        );
        return Ok(());
    }
    Run::new("cargo", ["deny", "check", "advisories"]).dir(&root).run()
}

/// All checks; the error lists what is wrong.
pub(crate) fn check() -> Result<()> {
    let sources = sources()?;
    let allowed = limits::parse(&read(limits::FILE)?)?;
    let mut wrong = limits::too_long(&sources);
    wrong.extend(limits::too_wide(&sources));
    wrong.extend(limits::compare(&limits::count(&sources), &allowed));
    wrong.extend(circles::compare(&names::named(&sources), &allowed));
    wrong.extend(limits::without_reason(&sources));
    wrong.extend(purity::impure(&sources, purity::EXEMPT));
    wrong.extend(purity::lint_files(&sources));
    wrong.extend(purity::linked()?);
    wrong.extend(loops::stale(&read("ARCHITECTURE.md")?));
    wrong.extend(loops::crates_without_a_row(&workspace::members()?, &read("ARCHITECTURE.md")?));
    wrong.extend(metrics::compare(&metrics::in_code(&sources), &metrics::in_page(&read(metrics::PAGE)?)));
    wrong.extend(events::compare(&sources, &read(events::PAGE)?));
    for table in parity::TABLES {
        wrong.extend(table.compare(&sources, &read(table.page)?));
    }
    wrong.extend(survives::compare(&read(survives::PAGE)?, &survives::Known::of(&sources)));
    wrong.extend(advisories::ended(&read("deny.toml")?, &advisories::today()));
    if !wrong.is_empty() {
        bail!("the tree is not tidy:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

/// Prints every circle of a crate, or of all, with what ties it.
pub(crate) fn print_circles(only: Option<&str>) -> Result<()> {
    for (place, names) in names::named(&sources()?).iter().filter(|(place, _)| only.is_none_or(|only| *only == **place))
    {
        for circle in circles::circles(names) {
            println!("{}", circles::told(place, names, &circle));
        }
    }
    Ok(())
}

/// Writes the file of the limits that only shrink, the lint files of the pure crates, the rows of loops, and the pages
/// of events and of parity.
pub(crate) fn update() -> Result<()> {
    let root = workspace::root();
    let sources = sources()?;
    let mut counts = limits::count(&sources);
    counts.extend(circles::count(&names::named(&sources)));
    fs::write(root.join(limits::FILE), limits::render(&counts))?;
    let page = read(events::PAGE)?;
    fs::write(root.join("ARCHITECTURE.md"), loops::current(&read("ARCHITECTURE.md")?))?;
    fs::write(root.join(events::PAGE), events::current(&sources, &page).unwrap_or(page))?;
    for table in parity::TABLES {
        let page = read(table.page)?;
        fs::write(root.join(table.page), table.current(&page).unwrap_or(page))?;
    }
    for name in crate::edges::PURE {
        fs::write(root.join(purity::lint_file(name)), purity::LINTS)?;
    }
    Ok(())
}
