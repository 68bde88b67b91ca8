//! Parts of the reference that are made from the code, in pages that people write: what stands between `<!--
//! generated: NAME -->` and `<!-- end of NAME -->`. Tests of the program, of its command line and of `xtask` share
//! this file.

use std::{fs, path::PathBuf};

/// Set by `cargo xtask docs`: pages are written instead of compared.
const WRITE: &str = "DROVER_DOCS_WRITE";

/// The page with this text in its part of that name; nothing when it has no such part.
pub(crate) fn placed(page: &str, name: &str, text: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{}\n\n{end}{after}", text.trim()))
}

/// Compares a part of a page of the reference with what it should be, or writes it.
pub(crate) fn check(page: &str, name: &str, text: &str) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference")).join(page);
    let old = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let new = placed(&old, name, text).unwrap_or_else(|| panic!("{page} has no part {name:?}"));
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, new).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    } else {
        let differs = old.lines().zip(new.lines()).find(|(old, new)| old != new);
        assert!(
            old == new,
            "docs/reference/{page} is out of date: run `cargo xtask docs`; the first line that differs: {differs:#?}"
        );
    }
}

#[test]
fn only_the_part_of_that_name_changes() {
    let page = "# A\n\nwritten\n\n<!-- generated: b -->\n\nold\n\n<!-- end of b -->\n\nmore\n";
    let new = placed(page, "b", "new\n").expect("the part");
    assert_eq!(new, "# A\n\nwritten\n\n<!-- generated: b -->\n\nnew\n\n<!-- end of b -->\n\nmore\n");
    assert_eq!(placed(&new, "b", "new").as_ref(), Some(&new), "twice is once");
    assert_eq!(placed(page, "c", ""), None);
}
