//! The keyring on a real directory: what is signed can be verified, and what happens to files.

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use state::Change;

use super::{files::UNFINISHED, *};

fn open(dir: &Path) -> Keyring {
    Keyring::open(Some(dir.to_owned()), Wrapping::default(), 1_000, 10).expect("opens")
}

/// As a rotation from outside.
fn rotate(keyring: &Keyring, now: TimestampNs, index: StoreIndex) -> Result<KeyMeta, KeyringError> {
    let active = keyring.keys().0.into_iter().filter(|k| k.state == KeyState::Active);
    let changes: Vec<_> = active.map(|k| (k.id, KeyState::Inactive)).collect();
    keyring.rotate(&Made { now, publish_time: 0, encrypts: true }, &changes, index)
}

fn ids(keyring: &Keyring) -> Vec<(Uuid, KeyState)> {
    keyring.keys().0.into_iter().map(|k| (k.id, k.state)).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("exists").permissions().mode() & 0o7777
}

/// What a verifier does: the key that the header names, its public half, the signature over the first two parts.
fn verify(keys: &[KeyMeta], token: &str) -> Option<Value> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
    let header: Value = serde_json::from_slice(&decode(header)?).ok()?;
    assert_eq!((&header["alg"], &header["typ"]), (&json!("RS256"), &json!("JWT")));
    let key = keys.iter().find(|k| header["kid"] == json!(k.id))?;
    UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &key.public)
        .verify(signed.as_bytes(), &decode(signature)?)
        .ok()?;
    serde_json::from_slice(&decode(claims)?).ok()
}

#[test]
fn tokens_are_verified_with_what_is_published() {
    let keyring = Keyring::open(None, Wrapping::default(), 1, 0).expect("opens");
    let claims = json!({"sub": "global:default:web:server", "aud": ["x"], "exp": 7});
    let token = keyring.sign(&claims).expect("signs");
    let (keys, index) = keyring.keys();
    assert_eq!((keys.len(), index), (1, 1));
    let (modulus, exponent) = rsa_parts(&keys[0].public).expect("an RSA key");
    assert_eq!((modulus.len(), exponent), (256, [1, 0, 1].as_slice()));
    assert_eq!(verify(&keys, &token), Some(claims.clone()));
    assert_eq!(keyring.verify(&token), Some(claims.clone()));
    let forged = token.replacen('.', ".e", 1);
    assert_eq!(verify(&keys, &forged), None, "other claims than were signed");
    let unsigned = format!(
        "{}.{}.",
        URL_SAFE_NO_PAD.encode(json!({"alg": "none", "kid": keys[0].id}).to_string()),
        token.split('.').nth(1).unwrap_or("")
    );
    let stranger = Keyring::open(None, Wrapping::default(), 1, 0).expect("opens").sign(&claims).expect("signs");
    for other in [forged.as_str(), &unsigned, &stranger, "", "e30.e30.x", "a.b", "..", &token[..token.len() - 2]] {
        assert_eq!(keyring.verify(other), None, "{other}");
    }

    let new = rotate(&keyring, 2, 5).expect("rotates");
    let (keys, _) = keyring.keys();
    assert_eq!(verify(&keys, &token), Some(claims.clone()), "what the old key has signed stays valid");
    let newer = keyring.sign(&claims).expect("signs");
    assert_eq!(verify(&keys[..1], &newer), Some(claims), "the new key signs");
    keyring.delete(keys[1].id, 6).expect("deletes");
    assert_eq!(verify(&keyring.keys().0, &token), None, "its key is gone");
    assert_eq!(keyring.keys().0, [new]);
}

