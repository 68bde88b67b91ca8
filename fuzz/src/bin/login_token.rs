//! Tokens of identity providers, their claims, the keys of a set, and the texts of binding rules.

#![no_main]

use libfuzzer_sys::fuzz_target;
use login::{Token, claims::Expected, keys, mapping, oidc, rules};
use std::collections::BTreeMap;

fuzz_target!(|text: &str| {
    if let Ok(token) = Token::read(text) {
        assert!(text.starts_with(token.signed) && token.signed.matches('.').count() == 1);
        let _ = Expected::default().check(&token.claims, 1_700_000_000);
        if let Ok(set) = keys::read_set(text.as_bytes()) {
            assert!(keys::candidates(&token, &set).all(|key| key.public.fits(token.algorithm)));
        }
    }
    let _ = keys::read_set(text.as_bytes());
    let _ = oidc::Provider::read(text.as_bytes(), "https://id");
    if let Ok(claims) = serde_json::from_str(text) {
        let names: BTreeMap<String, String> = [("/a/b".to_owned(), "x".to_owned())].into();
        if let Ok(identity) = mapping::identity(&claims, &names, &names) {
            let _ = rules::bind_name(text, &identity);
        }
    }
    let _ = (rules::check_selector(text), rules::check_bind_name(text));
    // A redirect that is allowed never leads to another host.
    let allowed = ["http://localhost:4649/oidc/callback".to_owned()];
    if oidc::redirect_allowed(text, &allowed) {
        assert!(text.starts_with("http://localhost") && text.ends_with("/oidc/callback"), "{text}");
    }
});
