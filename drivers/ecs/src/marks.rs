//! Tags as ECS takes them, and the names by which it knows a key.

use aws::marks::{self, digest};
pub(crate) use aws::marks::{Marks, OWNER, acknowledged_tag, fingerprint};
use aws_sdk_ecs::types::Tag;

/// As the API takes them.
pub(crate) fn tags(marks: impl IntoIterator<Item = marks::Tag>) -> Vec<Tag> {
    marks.into_iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect()
}

/// From tags; `None` for a task that is not ours.
pub(crate) fn of(tags: &[Tag]) -> Option<Marks> {
    Marks::of(tags.iter().filter_map(|t| Some((t.key()?, t.value().unwrap_or_default()))))
}

/// What RunTask is told so that a repetition makes nothing: the key itself where it has the form that is asked for.
pub(crate) fn client_token(key: &str) -> String {
    let fits = (1..=64).contains(&key.len()) && key.bytes().all(|b| (33..=126).contains(&b));
    if fits { key.to_owned() } else { format!("drover-{}", &digest(key)[..56]) }
}

/// By what tasks of a key are found: at most 36 letters, digits and `-`.
pub(crate) fn started_by(owner: &str, key: &str) -> String {
    format!("drover-{}", &digest(&format!("{owner}\0{key}"))[..28])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_keys_have_the_form_that_is_asked_for() {
        assert_eq!(client_token("0b7e-11"), "0b7e-11");
        for key in ["", "a b", "ü", &"k".repeat(65)] {
            assert!((1..=64).contains(&client_token(key).len()), "{key}");
        }
        assert_ne!(client_token("a b"), client_token("a c"));
        assert!(started_by("o", "k").len() <= 36);
        assert_ne!(started_by("o", "k"), started_by("p", "k"));
    }
}