#[test]
fn keys_survive_restarts_in_files_of_their_own() {
    let dir = tempfile::tempdir().expect("dir");
    let keys = dir.path().join(DIR);
    let first = open(&keys);
    let token = first.sign(&json!({"n": 1})).expect("signs");
    let made = first.keys();
    assert_eq!((made.0[0].create_time, made.0[0].create_index, made.1), (1_000, 10, 10));
    assert_eq!(open(&keys).keys(), made, "nothing is made or changed at a restart");
    rotate(&first, 2_000, 12).expect("rotates");
    let rotated = first.keys();
    assert_eq!(
        rotated.0.iter().map(|k| (k.state, k.create_index, k.modify_index)).collect::<Vec<_>>(),
        [(KeyState::Active, 12, 12), (KeyState::Inactive, 10, 12)]
    );
    let second = open(&keys);
    assert_eq!(second.keys(), rotated);
    assert_eq!(verify(&second.keys().0, &token), Some(json!({"n": 1})));

    assert_eq!(mode(&keys), 0o700);
    let files: Vec<PathBuf> = fs::read_dir(&keys).expect("lists").map(|e| e.expect("entry").path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for path in &files {
        assert_eq!(mode(path), 0o600, "{}", path.display());
    }
    // The secret is in the file and in nothing that is shown.
    let text = fs::read_to_string(file_of(&keys, made.0[0].id)).expect("reads");
    let secret = serde_json::from_str::<Value>(&text).expect("JSON")["PrivateKey"].as_str().expect("text").to_owned();
    let seed = second.ring.load().keys[1].data.as_ref().expect("a data key").bytes().to_vec();
    let shown = format!("{second:?} {:?}", second.keys());
    assert!(!shown.contains(&secret) && !shown.contains(&format!("{seed:?}")), "{shown}");
    assert!(shown.contains(&made.0[0].id.to_string()), "{shown}");
}

#[test]
fn rights_of_others_are_taken_away() {
    let dir = tempfile::tempdir().expect("dir");
    let keys = dir.path().join(DIR);
    let path = file_of(&keys, open(&keys).keys().0[0].id);
    fs::set_permissions(&keys, Permissions::from_mode(0o755)).expect("sets");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("sets");
    assert!(open(&keys).damaged().is_empty());
    assert_eq!((mode(&keys), mode(&path)), (0o700, 0o600));
}

/// How a file is damaged.
type Damage = fn(&mut Value) -> String;

#[test]
fn damaged_files_are_named_and_left_as_they_are() {
    let damages: [(&str, Damage); 8] = [
        ("record of a key (Eof", |v| v.to_string()[..40].to_owned()),
        ("record of a key (Eof", |_| String::new()),
        ("record of a key (Data", |v| {
            v["Algorithm"] = json!("none");
            v.to_string()
        }),
        ("record of a key (Data", |v| {
            v["FromTheFuture"] = json!(true);
            v.to_string()
        }),
        ("it holds the key", |v| {
            v["KeyID"] = json!(Uuid::nil());
            v.to_string()
        }),
        ("not base64", |v| {
            v["PrivateKey"] = json!("?");
            v.to_string()
        }),
        ("not a whole RSA key", |v| {
            v["PrivateKey"] = json!("AAAA");
            v.to_string()
        }),
        // One bit of the secret: it is still a key, but not the one that was published.
        ("not a whole RSA key", |v| {
            let mut der = STANDARD.decode(v["PrivateKey"].as_str().expect("text")).expect("base64");
            // Within the modulus: near the end a change could leave a key that still works.
            der[60] ^= 1;
            v["PrivateKey"] = json!(STANDARD.encode(der));
            v.to_string()
        }),
    ];
    for (why, damage) in damages {
        let dir = tempfile::tempdir().expect("dir");
        let first = open(dir.path());
        let old = ids(&first)[0].0;
        let active = rotate(&first, 2_000, 12).expect("rotates").id;
        let path = file_of(dir.path(), active);
        let whole = fs::read_to_string(&path).expect("reads");
        let text = damage(&mut serde_json::from_str(&whole).expect("JSON"));
        fs::write(&path, &text).expect("writes");

        let after = open(dir.path());
        let [Damaged { path: named, why: said }] = after.damaged() else { panic!("{why}: {:?}", after.damaged()) };
        assert!(named == &path && said.contains(why), "{why}: {said}");
        let now = ids(&after);
        assert_eq!(
            (now.len(), now[1], now[0].1),
            (2, (old, KeyState::Inactive), KeyState::Active),
            "{why}: a new key beside the others"
        );
        assert!(now[0].0 != active, "{why}");
        assert_eq!(fs::read_to_string(&path).expect("reads"), text, "{why}: it is not touched");
        // Somebody restores it: published again, and the newer key goes on signing.
        fs::write(&path, &whole).expect("writes");
        let restored = ids(&open(dir.path()));
        assert_eq!(restored.len(), 3, "{why}");
        assert!(restored.contains(&(active, KeyState::Inactive)) && restored.contains(&now[0]), "{why}: {restored:?}");
    }
}

#[test]
fn a_directory_of_damaged_files_only_gets_a_new_key() {
    let dir = tempfile::tempdir().expect("dir");
    let lost = ids(&open(dir.path()))[0].0;
    fs::write(file_of(dir.path(), lost), "{").expect("writes");
    let after = open(dir.path());
    assert_eq!((after.damaged().len(), after.keys().0.len()), (1, 1));
    assert!(after.sign(&json!({})).is_ok());
}

#[test]
fn a_crash_in_a_rotation_leaves_one_active_key() {
    let dir = tempfile::tempdir().expect("dir");
    let keyring = open(dir.path());
    let old = ids(&keyring)[0].0;
    let before = fs::read(file_of(dir.path(), old)).expect("reads");
    let new = rotate(&keyring, 2_000, 12).expect("rotates").id;
    // The new key was written, the old one not yet marked; another one was being written.
    fs::write(file_of(dir.path(), old), before).expect("writes");
    let unfinished = dir.path().join(format!("{}{UNFINISHED}", Uuid::nil()));
    fs::write(&unfinished, "{").expect("writes");
    let after = open(dir.path());
    let expected = [(new, KeyState::Active), (old, KeyState::Inactive)];
    assert_eq!(ids(&after), expected);
    assert!(!unfinished.exists() && after.damaged().is_empty());
    assert_eq!(ids(&open(dir.path())), expected);
}

#[test]
fn rules_of_deletion() {
    let dir = tempfile::tempdir().expect("dir");
    let keyring = open(dir.path());
    let old = ids(&keyring)[0].0;
    assert!(matches!(keyring.delete(old, 11), Err(KeyringError::Active)), "the active key stays");
    assert_eq!(keyring.delete(Uuid::nil(), 11).expect("no such key"), None);
    let new = rotate(&keyring, 2_000, 12).expect("rotates").id;
    assert!(matches!(keyring.delete(new, 13), Err(KeyringError::Active)));
    assert_eq!(keyring.delete(old, 13).expect("deletes"), Some(13));
    assert!(!file_of(dir.path(), old).exists());
    assert_eq!(ids(&keyring), [(new, KeyState::Active)]);
    assert_eq!(ids(&open(dir.path())), [(new, KeyState::Active)]);
}

#[test]
fn a_key_that_cannot_be_written_changes_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let keys = dir.path().join(DIR);
    let keyring = open(&keys);
    let before = keyring.keys();
    // Rights would not stop a privileged test; a directory that is gone does.
    let moved = dir.path().join("moved");
    fs::rename(&keys, &moved).expect("renames");
    let error = rotate(&keyring, 2_000, 12).expect_err("no directory");
    assert!(matches!(&error, KeyringError::File { attempt: "writing the key", .. }), "{error}");
    assert_eq!(keyring.keys(), before);
    fs::rename(&moved, &keys).expect("renames");
    assert_eq!(open(&keys).keys(), before);
    fs::write(dir.path().join("file"), "").expect("writes");
    let error =
        Keyring::open(Some(dir.path().join("file/keystore")), Wrapping::default(), 1, 1).expect_err("not a directory");
    assert!(error.to_string().contains("file/keystore"), "{error}");
}

