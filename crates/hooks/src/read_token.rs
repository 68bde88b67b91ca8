//! The token of a task's identity that its node reads variables with. The node keeps it from one read to the next and
//! replaces it before it ends, so that no read waits with a token that ends meanwhile.

use std::time::Duration;

use host::clock::now_ns;
use model::{AllocId, canonical::DEFAULT_IDENTITY};

use crate::{
    identity_token::Token,
    tokens::{TokenError, Tokens},
};

/// What a held token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// For reads of any length.
    Always,
    /// Until its renewal is due.
    For(Duration),
    /// It is to be replaced; as long as nobody gives another one, it is good for so long.
    Due(Duration),
    /// It has ended.
    Over,
}

/// What a token is good for now, in Unix nanoseconds.
fn use_of(token: &Token, now: i64) -> Use {
    let until = |end: i64| Duration::from_nanos(u64::try_from(end.saturating_sub(now)).unwrap_or(0));
    match token.renew_at(0) {
        None => Use::Always,
        Some(due) if now < due => Use::For(until(due)),
        Some(_) if token.valid(now) => Use::Due(until(token.expires_ns)),
        Some(_) => Use::Over,
    }
}

/// A token for one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) text: String,
    /// How long the read may wait for a change at most; `None` = the token never ends.
    pub(crate) most: Option<Duration>,
    /// It was signed for this read.
    pub(crate) new: bool,
}

/// The token of one task, from read to read.
#[derive(Debug, Default)]
pub(crate) struct ReadToken(Option<Token>);

impl ReadToken {
    /// The token for the next read: the held one, or a new one. Cancel safe.
    ///
    /// # Errors
    /// When none is held that is still good, and the servers give none.
    pub(crate) async fn next(&mut self, tokens: &Tokens, alloc: AllocId, task: &str) -> Result<Shown, TokenError> {
        let held = |held: &Token, most| Shown { text: held.text.clone(), most, new: false };
        let former = match self.0.as_ref().map(|token| (token, use_of(token, now_ns()))) {
            Some((token, Use::Always)) => return Ok(held(token, None)),
            Some((token, Use::For(most))) => return Ok(held(token, Some(most))),
            Some((token, Use::Due(most))) => Some(held(token, Some(most))),
            Some((_, Use::Over)) | None => None,
        };
        let signed = tokens.sign(alloc, task, vec![DEFAULT_IDENTITY.to_owned()]).await;
        let signed = match (signed.map(|signed| signed.into_iter().next()), former) {
            (Ok(Some(signed)), _) => signed,
            (_, Some(former)) => return Ok(former),
            (Err(error), None) => return Err(error),
            (Ok(None), None) => return Err(TokenError::Later("the servers have signed no token".to_owned())),
        };
        let now = now_ns();
        let token = Token::new(signed, now);
        let most = match use_of(&token, now) {
            Use::Always => None,
            Use::For(most) | Use::Due(most) => Some(most),
            Use::Over => Some(Duration::ZERO),
        };
        let shown = Shown { text: token.text.clone(), most, new: true };
        self.0 = Some(token);
        Ok(shown)
    }

    /// A server has refused it: the next read has another.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_replaced_at_half_its_life() {
        let second = 1_000_000_000;
        let token = Token { text: String::new(), issued_ns: 100 * second, expires_ns: 200 * second };
        for (now, expected) in [
            (100, Use::For(Duration::from_secs(45))),
            (144, Use::For(Duration::from_secs(1))),
            (145, Use::Due(Duration::from_secs(55))),
            (199, Use::Due(Duration::from_secs(1))),
            (200, Use::Over),
        ] {
            assert_eq!(use_of(&token, now * second), expected, "{now}");
        }
        assert_eq!(use_of(&Token { expires_ns: 0, ..token }, i64::MAX), Use::Always);
    }
}
