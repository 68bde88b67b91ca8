//! A cluster or queue as the operator names it: by name, or by an ARN, which also names region and account.

use driver_sdk::Error;

/// What is named, and how.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Option that names it: `cluster`.
    pub option: &'static str,
    /// With an article: `an ECS cluster`.
    pub noun: &'static str,
    /// Service and kind in ARNs: `ecs`, `cluster`.
    pub arn: (&'static str, &'static str),
}

/// Which one, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As the API takes it.
    pub given: String,
    /// Its name.
    pub name: String,
    /// Region and account, when an ARN names them.
    pub place: Option<(String, String)>,
}

impl Named {
    /// Reads what the operator has written, and the region beside it.
    ///
    /// # Errors
    /// It is neither a name nor an ARN of this kind, or an ARN of another region.
    pub fn of(kind: Kind, given: &str, region: Option<&str>) -> Result<Self, Error> {
        let named = Self::read(kind, given)?;
        named.in_region(kind, region)?;
        Ok(named)
    }

    fn read(kind: Kind, given: &str) -> Result<Self, Error> {
        let Kind { option, noun, arn: (service, kind) } = kind;
        if !given.starts_with("arn:") {
            let fits = given.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) && given.len() <= 255;
            if !fits {
                return Err(Error::invalid(format!("{option} {given:?} is neither the name nor the ARN of {noun}")));
            }
            return Ok(Self { given: given.to_owned(), name: given.to_owned(), place: None });
        }
        let parts: Vec<&str> = given.splitn(6, ':').collect();
        match parts.as_slice() {
            ["arn", _, of, region, account, resource]
                if *of == service && !region.is_empty() && !account.is_empty() =>
            {
                let name = resource.strip_prefix(kind).and_then(|rest| rest.strip_prefix('/'));
                let name = name.filter(|name| !name.is_empty());
                let name =
                    name.ok_or_else(|| Error::invalid(format!("{option} {given:?} is the ARN of something else")))?;
                Ok(Self {
                    given: given.to_owned(),
                    name: name.to_owned(),
                    place: Some(((*region).to_owned(), (*account).to_owned())),
                })
            }
            _ => Err(Error::invalid(format!("{option} {given:?} is not the ARN of {noun}"))),
        }
    }

    /// The region that the configuration itself names: `given`, or that of the ARN.
    pub fn region(&self, given: Option<&str>) -> Option<String> {
        let named = given.filter(|r| !r.is_empty()).map(str::to_owned);
        named.or_else(|| self.place.as_ref().map(|(region, _)| region.clone()))
    }

    /// Refuses a region beside an ARN of another one.
    fn in_region(&self, kind: Kind, given: Option<&str>) -> Result<(), Error> {
        match (given.filter(|r| !r.is_empty()), &self.place) {
            (Some(region), Some((of_arn, _))) if region != of_arn => Err(Error::invalid(format!(
                "region is {region:?}, the {}'s ARN names {of_arn:?}; remove one of the two",
                kind.option.replace('_', " ")
            ))),
            _ => Ok(()),
        }
    }

    /// Identity of the runtime as all nodes see it: `provider` when the operator has given one.
    pub fn identity(&self, service: &str, provider: Option<&str>, region: &str) -> String {
        match (provider.filter(|p| !p.is_empty()), &self.place) {
            (Some(name), _) => format!("{service}/{name}"),
            (None, Some((region, account))) => format!("{service}/{account}/{region}/{}", self.name),
            (None, None) => format!("{service}/{region}/{}", self.name),
        }
    }

    /// Refuses an answer of another account than the ARN's: `arn` is the one that was answered.
    ///
    /// # Errors
    /// [`driver_sdk::RemoteError::CouldNotAsk`].
    pub fn of_account(&self, kind: Kind, arn: &str) -> crate::Answer<()> {
        let account = arn.split(':').nth(4).unwrap_or_default();
        match &self.place {
            Some((_, wanted)) if wanted != account => Err(driver_sdk::RemoteError::could_not_ask(format!(
                "the {} {arn} is of account {account}, configured is {wanted}",
                kind.option.replace('_', " ")
            ))),
            _ => Ok(()),
        }
    }
}

/// Refuses a pace that no provider bears: requests a second and the time between two looks.
///
/// # Errors
/// Names the option.
pub fn pace(requests_per_second: f64, poll_interval: std::time::Duration) -> Result<(), Error> {
    if !(0.1..=1000.0).contains(&requests_per_second) {
        return Err(Error::invalid(format!("requests_per_second is {requests_per_second}; it may be 0.1 to 1000")));
    }
    if poll_interval < std::time::Duration::from_millis(100) {
        return Err(Error::invalid("poll_interval is shorter than 100ms, which no budget of requests bears"));
    }
    Ok(())
}