#[tokio::test]
async fn changes_wake_those_who_wait_and_indexes_never_go_back() {
    let keyring = Arc::new(Keyring::open(None, Wrapping::default(), 1, 10).expect("opens"));
    let waiting = tokio::spawn({
        let keyring = keyring.clone();
        async move { keyring.changed_after(10).await }
    });
    // A rotation with an older index: those that come at once may be carried out in any order.
    let first = rotate(&keyring, 2, 12).expect("rotates");
    let second = rotate(&keyring, 2, 11).expect("rotates");
    assert!(second.create_index > first.create_index);
    assert_eq!(keyring.keys().0[0].id, second.id);
    testkit::soon(waiting).await.expect("no panic");
}

fn shared(byte: u8) -> SharedKey {
    SharedKey::read(&STANDARD.encode([byte; 32])).expect("a key")
}

/// The state with these keys.
fn put(state: &State, keys: Vec<SigningKey>) -> State {
    let mut next = state.clone();
    let changes: Vec<Change> = keys.into_iter().map(|key| Change::PutSigningKey(Box::new(key))).collect();
    next.apply(state.latest_index() + 1, 0, changes.into()).expect("applies");
    next
}

#[test]
fn keys_in_the_state_are_used_once_they_are_there() {
    let empty = State::new();
    let keyring = Keyring::of_state(shared(1), Wrapping::default(), &empty).expect("opens");
    let first = keyring.first(None, 1_000, true).expect("makes one");
    assert!(keyring.sign(&json!({})).is_err() && keyring.keys().0.is_empty(), "it is not committed");
    let one = put(&empty, first);
    keyring.follow(&one);
    let token = keyring.sign(&json!({"n": 1})).expect("signs");
    assert_eq!(keyring.keys().1, one.index(Table::SigningKeys));
    assert!(keyring.first(None, 2_000, true).expect("reads").is_empty(), "there is one");

    // Another server of the same key: the same keys, and one of them marked.
    let other = Keyring::of_state(shared(1), Wrapping::default(), &one).expect("opens");
    assert_eq!(other.keys(), keyring.keys());
    assert_eq!(other.verify(&token), Some(json!({"n": 1})));
    let (row, _) = other
        .to_commit(&Made { now: 3_000, publish_time: 0, encrypts: true })
        .expect("makes one")
        .expect("for the state");
    let old = ids(&other)[0].0;
    let marked = SigningKey { state: KeyState::Inactive, ..SigningKey::clone(one.signing_key(old).expect("there")) };
    let two = put(&one, vec![row.clone(), marked]);
    keyring.follow(&two);
    assert_eq!(ids(&keyring), [(row.id, KeyState::Active), (old, KeyState::Inactive)]);
    assert!(keyring.verify(&token).is_some());
    keyring.follow(&one);
    assert_eq!(keyring.keys().0.len(), 2, "an older state says nothing");
    let shown = format!("{keyring:?} {:?} {row:?}", keyring.keys());
    let seed = keyring.ring.load().keys[0].signer.secret().expect("encodes");
    assert!(!shown.contains(&STANDARD.encode(&seed)) && !shown.contains(&format!("{seed:?}")), "{shown}");
}

