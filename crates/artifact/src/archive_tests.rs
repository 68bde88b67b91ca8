use std::{
    fs,
    io::{Seek, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use super::*;

/// One entry of a tar archive, as hostile as one likes: names are written as they are.
struct Entry<'a> {
    kind: tar::EntryType,
    name: &'a str,
    link: &'a str,
    content: &'a [u8],
    mode: u32,
}

fn file<'a>(name: &'a str, content: &'a str) -> Entry<'a> {
    Entry { kind: tar::EntryType::Regular, name, link: "", content: content.as_bytes(), mode: 0o644 }
}

fn special<'a>(kind: tar::EntryType, name: &'a str, link: &'a str) -> Entry<'a> {
    Entry { kind, name, link, content: b"", mode: 0o755 }
}

fn tarball(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(entry.kind);
        header.set_size(entry.content.len() as u64);
        header.set_mode(entry.mode);
        // The library's own setters refuse what these tests are about.
        let old = header.as_gnu_mut().expect("a GNU header");
        old.name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        old.linkname[..entry.link.len()].copy_from_slice(entry.link.as_bytes());
        header.set_cksum();
        builder.append(&header, entry.content).expect("memory");
    }
    builder.into_inner().expect("memory")
}

fn limits() -> Limits {
    Limits { unpacked_files: 100, unpacked_bytes: 1 << 20, ..Limits::default() }
}

fn unpack_bytes(kind: &str, bytes: &[u8], name: &str, into: &Path) -> Result<(), FetchError> {
    let mut archive = tempfile::tempfile().expect("temp file");
    archive.write_all(bytes).expect("written");
    archive.rewind().expect("rewound");
    unpack(Kind::by_name(kind).expect("a format"), archive, name, &Dir::open(into).expect("open"), &limits())
}

#[test]
fn every_format_unpacks() {
    let plain = tarball(&[
        special(tar::EntryType::Directory, "./d/", ""),
        Entry { mode: 0o4755, ..file("d/run.sh", "#!/bin/sh\n") },
        file("top", "old"),
        file("top", "new"),
        special(tar::EntryType::Symlink, "d/up", "../top"),
        special(tar::EntryType::Link, "d/same", "top"),
    ]);
    let gz = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    };
    let bz2 = |bytes: &[u8]| {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    };
    let xz = |bytes: &[u8]| {
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
        encoder.write_all(bytes).expect("memory");
        encoder.finish().expect("memory")
    };
    let zst = |bytes: &[u8]| zstd::encode_all(bytes, 1).expect("memory");
    for (kind, bytes) in [
        ("tar", plain.clone()),
        ("tar.gz", gz(&plain)),
        ("tgz", gz(&plain)),
        ("tar.bz2", bz2(&plain)),
        ("tar.xz", xz(&plain)),
        ("tar.zst", zst(&plain)),
    ] {
        let temp = tempfile::tempdir().expect("temp dir");
        unpack_bytes(kind, &bytes, "a", temp.path()).expect(kind);
        assert_eq!(fs::read_to_string(temp.path().join("d/up")).expect(kind), "new", "{kind}");
        let run = fs::metadata(temp.path().join("d/run.sh")).expect(kind);
        assert_eq!(run.permissions().mode() & 0o7777, 0o755, "{kind}: no set-user-id bit");
        assert_eq!(fs::metadata(temp.path().join("d/same")).expect(kind).nlink(), 2, "{kind}");
    }
    for (kind, bytes) in [("gz", gz(b"text")), ("bz2", bz2(b"text")), ("xz", xz(b"text")), ("zst", zst(b"text"))] {
        let temp = tempfile::tempdir().expect("temp dir");
        unpack_bytes(kind, &bytes, &format!("notes.txt.{kind}"), temp.path()).expect(kind);
        assert_eq!(fs::read_to_string(temp.path().join("notes.txt")).expect(kind), "text");
    }
}

#[test]
fn zip_files_unpack() {
    let temp = tempfile::tempdir().expect("temp dir");
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    zip.add_directory("d", options).expect("memory");
    zip.start_file("d/run.sh", options.unix_permissions(0o755)).expect("memory");
    zip.write_all(b"text").expect("memory");
    zip.add_symlink("link", "d/run.sh", options).expect("memory");
    let bytes = zip.finish().expect("memory").into_inner();
    unpack_bytes("zip", &bytes, "a", temp.path()).expect("unpacked");
    assert_eq!(fs::read_to_string(temp.path().join("link")).expect("a file"), "text");
    assert_eq!(fs::metadata(temp.path().join("d/run.sh")).expect("a file").permissions().mode() & 0o777, 0o755);
}

