//! Listings that come in pages.

use driver_sdk::RemoteError;

use crate::Answer;

/// Items of a page, and where the listing goes on.
pub type Paged<T> = (Vec<T>, Option<String>);

/// Where a listing goes on: services also say with an empty token that it ends.
pub fn next(token: Option<String>) -> Option<String> {
    token.filter(|token| !token.is_empty())
}

/// The items of all pages; of those up to the one with which there are `enough`.
///
/// # Errors
/// Those of `page`.
pub async fn all<T, E, F>(enough: usize, mut page: impl FnMut(Option<String>) -> F) -> Result<Vec<T>, E>
where
    F: Future<Output = Result<Paged<T>, E>>,
{
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let (items, next) = page(from).await?;
        found.extend(items);
        from = next;
        if from.is_none() || found.len() >= enough {
            return Ok(found);
        }
    }
}

/// A page of several listings, one after the other: of a service that lists one status at a time. `page` asks for one
/// of theirs.
///
/// # Errors
/// [`RemoteError::WrongRequest`] for a token of others; those of `page`.
pub async fn in_turn<L, T, E, F>(
    listings: &[L],
    token: Option<String>,
    page: impl FnOnce(&L, Option<String>) -> F,
) -> Answer<Paged<T>>
where
    E: Into<RemoteError>,
    F: Future<Output = Result<Paged<T>, E>>,
{
    let (number, from) = read_token(token.as_deref(), listings.len())?;
    let (items, next) = page(&listings[number], from).await.map_err(Into::into)?;
    Ok((items, next_token(number, next, listings.len())))
}

/// Which of `count` listings this page is one of; `None` for a token of others.
pub fn turn_of(token: Option<&str>, count: usize) -> Option<usize> {
    read_token(token, count).ok().map(|(number, _)| number)
}

/// Where one of `count` listings goes on: its number, and the service's own token.
fn read_token(token: Option<&str>, count: usize) -> Answer<(usize, Option<String>)> {
    let Some(token) = token else { return Ok((0, None)) };
    let wrong = || RemoteError::wrong_request(format!("{token:?} is no page token of this driver"));
    let (number, rest) = token.split_once('/').ok_or_else(wrong)?;
    let number = number.parse().ok().filter(|n| *n < count).ok_or_else(wrong)?;
    Ok((number, (!rest.is_empty()).then(|| rest.to_owned())))
}

/// The token of what follows a page of listing `number`.
fn next_token(number: usize, next: Option<String>, count: usize) -> Option<String> {
    match next {
        Some(next) => Some(format!("{number}/{next}")),
        None => (number + 1 < count).then(|| format!("{}/", number + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_through_all_of_them() {
        assert_eq!(read_token(None, 5), Ok((0, None)));
        assert_eq!(next_token(0, Some("a/b".into()), 5).as_deref(), Some("0/a/b"));
        assert_eq!(read_token(Some("0/a/b"), 5), Ok((0, Some("a/b".into()))));
        assert_eq!(read_token(next_token(3, None, 5).as_deref(), 5), Ok((4, None)));
        assert_eq!(next_token(4, None, 5), None);
        assert_eq!([None, Some("1/"), Some("x")].map(|token| turn_of(token, 2)), [Some(0), Some(1), None]);
        for wrong in ["", "x", "9/", "5/", "a/b"] {
            assert!(matches!(read_token(Some(wrong), 5), Err(RemoteError::WrongRequest(_))), "{wrong}");
        }
    }

    #[tokio::test]
    async fn pages_are_asked_for_until_there_are_enough() {
        for (enough, wanted) in [(usize::MAX, vec![0, 1, 2, 3, 4, 5]), (3, vec![0, 1, 2, 3]), (1, vec![0, 1])] {
            let page = async |from: Option<String>| {
                let from: u32 = from.map_or(0, |token| token.parse().expect("a token of ours"));
                Ok::<_, RemoteError>((vec![from, from + 1], (from < 4).then(|| (from + 2).to_string())))
            };
            assert_eq!(all(enough, page).await, Ok(wanted));
        }
    }
}
