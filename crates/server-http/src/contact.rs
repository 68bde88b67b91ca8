//! What a server that answers from a copy of the state says of that copy's age.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use crate::reply::{KNOWN_LEADER, LAST_CONTACT};

/// How much a server that answers from a copy of the state has heard of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact {
    /// A server leads, and has shown a moment ago that it lives.
    pub known_leader: bool,
    /// Since its last sign of life: the copy has everything up to then. Zero on the leader itself.
    pub last: Duration,
}

impl Contact {
    /// Says so on the answer to a read.
    pub(crate) fn tell(self, headers: &mut HeaderMap) {
        if !headers.contains_key(&LAST_CONTACT) {
            return;
        }
        let known = HeaderValue::from_static(if self.known_leader { "true" } else { "false" });
        headers.insert(KNOWN_LEADER, known);
        headers.insert(LAST_CONTACT, HeaderValue::from(u64::try_from(self.last.as_millis()).unwrap_or(u64::MAX)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_to_reads_tell_of_the_leader() {
        let contact = Contact { known_leader: false, last: Duration::from_millis(1234) };
        let mut headers = HeaderMap::new();
        contact.tell(&mut headers);
        assert!(headers.is_empty(), "a write");
        headers.insert(LAST_CONTACT, HeaderValue::from_static("0"));
        headers.insert(KNOWN_LEADER, HeaderValue::from_static("true"));
        contact.tell(&mut headers);
        assert_eq!(
            (&headers[LAST_CONTACT], &headers[KNOWN_LEADER]),
            (&HeaderValue::from_static("1234"), &HeaderValue::from_static("false"))
        );
    }
}
