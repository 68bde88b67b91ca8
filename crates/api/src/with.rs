//! An object with further fields beside its own.

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned, de::Error};

use crate::go_json;

/// `base` and `extra` as one JSON object. Unlike `#[serde(flatten)]` both halves are read with Go's leniency.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct With<T, X> {
    /// The object itself.
    #[serde(flatten)]
    pub base: T,
    /// What the API adds.
    #[serde(flatten)]
    pub extra: X,
}

impl<T, X> With<T, X> {
    /// Joins the two.
    pub fn new(base: T, extra: X) -> Self {
        Self { base, extra }
    }
}

impl<T, X> std::ops::Deref for With<T, X> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.base
    }
}

impl<'de, T: DeserializeOwned, X: DeserializeOwned> Deserialize<'de> for With<T, X> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(d)?;
        Ok(Self {
            base: go_json::from_value(value.clone()).map_err(D::Error::custom)?,
            extra: go_json::from_value(value).map_err(D::Error::custom)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use model::Evaluation;

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, rename_all = "PascalCase")]
    struct Extra {
        wait_until: String,
        list: Vec<String>,
    }

    #[test]
    fn both_halves_come_back() {
        let value = With::new(
            Evaluation { priority: 50, ..Evaluation::default() },
            Extra { wait_until: "x".into(), list: vec![] },
        );
        let text = go_json::to_string(&value, false).expect("writes");
        assert!(text.contains("\"Priority\":50") && text.contains("\"WaitUntil\":\"x\",\"List\":null"), "{text}");
        assert!(text.contains("\"FailedTGAllocs\":null"), "{text}");
        assert_eq!(go_json::from_str::<With<Evaluation, Extra>>(&text).expect("reads"), value);
        let error =
            go_json::from_str::<Vec<With<Evaluation, Extra>>>(r#"[{"priority":"high"}]"#).expect_err("bad").to_string();
        assert_eq!(error, "[0]: Priority: invalid type: string \"high\", expected i32");
    }
}
