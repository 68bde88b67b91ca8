//! What devices do, for people.

use serde_json::Value;

use crate::output;

/// The devices of groups as the API has them: their names, and what was measured of each.
fn devices(groups: &[Value]) -> impl Iterator<Item = (String, &Value)> {
    let text = |group: &Value, field: &str| group[field].as_str().unwrap_or_default().to_owned();
    groups.iter().flat_map(move |group| {
        let name = format!("{}/{}/{}", text(group, "Vendor"), text(group, "Type"), text(group, "Name"));
        let instances = group["InstanceStats"].as_object();
        instances.into_iter().flatten().map(move |(id, stats)| (format!("{name}[{id}]"), stats))
    })
}

/// The number that says most of each device.
pub(crate) fn summaries(groups: &[Value]) -> Vec<String> {
    let rows: Vec<(String, String)> = devices(groups).map(|(name, stats)| (name, shown(&stats["Summary"]))).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, summary)| format!("{name:width$}  {summary}")).collect()
}

/// Prints all that was measured of each device.
pub(crate) fn print(groups: &[Value]) {
    for (i, rows) in all(groups).iter().enumerate() {
        if i > 0 {
            output::line("");
        }
        let rows: Vec<(&str, &str)> = rows.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        output::pairs(&rows);
    }
}

fn all(groups: &[Value]) -> Vec<Vec<(String, String)>> {
    let of = |(name, stats): (String, &Value)| {
        let mut rows = vec![("Device".to_owned(), name)];
        measured(&stats["Stats"], "", &mut rows);
        rows
    };
    devices(groups).map(of).collect()
}

fn measured(stats: &Value, before: &str, rows: &mut Vec<(String, String)>) {
    for (name, value) in stats["Attributes"].as_object().into_iter().flatten() {
        rows.push((format!("{before}{name}"), shown(value)));
    }
    for (name, nested) in stats["Nested"].as_object().into_iter().flatten() {
        measured(nested, &format!("{before}{name}."), rows);
    }
}

/// A value, or a part of a whole, with its unit.
fn shown(value: &Value) -> String {
    let number = |field: &str| value[field].as_f64().map(|number| number.to_string());
    let (part, whole) = match number("FloatNumeratorVal") {
        Some(part) => (Some(part), number("FloatDenominatorVal")),
        None => (number("IntNumeratorVal"), number("IntDenominatorVal")),
    };
    let told = part
        .or_else(|| value["StringVal"].as_str().map(str::to_owned))
        .or_else(|| value["BoolVal"].as_bool().map(|yes| yes.to_string()));
    let whole = whole.map(|whole| format!(" / {whole}")).unwrap_or_default();
    let unit = value["Unit"].as_str().filter(|unit| !unit.is_empty()).map(|unit| format!(" {unit}"));
    told.map_or_else(|| "<none>".to_owned(), |told| format!("{told}{whole}{}", unit.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_have_their_whole_and_unit() {
        let groups = [json!({"Vendor": "nvidia", "Type": "gpu", "Name": "T4", "InstanceStats": {"a": {
            "Summary": {"FloatNumeratorVal": 30.5, "FloatDenominatorVal": 70.0, "Unit": "W"},
            "Stats": {
                "Attributes": {"mode": {"StringVal": "shared"}, "memory": {"IntNumeratorVal": 3, "Unit": "GiB"}},
                "Nested": {"fan": {"Attributes": {"on": {"BoolVal": true}, "speed": {}}}},
            },
        }}})];
        assert_eq!(summaries(&groups), ["nvidia/gpu/T4[a]  30.5 / 70 W"]);
        let rows: Vec<String> = all(&groups)[0].iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(rows, ["Device=nvidia/gpu/T4[a]", "memory=3 GiB", "mode=shared", "fan.on=true", "fan.speed=<none>"]);
    }
}
