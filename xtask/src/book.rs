//! `cargo xtask book`: the documents as a website, built by mdBook. It fails when a page of the summary is missing or a
//! link of the result leads nowhere.
//!
//! The pages keep their places below the root, so the links that work on a forge work in the book. mdBook copies
//! whatever lies beside its pages. So only documents and examples are staged, in a directory of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{local, peer, process::Run, workspace};

/// The release of mdBook.
const MDBOOK: &str = "0.5.4";
/// What the book is made of, from the root.
const STAGED: [&str; 7] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "STYLE.md", "CHANGELOG.md", "docs", "examples"];
/// Its table of contents, whose links start in `docs`.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Builds the book below the target directory and checks its links. Returns its first page.
pub(crate) fn build() -> Result<PathBuf> {
    let (root, dir) = (workspace::root(), local::target_dir().join("book"));
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("could not remove {}", dir.display()))?;
    }
    let source = dir.join("src");
    for name in STAGED {
        copy(&root.join(name), &source.join(name))?;
    }
    fs::rename(source.join("docs/book.toml"), dir.join("book.toml"))?;
    let summary = source.join(SUMMARY);
    fs::write(source.join("SUMMARY.md"), from_root(&fs::read_to_string(&summary)?))?;
    fs::remove_file(summary)?;
    // It warns of what it cannot read, and goes on; the check does not.
    let out = Command::new(mdbook()?).arg("build").arg(&dir).output().context("could not start mdbook")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.success() && !said.contains("WARN") && !said.contains("ERROR"),
        "mdbook: {}\n{said}",
        out.status
    );
    let book = dir.join("book");
    let broken = broken(&files(&book)?);
    if !broken.is_empty() {
        bail!("links of the book lead nowhere:\n  {}", broken.join("\n  "));
    }
    Ok(book.join("index.html"))
}

/// The program, installed once per release. Unoptimised it builds in 45 seconds of one core, and the book in a fifth of
/// one.
fn mdbook() -> Result<PathBuf> {
    let file = local::peers()?.join(format!("mdbook-{}", MDBOOK.replace('.', "-")));
    peer::cached(&file, |out| {
        let dir = out.with_extension("build");
        let words = [
            "install",
            "mdbook",
            "--version",
            MDBOOK,
            "--locked",
            "--debug",
            "--no-default-features",
            "--features",
            "search",
            "--root",
        ];
        let words = words.into_iter().map(OsString::from).chain([dir.clone().into_os_string()]);
        let cargo = Run::new("cargo", words).dir(workspace::root()).env("CARGO_PROFILE_DEV_DEBUG", "0");
        let built = cargo
            .env("CARGO_TARGET_DIR", dir.join("target"))
            .run_patiently()
            .and_then(|()| Ok(fs::rename(dir.join("bin/mdbook"), out)?));
        drop(fs::remove_dir_all(&dir));
        built
    })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).with_context(|| format!("could not copy {}", from.display()))?;
    Ok(())
}

/// The summary with links that start at the root.
fn from_root(summary: &str) -> String {
    let mut parts = summary.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        text.extend(["](", &resolved(SUMMARY, target), ")", rest]);
    }
    text
}

/// Where a link of a page leads, as a path from the root.
fn resolved(page: &str, target: &str) -> String {
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(path.pop()),
            name => path.push(name),
        }
    }
    path.join("/")
}

/// Every file of the book by its path, with the text of those that are pages.
fn files(book: &Path) -> Result<BTreeMap<String, String>> {
    let (mut dirs, mut found) = (vec![book.to_owned()], BTreeMap::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let page = path.extension().is_some_and(|e| e == "html");
            let text = if page { fs::read_to_string(&path)? } else { String::new() };
            found.insert(path.strip_prefix(book)?.to_string_lossy().into_owned(), text);
        }
    }
    Ok(found)
}

/// Values of these attributes in the tags of a page.
fn attributes<'a>(page: &'a str, names: &[&str]) -> BTreeSet<&'a str> {
    let tags = page.split('<').skip(1).filter_map(|rest| rest.split('>').next());
    let words = tags.flat_map(|tag| names.iter().flat_map(move |name| tag.split(*name).skip(1)));
    words.filter_map(|rest| rest.strip_prefix("=\"")?.split('"').next()).collect()
}

/// Links within the book that lead nowhere.
fn broken(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut broken = Vec::new();
    for (page, text) in files {
        for link in attributes(text, &[" href", " src"]) {
            if link.contains(':') || link.starts_with("//") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { page.clone() } else { resolved(page, file) };
            let there =
                files.get(&to).is_some_and(|text| heading.is_empty() || attributes(text, &[" id"]).contains(heading));
            if !there {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read_from_the_root() {
        let summary = "# S\n\n[a](../README.md)\n- [`b` c](guides/d.md)\n";
        assert_eq!(from_root(summary), "# S\n\n[a](README.md)\n- [`b` c](docs/guides/d.md)\n");
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let page = r##"<h2 id="here">H</h2><a class="x" href="b/c.html#there">1</a><a href="https://elsewhere">2</a><a href="#here">3</a>"##;
        let wrong = r##"<p>href="no tag"</p><h2 id="there"></h2><a href="../a.html#gone">1</a><img src="../none.svg"><a href="../a.html">2</a>"##;
        let files = [("a.html", page), ("b/c.html", wrong)].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(broken(&BTreeMap::from(files)), ["b/c.html: ../a.html#gone", "b/c.html: ../none.svg"]);
    }
}