#[test]
fn a_key_that_does_not_open_is_named() {
    let keyring = Keyring::of_state(shared(1), Wrapping::default(), &State::new()).expect("opens");
    let state = put(&State::new(), keyring.first(None, 1_000, true).expect("makes one"));
    keyring.follow(&state);
    let kept = ids(&keyring);
    let error = Keyring::of_state(shared(2), Wrapping::default(), &state).expect_err("another key").to_string();
    assert!(error.contains(&kept[0].0.to_string()) && error.contains("server.encrypt"), "{error}");
    // One that comes later is left out, and the others go on.
    let (strange, _) = Keyring::of_state(shared(2), Wrapping::default(), &State::new())
        .and_then(|other| other.to_commit(&Made { now: 2_000, publish_time: 0, encrypts: true }))
        .expect("makes one")
        .expect("for the state");
    let (row, _) = keyring
        .to_commit(&Made { now: 3_000, publish_time: 0, encrypts: true })
        .expect("makes one")
        .expect("for the state");
    let swapped = SigningKey { id: Uuid::from_u128(7), ..row.clone() };
    keyring.follow(&put(&state, vec![strange, row.clone(), swapped]));
    assert_eq!(keyring.keys().0.len(), 2, "of {:?}", keyring.keys());
    assert!(ids(&keyring).iter().all(|(id, _)| *id == row.id || *id == kept[0].0));
    assert!(keyring.sign(&json!({})).is_ok());
}