#[test]
fn hostile_archives_are_refused_and_touch_nothing_outside() {
    use tar::EntryType as T;
    let cases: &[(&str, Vec<Entry<'_>>)] = &[
        ("leaves the destination", vec![file("../escaped", "x")]),
        ("leaves the destination", vec![file("a/../../escaped", "x")]),
        ("absolute", vec![file("/tmp/drover-escaped", "x")]),
        ("is absolute", vec![special(T::Symlink, "l", "/etc")]),
        ("leaves the destination", vec![special(T::Symlink, "l", "..")]),
        ("leaves the destination", vec![special(T::Symlink, "d/l", "../../x")]),
        ("goes up behind a name", vec![special(T::Symlink, "l", "."), special(T::Symlink, "m", "l/..")]),
        ("file or a link", vec![special(T::Directory, "d", ""), special(T::Symlink, "l", "d"), file("l/escaped", "x")]),
        ("no file of the archive", vec![special(T::Link, "h", "missing")]),
        ("no file of the archive", vec![special(T::Symlink, "l", "x"), special(T::Link, "h", "l")]),
        ("leaves the destination", vec![special(T::Link, "h", "../outside")]),
        ("absolute", vec![special(T::Link, "h", "/etc/passwd")]),
        ("device", vec![special(T::Char, "null", "")]),
        ("device", vec![special(T::Block, "disk", "")]),
        ("FIFO", vec![special(T::Fifo, "pipe", "")]),
        ("directory and something else", vec![special(T::Directory, "d", ""), file("d", "x")]),
        ("no name", vec![file(".", "x")]),
    ];
    for (part, entries) in cases {
        let temp = tempfile::tempdir().expect("temp dir");
        fs::write(temp.path().join("outside"), "kept").expect("file");
        fs::create_dir(temp.path().join("into")).expect("dir");
        let error = unpack_bytes("tar", &tarball(entries), "a", &temp.path().join("into")).expect_err(part);
        assert!(error.to_string().contains(part), "{part}: {error}");
        assert!(!error.recoverable(), "{part}");
        assert_eq!(fs::read_dir(temp.path()).expect("list").count(), 2, "{part}: nothing beside the destination");
        assert_eq!(fs::metadata(temp.path().join("outside")).expect("kept").nlink(), 1, "{part}");
    }
    assert!(!Path::new("/tmp/drover-escaped").exists());
}

#[test]
fn a_hostile_zip_file_is_refused() {
    for (name, target, part) in [("l", "../x", "leaves"), ("l", "/etc", "absolute")] {
        let temp = tempfile::tempdir().expect("temp dir");
        let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        zip.add_symlink(name, target, zip::write::SimpleFileOptions::default()).expect("memory");
        let bytes = zip.finish().expect("memory").into_inner();
        let error = unpack_bytes("zip", &bytes, "a", temp.path()).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    // The writer does not write such a name; a byte of an honest one is changed.
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    zip.start_file("xx/a", zip::write::SimpleFileOptions::default()).expect("memory");
    let mut bytes = zip.finish().expect("memory").into_inner();
    for at in 0..bytes.len() - 4 {
        if &bytes[at..at + 4] == b"xx/a" {
            bytes[at..at + 2].copy_from_slice(b"..");
        }
    }
    let temp = tempfile::tempdir().expect("temp dir");
    let error = unpack_bytes("zip", &bytes, "a", temp.path()).expect_err("refused").to_string();
    assert!(error.contains("leaves"), "{error}");
}

#[test]
fn links_that_were_there_before_are_not_written_through() {
    let temp = tempfile::tempdir().expect("temp dir");
    let (into, outside) = (temp.path().join("into"), temp.path().join("outside"));
    fs::create_dir(&into).expect("dir");
    fs::create_dir(&outside).expect("dir");
    symlink(&outside, into.join("d")).expect("link");
    assert!(unpack_bytes("tar", &tarball(&[file("d/x", "x")]), "a", &into).is_err());
    assert_eq!(fs::read_dir(&outside).expect("list").count(), 0);
}

#[test]
fn bombs_end_at_the_limits() {
    let temp = tempfile::tempdir().expect("temp dir");
    let zeros = vec![0_u8; 4 << 20];
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&zeros).expect("memory");
    let bomb = encoder.finish().expect("memory");
    assert!(bomb.len() < 10_000, "{} bytes hold {}", bomb.len(), zeros.len());
    let error = unpack_bytes("gz", &bomb, "zeros.gz", temp.path()).expect_err("too large").to_string();
    assert!(error.contains("decompression_size_limit"), "{error}");
    assert!(fs::metadata(temp.path().join("zeros")).expect("begun").len() <= limits().unpacked_bytes);

    let names: Vec<String> = (0..101).map(|n| format!("f{n}")).collect();
    let many: Vec<Entry<'_>> = names.iter().map(|n| file(n, "")).collect();
    let temp = tempfile::tempdir().expect("temp dir");
    let error = unpack_bytes("tar", &tarball(&many), "a", temp.path()).expect_err("too many").to_string();
    assert!(error.contains("decompression_file_count_limit"), "{error}");

    let deep = "d/".repeat(45);
    let temp = tempfile::tempdir().expect("temp dir");
    unpack_bytes("tar", &tarball(&[file(&format!("{deep}f"), "")]), "a", temp.path()).expect("deep enough for anybody");
}

#[test]
fn what_is_cut_off_or_something_else_is_said_to_be() {
    let whole = tarball(&[file("a", &"x".repeat(2000))]);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&whole).expect("memory");
    let gz = gz.finish().expect("memory");
    for (kind, bytes) in [
        ("tar", &whole[..1000]),
        ("tar.gz", &gz[..gz.len() / 2]),
        ("zip", b"no zip at all"),
        ("xz", b"no"),
        ("zst", b"no"),
        ("tar.bz2", b"no"),
    ] {
        let temp = tempfile::tempdir().expect("temp dir");
        let error = unpack_bytes(kind, bytes, "a", temp.path()).expect_err(kind).to_string();
        assert!(error.contains("damaged or incomplete"), "{kind}: {error}");
    }
}
