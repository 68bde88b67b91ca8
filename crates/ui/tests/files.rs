//! What is embedded is what lies in `web/`, vendored files are those of their releases, and no text becomes markup.

use std::{fs, path::Path};

use sha2::{Digest as _, Sha256};

fn web() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("web")
}

fn files_below(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("directory") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            let name = path.strip_prefix(web()).expect("below web").to_string_lossy().into_owned();
            found.push(name);
        }
    }
}

#[test]
fn every_file_is_embedded_and_its_compressed_form_is_the_same() {
    let mut found = Vec::new();
    files_below(&web(), &mut found);
    let alone = |name: &&String| name.ends_with(".css") || name.starts_with("vendor/") && name.ends_with(".js");
    for name in found.iter().filter(alone) {
        let asset = ui::asset(&format!("{}/{name}", ui::hash())).unwrap_or_else(|| panic!("{name} is not embedded"));
        assert!(asset.bytes().expect("gzip") == fs::read(web().join(name)).expect("file"), "{name}");
    }
    // The own modules are one file, which has them all.
    let app = ui::asset(&format!("{}/app.js", ui::hash())).expect("the script").bytes().expect("gzip");
    let app = String::from_utf8(app).expect("text");
    for name in found.iter().filter(|name| name.ends_with(".js") && !name.starts_with("vendor/")) {
        assert_eq!(app.matches(&format!("// {name}\n")).count(), 1, "{name}");
        assert!(name == "app.js" || ui::asset(&format!("{}/{name}", ui::hash())).is_none(), "{name} is there twice");
    }
    assert!(ui::asset("0000000000000000/app.js").is_none() && ui::asset("app.js").is_none());
    assert!(ui::shell().html.contains(&format!("/ui/-/{}/app.js", ui::hash())) && !ui::shell().html.contains("@HASH@"));
}

#[test]
fn vendored_files_are_those_of_the_manifest() {
    let manifest = fs::read_to_string(web().join("vendor/MANIFEST")).expect("manifest");
    let mut listed = 0;
    for line in manifest.lines().filter(|line| !line.starts_with('#')) {
        let [file, sha256] = line.split(' ').take(2).collect::<Vec<_>>()[..] else { panic!("{line}") };
        let bytes = fs::read(web().join("vendor").join(file)).expect("vendored file");
        let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, sha256, "{file}");
        listed += 1;
    }
    let files = fs::read_dir(web().join("vendor")).expect("vendor").flatten();
    let served = files.filter(|entry| entry.path().extension().is_some_and(|end| end == "js" || end == "css"));
    assert_eq!(served.count(), listed, "each vendored file has its line");
}

#[test]
fn no_text_becomes_markup() {
    let mut found = Vec::new();
    files_below(&web(), &mut found);
    for name in found.iter().filter(|name| !name.starts_with("vendor/")) {
        let text = fs::read_to_string(web().join(name)).expect("text");
        for word in ["innerHTML", "dangerouslySet", "outerHTML", "insertAdjacent", "document.write", "eval(", " style="]
        {
            assert!(!text.contains(word), "{name} has {word}");
        }
    }
}

/// What all files take within the program, and what a first visit loads of them without the terminal, in bytes of
/// gzip.
#[test]
fn the_program_and_a_first_visit_stay_small() {
    let mut found = Vec::new();
    files_below(&web(), &mut found);
    let sizes = found.iter().filter_map(|name| Some((name, ui::asset(&format!("{}/{name}", ui::hash()))?.gzip.len())));
    let sizes: Vec<(&String, usize)> = sizes.collect();
    let all: usize = sizes.iter().map(|(_, size)| size).sum();
    let terminal = |name: &str| name.starts_with("vendor/xterm") || name.starts_with("vendor/addon-fit");
    let first: usize = sizes.iter().filter(|(name, _)| !terminal(name)).map(|(_, size)| size).sum();
    assert!(sizes.len() >= 9 && all <= 400_000, "{all} bytes in the program: {sizes:?}");
    assert!(first + ui::shell().html.len() <= 150_000, "{first} bytes at the first visit: {sizes:?}");
}