#[test]
fn a_variable_opens_with_its_key_only() {
    let keyring = Keyring::open(None, Wrapping::default(), 1, 0).expect("opens");
    let (id, sealed) = keyring.seal(b"planted secret").expect("seals");
    assert!(!sealed.windows(7).any(|part| part == b"planted"));
    assert_ne!(keyring.seal(b"planted secret").expect("seals").1, sealed, "no nonce is used twice");
    let new = rotate(&keyring, 2, 5).expect("rotates").id;
    assert_eq!(&*keyring.unseal(id, &sealed, "a").expect("opens"), b"planted secret", "the old key opens it");
    assert_eq!(keyring.seal(b"x").expect("seals").0, new, "the new key encrypts");
    let mut changed = sealed.clone();
    changed[13] ^= 1;
    for (what, id, bytes) in
        [("another key", new, &sealed), ("another text", id, &changed), ("no key", Uuid::nil(), &sealed)]
    {
        let error = keyring.unseal(id, bytes, "my/path").expect_err(what).to_string();
        assert!(error.contains("my/path") && !error.contains("planted"), "{what}: {error}");
    }
}

#[test]
fn a_key_of_an_older_release_is_published_and_a_new_one_encrypts() {
    let dir = tempfile::tempdir().expect("dir");
    let id = new_id();
    let old = Key::generate(id, &Made { now: 1, publish_time: 0, encrypts: false }, 3).expect("makes one");
    fs::write(file_of(dir.path(), id), old.text(&Wrapping::default()).expect("encodes")).expect("writes");
    let keyring = open(dir.path());
    let (keys, _) = keyring.keys();
    assert_eq!(
        (keys.len(), keys[1].id, keys[1].state, keys[1].algorithm),
        (2, id, KeyState::Inactive, Algorithm::EdDsa)
    );
    assert!(keys[0].encrypts && keyring.seal(b"x").is_ok());
    assert_eq!(keyring.keys(), open(dir.path()).keys());
}

fn wrapped(dir: &Path, active: Option<u8>, others: &[u8]) -> Result<Keyring, KeyringError> {
    let wrapping = Wrapping { active: active.map(shared), others: others.iter().copied().map(shared).collect() };
    Keyring::open(Some(dir.to_owned()), wrapping, 1_000, 10)
}

/// Whether the secrets of each key lie encrypted in the directory, after a look whether they are what the ring has.
fn lie_encrypted(dir: &Path, keyring: &Keyring) -> bool {
    let ring = keyring.ring.load();
    let encrypted: Vec<bool> = ring
        .keys
        .iter()
        .map(|key| {
            let text = fs::read_to_string(file_of(dir, key.meta.id)).expect("reads");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            let data = STANDARD.encode(key.data.as_ref().expect("a data key").bytes());
            let private = STANDARD.encode(&*key.signer.secret().expect("encodes"));
            let plain = (value["DataKey"] == data.as_str(), value["PrivateKey"] == private.as_str());
            assert_eq!(plain.0, plain.1, "{value}");
            assert_eq!(value["Wrapped"] == true, !plain.0, "{value}");
            !plain.0 && !text.contains(&data) && !text.contains(&private)
        })
        .collect();
    assert!(encrypted.iter().all(|one| *one == encrypted[0]), "{encrypted:?}");
    encrypted[0]
}

#[test]
fn keys_lie_encrypted_under_the_key_that_is_configured_and_change_it() {
    let dir = tempfile::tempdir().expect("dir");
    let plain = open(dir.path());
    let (token, sealed) = (plain.sign(&json!({"n": 1})).expect("signs"), plain.seal(b"planted").expect("seals"));
    assert!(!lie_encrypted(dir.path(), &plain));
    let mut made = plain.keys().0;
    // From plain to a key, to another one, and back.
    for (active, others, encrypted) in
        [(Some(1), vec![], true), (Some(1), vec![7], true), (Some(2), vec![7, 1], true), (None, vec![2], false)]
    {
        let keyring = wrapped(dir.path(), active, &others).expect("opens");
        assert_eq!(keyring.keys().0, made, "{active:?}: nothing else of a key changes");
        assert_eq!(lie_encrypted(dir.path(), &keyring), encrypted, "{active:?}");
        assert!(keyring.verify(&token).is_some() && keyring.unseal(sealed.0, &sealed.1, "a").is_ok());
        // New keys and changes of state lie there in the same way.
        rotate(&keyring, 2_000, 12).expect("rotates");
        assert_eq!(lie_encrypted(dir.path(), &keyring), encrypted, "{active:?}");
        made = keyring.keys().0;
    }
    assert_eq!(open(dir.path()).keys().0, made);
}

#[test]
fn nothing_starts_without_the_key_that_opens_the_others() {
    let dir = tempfile::tempdir().expect("dir");
    let made = wrapped(dir.path(), Some(1), &[]).expect("opens").keys();
    let files = || {
        let names = fs::read_dir(dir.path()).expect("lists").map(|entry| entry.expect("entry").path());
        names.map(|path| (fs::read(&path).expect("reads"), path)).collect::<Vec<_>>()
    };
    let before = files();
    for (active, others, part) in [
        (None, vec![], "the configuration has no keyring block"),
        (Some(2), vec![], "with active = false"),
        (None, vec![3], "with active = false"),
    ] {
        let error = wrapped(dir.path(), active, &others).expect_err("locked").to_string();
        assert!(error.contains(part) && error.contains("nothing was started"), "{active:?}: {error}");
        assert_eq!(files(), before, "no key is made, and none changed");
    }
    assert_eq!(wrapped(dir.path(), Some(1), &[]).expect("opens").keys(), made);
    // What fits no key any more is not the operator's mistake alone, and told as such.
    let (_, path) = before.first().expect("a file");
    let mut value: Value = serde_json::from_slice(&before[0].0).expect("JSON");
    value["DataKey"] = STANDARD.encode([7; 60]).into();
    fs::write(path, value.to_string()).expect("writes");
    let error = wrapped(dir.path(), Some(1), &[]).expect_err("damaged").to_string();
    assert!(error.contains("or the file is damaged"), "{error}");
}

#[test]
fn a_snapshot_holds_keys_as_the_configuration_says() {
    let dir = tempfile::tempdir().expect("dir");
    let keyring = wrapped(dir.path(), Some(1), &[]).expect("opens");
    let files = keyring.export().expect("exports");
    let secret = STANDARD.encode(keyring.ring.load().keys[0].data.as_ref().expect("a data key").bytes());
    assert!(files.iter().all(|(_, text)| !String::from_utf8_lossy(text).contains(&secret)));
    let named: Vec<(String, Vec<u8>)> = files.into_iter().map(|(name, text)| (format!("{DIR}/{name}"), text)).collect();
    let rows = |wrapping: &Wrapping| {
        rows_of_files(&shared(9), wrapping, named.iter().map(|(name, text)| (name.as_str(), text.as_slice())))
    };
    let error = rows(&Wrapping::default()).expect_err("locked");
    assert!(error.contains("it is encrypted, and the configuration has no keyring block"), "{error}");
    let rows = rows(&Wrapping { active: Some(shared(1)), others: Vec::new() }).expect("opens");
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [keyring.keys().0[0].id]);
    // Servers that share a store hand them on in the same way.
    let state = put(&State::new(), rows);
    let shares = Keyring::of_state(shared(9), Wrapping { active: Some(shared(1)), others: Vec::new() }, &state);
    let files = shares.expect("opens").export().expect("exports");
    assert!(files.iter().all(|(_, text)| !String::from_utf8_lossy(text).contains(&secret)));
}

#[test]
fn what_was_proven_is_known_again_after_a_start_and_under_its_key_only() {
    let dir = tempfile::tempdir().expect("temp dir");
    let keyring = open(dir.path());
    let (key, mac) = keyring.prove(b"a statement").expect("it has a key");
    rotate(&keyring, 2_000, 20).expect("rotates");
    let (next, other) = keyring.prove(b"a statement").expect("it has a key");
    assert!(key != next && mac != other);
    drop(keyring);
    let again = open(dir.path());
    for (case, id, statement, mac, proven) in [
        ("by the key that was active", key, "a statement", mac, Some(true)),
        ("by the active key", next, "a statement", other, Some(true)),
        ("something else", key, "another statement", mac, Some(false)),
        ("under the other key", next, "a statement", mac, Some(false)),
        ("under a key that is not here", Uuid::from_u128(1), "a statement", mac, None),
    ] {
        assert_eq!(again.proven(id, statement.as_bytes(), &mac), proven, "{case}");
    }
    let others = Keyring::open(None, Wrapping::default(), 1, 0).expect("opens");
    assert_eq!(others.proven(key, b"a statement", &mac), None);
}
